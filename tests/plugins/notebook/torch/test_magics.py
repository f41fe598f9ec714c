"""`%overlapscope` and `%%overlapscope` in a shell of IPython."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import overlapscope as ov

pytest.importorskip("IPython", reason="runs cells")

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import CapturedIO, capture_output

CELL = """
import overlapscope, torch
a = torch.ones(8, 8)
for _ in range(12):
    product = a @ a
    overlapscope.step()
product.shape
"""


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    """A shell in an empty folder, with the extension."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    # A shell replaces it by a module that no process can be started from.
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    made = InteractiveShell.instance()
    made.run_line_magic("load_ext", "overlapscope")
    yield made
    atexit.unregister(made.atexit_operations)
    made.atexit_operations()  # type: ignore[no-untyped-call]
    InteractiveShell.clear_instance()


def run(shell: InteractiveShell, cell: str) -> tuple[object, CapturedIO]:
    with capture_output() as captured:
        done = shell.run_cell(cell, store_history=False)  # type: ignore[no-untyped-call]
    done.raise_error()
    return done.result, captured


def test_a_cell_is_recorded_and_shows_its_report_and_timeline(shell: InteractiveShell) -> None:
    result, captured = run(shell, f"%%overlapscope\n{CELL}")
    assert list(result) == [8, 8]  # type: ignore[call-overload]
    assert shell.user_ns["product"].shape == result
    [shown] = captured.outputs
    assert shown.data["text/plain"].startswith("cell.trace.json.gz: A step takes")
    assert "A step takes" in shown.data["text/html"] and "<iframe sandbox=" in shown.data["text/html"]
    assert "overlapscope.step()" in str(ov.analyze("cell.trace.json.gz").traces[0].step_source)


def test_code_on_a_line_runs_as_it_is_written(shell: InteractiveShell) -> None:
    run(shell, "x = 5")
    result, _ = run(shell, "%overlapscope [{x}, '$x', '{x}']")
    assert result == [{5}, "$x", "{x}"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("%%overlapscope --stack\n1", "--stack: is no option"),
        ("%%overlapscope train()\n1", "below the line"),
        ("%overlapscope", "name the code"),
        ("%%overlapscope\n1+", "invalid syntax"),
    ],
)
def test_code_that_cannot_run_replaces_no_recording(shell: InteractiveShell, code: str, message: str) -> None:
    Path("cell.trace.json.gz").write_text("an earlier one")
    with pytest.raises(Exception, match=message):
        run(shell, code)
    assert Path("cell.trace.json.gz").read_text() == "an earlier one"


def test_a_line_is_recorded_into_a_file_of_choice(shell: InteractiveShell) -> None:
    run(shell, "import torch")
    line = """%overlapscope -o 'a line.trace.json.gz' --stacks torch.ones(2).sum().item(), 'it is "x"'"""
    result, captured = run(shell, line)
    assert result == (2.0, 'it is "x"') and len(captured.outputs) == 1
    assert ov.load("a line.trace.json.gz").flags["with_stack"]


def test_what_a_cell_raises_is_the_cells_and_the_next_one_can_be_recorded(shell: InteractiveShell) -> None:
    with pytest.raises(ZeroDivisionError):
        run(shell, "%%overlapscope\nbefore = 1\n1 / 0")
    assert shell.user_ns["before"] == 1
    with pytest.raises(SyntaxError):
        run(shell, "%%overlapscope\n1 +")
    assert run(shell, "value = %overlapscope 3 + 4")[1].outputs and shell.user_ns["value"] == 7


def test_a_name_in_the_recording_is_text_in_the_notebook(shell: InteractiveShell) -> None:
    _, captured = run(
        shell,
        "%%overlapscope -o '<b>.trace.json.gz'\nimport torch\n"
        "with torch.profiler.record_function('<script>alert(1)</script>'):\n    torch.ones(2)",
    )
    [shown] = captured.outputs
    assert "<script>" not in shown.data["text/html"] and "<b>" not in shown.data["text/html"]
