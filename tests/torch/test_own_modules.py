"""A program's own modules that are called as modules of Python's library: it gets them, as under Python."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.run_command import RUN, TRAIN, execute, write

NAMES = ("statistics", "html", "shlex", "webbrowser")
"""Without which torch can be imported."""
PROGRAM = f"import {', '.join(NAMES)}\nprint([module.mine for module in ({', '.join(NAMES)})])\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in (*NAMES, "fractions", "secrets"):
        write(tmp_path / f"{name}.py", "mine = 1\n")
    (tmp_path / "csv").mkdir()  # Python passes over a folder that is not a package.
    return tmp_path


@pytest.mark.parametrize("program", [["program.py"], ["-m", "program"], ["-c", "import program"]], ids=" ".join)
def test_a_program_gets_its_own_modules(program: list[str], folder: Path) -> None:
    write(
        folder / "program.py",
        f"{PROGRAM}import fractions, secrets, csv; print(fractions.mine, secrets.mine, csv.reader)\n",
    )
    alone, run = execute([sys.executable, *program], folder), execute([*RUN, *program], folder)
    assert alone.stdout.startswith("[1, 1, 1, 1]\n1 1 <")
    assert (run.returncode, run.stdout) == (alone.returncode, alone.stdout), run.stderr
    assert "started Python processes" not in run.stderr


@pytest.mark.parametrize("started", [False, True])
def test_modules_that_are_imported_for_the_recording_find_the_librarys(started: bool, folder: Path) -> None:
    for name in ("fractions", "secrets"):  # PyTorch's optimizers need them.
        (folder / f"{name}.py").unlink()
    write(folder / "program.py", f"{PROGRAM}{TRAIN}\nfor _ in range(45): train()\n{PROGRAM}")
    write(folder / "start.py", "import subprocess, sys; subprocess.run([sys.executable, 'program.py'], check=True)")
    how = ["--subprocesses", "start.py"] if started else ["program.py"]
    run = execute([*RUN, "--shapes", "-o", "x.trace.json", *how], folder)
    assert (run.returncode, run.stdout) == (0, "[1, 1, 1, 1]\n" * 2), run.stderr
    assert len(list(folder.glob("x.trace*/*" if started else "x.trace.json"))) == 1, run.stderr


def test_modules_of_the_library_stay_the_librarys_when_torch_is_imported(tmp_path: Path) -> None:
    """With any variable of ours, torch calls us at the end of its import."""
    write(
        tmp_path / "program.py",
        "import os, sys\n"
        "sys.path.insert(0, os.path.dirname(os.__file__))\n"
        "import torch, overlapscope.glossary\n"
        "print([finder for finder in sys.meta_path if '_Apart' in repr(finder)])\n",
    )
    run = execute([sys.executable, "program.py"], tmp_path, OVERLAPSCOPE_CACHE_SIZE="1GB", **forked.FINDS_US)
    assert (run.returncode, run.stdout) == (0, "[]\n"), run.stderr
