"""Lines of code that a trace names: shown from the very file that it names, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from overlapscope.dashboard.source import is_private, line_of

CODE = """import time

def step(batch):
    # A comment at the margin of nothing.
    for item in batch:
        time.sleep(item)

    def inner():
        return 1

step([1])
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Return a trace that is younger than the code beside it."""
    (tmp_path / "train.py").write_text(CODE)
    os.utime(tmp_path / "train.py", (1_000, 1_000))
    path = tmp_path / "trace.json"
    path.touch()
    return path


@pytest.mark.parametrize(
    ("line", "function", "code"),
    [
        (6, "step", "time.sleep(item)"),
        (6, "Model.step", "time.sleep(item)"),
        (9, "step.<locals>.inner", "return 1"),
        (11, "<module>", "step([1])"),
        (6, "load", ""),
        (6, "<module>", ""),
        (0, "step", ""),
        (99, "step", ""),
    ],
)
def test_a_line_is_shown_if_it_is_in_the_function_that_the_trace_names(
    trace: Path, line: int, function: str, code: str
) -> None:
    assert line_of(str(trace.with_name("train.py")), line, function, trace, 0) == code


def test_a_file_that_changed_after_the_recording_is_not_shown(trace: Path) -> None:
    os.utime(trace, (500, 500))
    assert line_of(str(trace.with_name("train.py")), 6, "step", trace, 0) == ""


@pytest.mark.parametrize(("age_ns", "code"), [(0, "time.sleep(item)"), (-1, "")])
def test_a_file_that_changed_before_the_trace_was_copied_is_not_shown(age_ns: int, code: str, trace: Path) -> None:
    file, start_ns = trace.with_name("train.py"), 1_790_000_000 * 10**9
    os.utime(file, ns=(start_ns - age_ns, start_ns - age_ns))
    os.utime(trace, ns=(start_ns + 2, start_ns + 2))
    assert line_of(str(file), 6, "step", trace, start_ns) == code


def test_nothing_but_a_regular_small_file_of_python_is_read(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = trace.parent
    os.mkfifo(folder / "pipe.py")
    (folder / "secret.txt").write_text(CODE)
    (folder / "large.py").write_text(CODE + "#" * (1 << 20))
    (folder / "folder.py").mkdir()
    for name in ("secret.txt", "large.py", "folder.py", "missing.py", "pipe.py"):
        path = folder / name
        if path.exists():
            os.utime(path, (1_000, 1_000))
        assert line_of(str(path), 6, "step", trace, 0) == "", name
    monkeypatch.chdir(folder)
    assert line_of("train.py", 6, "step", trace, 0) == ""
    assert line_of("/dev/zero\0.py", 6, "step", trace, 0) == ""


@pytest.mark.parametrize(
    ("host", "base", "private"),
    [
        ("127.0.0.1", "/", True),
        ("localhost", "/", True),
        ("0.0.0.0", "/", False),
        ("gpu-box", "/", False),
        ("127.0.0.1", "/tools/overlapscope/", False),
    ],
)
def test_code_is_shown_to_the_user_of_this_machine_alone(host: str, base: str, private: bool) -> None:
    assert is_private(host, base) is private


def test_lines_are_counted_as_python_counts_them(trace: Path) -> None:
    file = trace.with_name("pages.py")
    file.write_text("def step():\n    text = 'a\x1cb\u2028c'\n\x0c\n    first()\n    second()\n")
    os.utime(file, (1_000, 1_000))
    assert line_of(str(file), 4, "step", trace, 0) == "first()"
