"""Tests of which modules commands load, and how rarely they collect garbage, each in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.helpers import TRACES

PIPELINE = str(TRACES / "pipeline_1stream.json.gz")
RANKS = str(TRACES / "ddp")
HEAVY = ("numpy", "pandas", "msgspec", "rich", "torch")


def loaded_by(code: str) -> set[str]:
    """Return the names of all modules that are loaded once the code has run."""
    shown = f"import sys\n{code}\nprint(*sys.modules, file=sys.stderr)"
    # Readline, which pytest imports, sets COLUMNS behind Python's back.
    env = dict(os.environ)
    done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True, env=env)
    return set(done.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], [*HEAVY, "inspect", "pathlib"]),
        (["whatif", "--help"], HEAVY),
        (["analyze", PIPELINE], ["pandas", "dash", "plotly", "torch", "overlapscope.plugins.jax.file"]),
        (["check", PIPELINE], ["pandas", "dash", "plotly", "torch"]),
        (["ranks", RANKS, "--workers", "1"], ["pandas", "dask", "distributed", "multiprocessing", "torch"]),
    ],
)
def test_a_command_loads_nothing_heavy_that_it_does_not_need(arguments: list[str], heavy: list[str]) -> None:
    assert not loaded_by(f"from overlapscope.commands import main; main({arguments!r})") & set(heavy)


def test_the_list_of_commands_is_printed_from_a_file_as_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    asked = "import sys; sys.argv[1:] = ['--help']; from overlapscope.start import console; console()"
    ours = {name for name in loaded_by(asked) if name.startswith("overlapscope")}
    assert ours == {"overlapscope", "overlapscope.version", "overlapscope.installed", "overlapscope.start"}
    command = [sys.executable, "-m", "overlapscope", "--help"]
    from_file, made = (
        subprocess.run(command, capture_output=True, check=True, env=os.environ | wide).stdout
        for wide in ({}, {"COLUMNS": "80"})
    )
    assert from_file == made != b""


def test_importing_the_reader_imports_neither_pandas_nor_rich() -> None:
    assert not loaded_by("import overlapscope.reading.kineto") & {"pandas", "rich"}


def test_commands_that_compute_on_traces_collect_garbage_rarely() -> None:
    asked = "import gc; from overlapscope.commands import console; console(); sys.exit(gc.get_threshold()[0] < 100_000)"
    for command in ("analyze", "dashboard", "ranks"):
        code = f"import sys; sys.argv[1:] = [{command!r}, '--help']; {asked}"
        assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0


def test_the_dashboard_passes_no_number_of_threads_on_to_the_programs_that_it_starts() -> None:
    code = (
        "import os, sys; sys.argv[1:] = ['dashboard', '--help']; before = dict(os.environ); "
        "from overlapscope.commands import console; console(); sys.exit(dict(os.environ) != before)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    assert (
        subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False, env=environment).returncode
        == 0
    )


def test_functions_for_the_end_of_the_process_can_still_print() -> None:
    code = (
        "import atexit, sys; sys.orig_argv[:] = ['python', 'overlapscope']; sys.argv[1:] = ['analyze', 'nowhere']; "
        "atexit.register(print, 'the end'); from overlapscope.commands import console; console()"
    )
    environment = os.environ | {"PYTHONUNBUFFERED": ""}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, env=environment)
    assert (done.returncode, done.stdout) == (2, b"the end\n")
