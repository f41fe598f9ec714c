"""Runs of a program, one at a time, each in processes of its own, of which nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Final

import msgspec

from overlapscope.base.child import Child
from overlapscope.trials.child import environment
from overlapscope.trials.program import EndedRun, all_complete
from overlapscope.trials.protocol import RankOutcome, Task

OUTPUT: Final = "output.txt"
_KEPT_BYTES: Final = 1 << 18
"""The end of the output, in which a run says how it ended."""
_POLL_S: Final = 0.02
_GRACE_S: Final = 3.0
"""How long a program may take to end after its last step, before SIGTERM."""
_TERM_S: Final = 10.0
"""How long it may take to end after SIGTERM."""


class CommandLine(msgspec.Struct, frozen=True):
    """A command line that is run."""

    options: tuple[str, ...]
    """Of Python, which say what is run: `-m MODULE`, `-c CODE`, a script."""
    arguments: tuple[str, ...]
    launcher: tuple[str, ...]
    """A command that starts Python itself, which is run with `arguments` then; else empty."""
    records: bool
    """It makes its steps itself, and does not start others that do."""
    text: str
    root: Path
    stdin: bytes
    """What each run reads there."""
    scratch: bool
    """Each run has an empty working directory."""

    def run(self, task: Task, limit_s: float) -> EndedRun:
        """As a person would start it, with this Python."""
        return self._run(self._command, {**os.environ, **environment(task)}, task.directory, limit_s)

    def alone(self, directory: str, limit_s: float) -> EndedRun:
        """Run it without overlapscope."""
        return self._run(self._command, dict(os.environ), directory, limit_s)

    def record(self, task: Task, limit_s: float, options: Sequence[str]) -> EndedRun:
        """The same under `overlapscope run`."""
        recorder = (sys.executable, "-m", "overlapscope", "run", "--stop-after-recording", *options)
        command = (*recorder, *self.options, *self.arguments)
        return self._run(command, {**os.environ, **environment(task)}, task.directory, limit_s)

    @property
    def _command(self) -> tuple[str, ...]:
        return (*(self.launcher or (sys.executable, *self.options)), *self.arguments)

    def _run(self, command: Sequence[str], variables: dict[str, str], directory: str, limit_s: float) -> EndedRun:
        if not self.scratch:
            return run(command, variables, Path(directory), Path.cwd(), self.stdin, limit_s)
        # Modules are found where they were.
        path = [part for part in variables.get("PYTHONPATH", "").split(os.pathsep) if part]
        here = [""] if self.options[0] in ("-m", "-c") else []
        variables["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, [*path, *here]))
        with TemporaryDirectory(prefix="overlapscope-") as empty:
            return run(command, variables, Path(directory), Path(empty), self.stdin, limit_s)


def run(
    command: Sequence[str], variables: Mapping[str, str], directory: Path, cwd: Path, stdin: bytes, limit_s: float
) -> EndedRun:
    """Run a command until its steps are made or it ends, at most so long. Outcomes and output are in `directory`."""
    began = time.monotonic()
    with TemporaryFile() as entered, open(directory / OUTPUT, "wb") as output:
        entered.write(stdin)
        entered.seek(0)
        child = Child(command, stdin=entered, stdout=output, stderr=subprocess.STDOUT, cwd=cwd, env=variables)
        try:
            stopped = not _wait(child, directory, began + limit_s)
        finally:
            # After SIGTERM a launcher ends its ranks, which have sessions of their own.
            child.end(term_s=_TERM_S)
    return EndedRun(
        _outcomes(directory),
        None if stopped else child.returncode,
        _end_of(directory / OUTPUT),
        time.monotonic() - began,
    )


def _end_of(path: Path) -> str:
    """The last of what is printed, which may be more than fits into memory."""
    with open(path, "rb") as output:
        output.seek(max(0, output.seek(0, os.SEEK_END) - _KEPT_BYTES))
        return output.read(_KEPT_BYTES).decode(errors="replace")


def _wait(child: Child, directory: Path, until: float) -> bool:
    """Until it ends, or a while after its ranks have told that they are done. False where it took too long."""
    while child.poll() is None:
        now = time.monotonic()
        if now >= until:
            return False
        if all_complete(_outcomes(directory)):
            child.ends_within(min(until - now, _GRACE_S))
            return True
        time.sleep(_POLL_S)
    return True


def _outcomes(directory: Path) -> tuple[RankOutcome, ...]:
    """What ranks have told so far; each writes its file at once."""
    told = (msgspec.json.decode(path.read_bytes(), type=RankOutcome) for path in directory.glob("rank*.json"))
    return tuple(sorted(told, key=lambda outcome: outcome.rank))
