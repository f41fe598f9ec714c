"""Running programs of `tests/programs/ways_to_run` alone and under `overlapscope run`."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from tests.programs.ways_to_run import ProgramToRun
from tests.support import forked
from tests.support.run_command import FORKED, Done, execute, write

_REPORT = re.compile(r"^\S+\.trace\.json\.gz(, rank 0)?: .*^Add -v for [^\n]*\n", re.MULTILINE | re.DOTALL)

_VARIES = re.compile(r" at 0x[0-9a-f]+|^  File .<frozen runpy>.*\n|^USDT:.*\n", re.MULTILINE)
"""Addresses, frames of Python's before a module, and what Kineto of torch 2.13 writes about each profiler."""


def check_that_it_runs_as_alone(program: ProgramToRun, folder: Path, *, times: int = 1) -> None:
    """Check the exit code, stdout and the program's part of stderr, each time that it is recorded."""
    write(folder / program.file, program.text)
    alone = _alone(program, folder)
    for _ in range(times):
        run = forked.run([*FORKED, *program.command], folder, stdin=program.stdin)
        expected = alone.returncode, alone.stdout, _VARIES.sub("", alone.stderr)
        assert (run.returncode, run.stdout, _of_the_program(run.stderr)) == expected
        assert "internal error" not in run.stderr


def _alone(program: ProgramToRun, folder: Path) -> Done:
    arguments = program.python or program.command
    if arguments[0] in ("-m", "-c") or arguments[0].endswith(".py"):
        return forked.run(arguments, folder, stdin=program.stdin, unloads=program.unloads)
    return execute([sys.executable, *arguments], folder, stdin=program.stdin)


def _of_the_program(stderr: str) -> str:
    lines = _REPORT.sub("", stderr).splitlines(keepends=True)
    return _VARIES.sub("", "".join(line for line in lines if not line.startswith("overlapscope: ")))
