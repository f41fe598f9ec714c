"""A run of the program in the worktree, recorded by `overlapscope run`."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Final

from msgspec import Struct

from overlapscope.base.child import ROOT, Child, how_it_ended
from overlapscope.base.words import clean
from overlapscope.errors import RecordingFailed, UsageError
from overlapscope.plugins.ci.bisect.commits import BisectedRepository, environment

_PYTHON: Final = re.compile(r"python(\d+(\.\d+)?)?")
_WITH_VALUE: Final = ("-W", "-X", "--check-hash-based-pycs")
_TERM_S: Final = 5.0
_KEPT_BYTES: Final = 1 << 18
"""Bytes of output to keep from the end."""
LAST_LINES: Final = 15
_PLACES: Final = """
import json, os, sys
editable = (getattr(module, "MAPPING", {}) for name, module in sys.modules.items() if name.startswith("__editable__"))
print(json.dumps([*filter(None, sys.path), *(os.path.dirname(path) for each in editable for path in each.values())]))
"""
"""Prints where Python looks for modules. Packages installed with `pip install -e` are there, or in a finder's table."""


class Failed(RecordingFailed):
    """The program could not be recorded."""

    def __init__(self, reason: str, output: str = "") -> None:
        """Create it from a sentence and the program's last lines."""
        super().__init__(reason)
        self.output = output


class BisectedProgram(Struct, frozen=True):
    """A program, as the user names it."""

    python: str
    options: tuple[str, ...]
    """Options of Python."""
    words: tuple[str, ...]
    """Script or `-m MODULE`, with its arguments."""
    setup: str
    """Shell command to run before it; empty if there is none."""


def program(command: Sequence[str], setup: str, repository: BisectedRepository) -> BisectedProgram:
    """Return the program of a command line.

    Paths in the repository are made relative, since each commit has its own files there.

    Raises:
        UsageError: The command line doesn't start Python.
    """
    first, *words = command
    if not _PYTHON.fullmatch(Path(first).name):
        # `overlapscope run` accepts a script without `python`.
        first, words = "python", [first, *words]
    begin = 0
    while begin < len(words) and re.fullmatch("-[^mc]?|-[^mc-].*", words[begin]) and words[begin] != "-":
        begin += 1 + (words[begin] in _WITH_VALUE)
    if not words[begin:]:
        raise UsageError("name a script after `--`, such as `-- python train.py`.")
    if not Path(words[begin]).suffix and words[begin] not in ("-m", "-c") and not Path(words[begin]).exists():
        raise UsageError(
            f"{words[begin]}: bisect starts Python itself, so name a script or a module: `-- python train.py`, or "
            "`-- python -m package`."
        )
    here = repository.top / repository.inside
    python = sys.executable if os.sep not in first else os.path.abspath(first)
    inside = [
        os.path.relpath(word, here)
        if os.path.isabs(word) and Path(os.path.normpath(word)).is_relative_to(repository.top)
        else word
        for word in words[begin:]
    ]
    return BisectedProgram(python, tuple(words[:begin]), tuple(inside), setup)


def variables(
    program: BisectedProgram, repository: BisectedRepository, tree: Path, commits: Sequence[str]
) -> dict[str, str]:
    """Return the environment of the program in the worktree.

    Python finds the worktree's modules where it would find those of the user's tree, such as by PYTHONPATH or in a
    package that is installed as editable.

    Raises:
        UsageError: Python doesn't run.
    """
    values = environment()
    paths = [part for part in values.get("PYTHONPATH", "").split(os.pathsep) if part]
    command = [program.python, "-c", _PLACES]
    done = subprocess.run(command, env=values, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if done.returncode:
        raise UsageError(f"{program.python}: does not run ({clean(done.stderr.decode(errors='replace'), 200)}).")
    places: list[str] = json.loads(done.stdout.splitlines()[-1])
    moved, kept = [], []
    for place in dict.fromkeys([*map(os.path.abspath, paths), *places]):
        inside = Path(os.path.realpath(place)).is_relative_to(os.path.realpath(repository.top))
        relative = Path(os.path.relpath(os.path.realpath(place), os.path.realpath(repository.top)))
        if inside and any(repository.tracks(relative, commit) for commit in commits):
            moved.append(os.fspath(tree / relative))
        elif place in map(os.path.abspath, paths):
            kept.append(place)
    if os.fspath(ROOT) not in places:
        kept.append(os.fspath(ROOT))
    return values | {"PYTHONPATH": os.pathsep.join([*moved, *kept])}


def record(
    program: BisectedProgram,
    directory: Path,
    values: Mapping[str, str],
    trace: Path,
    options: Sequence[str],
    limit_s: float,
) -> None:
    """Set the program up, run it in a directory and record it. Raises Failed."""
    until = time.monotonic() + limit_s
    if not directory.is_dir():
        raise Failed("its directory is not in this commit.")
    if program.setup:
        _run(["/bin/sh", "-c", program.setup], directory, values, until, "--setup")
    script = program.words[0]
    if not script.startswith("-") and not (directory / script).exists():
        raise Failed(f"{script} is not in this commit; --setup can copy it.")
    trace.unlink(missing_ok=True)
    recorder = ("-m", "overlapscope", "run", "--stop-after-recording", "--force", "-o", os.fspath(trace), *options)
    output = _run([program.python, *program.options, *recorder, *program.words], directory, values, until, "it")
    if not trace.is_file():
        messages = [line for line in output.splitlines() if line.startswith("overlapscope:")]
        raise Failed(messages[-1].removeprefix("overlapscope: ") if messages else "nothing was recorded.", output)


def _run(command: Sequence[str], directory: Path, values: Mapping[str, str], until: float, what: str) -> str:
    """Run a command and return the end of its output. Raises Failed if it fails or takes too long."""
    with TemporaryFile() as printed:
        child = Child(command, cwd=directory, env=values, stdout=printed, stderr=subprocess.STDOUT)
        try:
            ended = child.ends_within(max(0.0, until - time.monotonic()))
        finally:
            child.end(term_s=_TERM_S)
        printed.seek(max(0, printed.seek(0, os.SEEK_END) - _KEPT_BYTES))
        output = printed.read(_KEPT_BYTES).decode(errors="replace")
    if not ended:
        raise Failed(f"{what} took too long (--timeout).", output)
    if child.returncode:
        lines = [line for line in output.splitlines() if line.strip()]
        last = f": {clean(lines[-1], 200)}" if lines else ""
        raise Failed(f"{what} {how_it_ended(child.returncode)}{last}", output)
    return output


def shown(program: BisectedProgram) -> str:
    """Return the command line as the user would write it."""
    return shlex.join(["python", *program.options, *program.words])
