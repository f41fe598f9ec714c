"""Runs of a program, one at a time, each in processes of its own, none of which remain."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Final

import msgspec

from overlapscope.base.child import Child
from overlapscope.plugins.trials.protocol import EndedRun, RankOutcome, Task, TrialProgram, all_complete
from overlapscope.recorder import at_import

OUTPUT: Final = "output.txt"
_HELPER = "compile_worker"
"""Part of the command line of a process that compiles for torch.compile."""
_KEPT_BYTES: Final = 1 << 18
"""Bytes of output to keep from the end, where a run states how it ended."""
_POLL_S: Final = 0.02
_GRACE_S: Final = 3.0
"""Maximum time for a program to end after its last step, before SIGTERM."""
_TERM_S: Final = 10.0
"""Maximum time for it to end after SIGTERM."""


class CommandLine(TrialProgram, frozen=True, kw_only=True):
    """A command line to run."""

    options: tuple[str, ...]
    """Python's options that state what to run: `-m MODULE`, `-c CODE`, or a script."""
    arguments: tuple[str, ...]
    launcher: tuple[str, ...]
    """Command that starts Python itself, to run with `arguments`; else empty."""
    stdin: bytes
    """Standard input of each run."""
    scratch: bool
    """True if each run has an empty working directory."""

    def run(self, task: Task, limit_s: float) -> EndedRun:
        # As a person would, with this Python.
        return self._run(self._command, {**os.environ, **environment(task)}, task.directory, limit_s)

    def alone(self, directory: str, limit_s: float) -> EndedRun:
        return self._run(self._command, dict(os.environ), directory, limit_s)

    def record(self, task: Task, limit_s: float, options: Sequence[str]) -> EndedRun:
        recorder = (sys.executable, "-m", "overlapscope", "run", "--stop-after-recording", *options)
        command = (*recorder, *self.options, *self.arguments)
        return self._run(command, {**os.environ, **environment(task)}, task.directory, limit_s)

    @property
    def _command(self) -> tuple[str, ...]:
        return (*(self.launcher or (sys.executable, *self.options)), *self.arguments)

    def _run(self, command: Sequence[str], variables: dict[str, str], directory: str, limit_s: float) -> EndedRun:
        if not self.scratch:
            return run(command, variables, Path(directory), Path.cwd(), self.stdin, limit_s)
        # Keep finding modules in the former working directory.
        path = [part for part in variables.get("PYTHONPATH", "").split(os.pathsep) if part]
        here = [""] if self.options[0] in ("-m", "-c") else []
        variables["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, [*path, *here]))
        with TemporaryDirectory(prefix="overlapscope-") as empty:
            return run(command, variables, Path(directory), Path(empty), self.stdin, limit_s)


def environment(task: Task) -> dict[str, str]:
    """Return environment variables that make a program, and every Python process that it starts, do a task."""
    return {at_import.CALL: f"{__name__}:watch {msgspec.json.encode(task).decode()}", "PYTHONHASHSEED": "0"}


def watch(text: str) -> None:
    """Begin a task, which is given in JSON, in such a process, once torch is imported."""
    if any(_HELPER in part for part in sys.orig_argv):
        return
    try:
        from overlapscope.plugins.trials.inside import ProcessRun

        ProcessRun(msgspec.json.decode(text, type=Task)).begin()
    except Exception:
        # The program continues without the task. The parent finds no outcome, and this traceback in the output.
        traceback.print_exc()


def run(
    command: Sequence[str], variables: Mapping[str, str], directory: Path, cwd: Path, stdin: bytes, limit_s: float
) -> EndedRun:
    """Run a command until its steps are made, it ends, or the limit is over.

    Outcomes and output are in `directory`.

    Returns:
        How the run ended, and its outcomes.
    """
    began = time.monotonic()
    with TemporaryFile() as entered, open(directory / OUTPUT, "wb") as output:
        entered.write(stdin)
        entered.seek(0)
        child = Child(command, stdin=entered, stdout=output, stderr=subprocess.STDOUT, cwd=cwd, env=variables)
        try:
            stopped = not _wait(child, directory, began + limit_s)
        finally:
            # After SIGTERM, a launcher ends its ranks, which have sessions of their own.
            child.end(term_s=_TERM_S)
    with open(directory / OUTPUT, "rb") as printed:
        # It may be larger than memory.
        printed.seek(max(0, printed.seek(0, os.SEEK_END) - _KEPT_BYTES))
        output_end = printed.read(_KEPT_BYTES).decode(errors="replace")
    return EndedRun(
        _outcomes(directory),
        None if stopped else child.returncode,
        output_end,
        time.monotonic() - began,
    )


def _wait(child: Child, directory: Path, until: float) -> bool:
    """Wait until it ends, or briefly after its ranks have finished. Return False if it took too long."""
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
    """Return the outcomes that ranks have reported so far; each writes its file at once."""
    outcomes = (msgspec.json.decode(path.read_bytes(), type=RankOutcome) for path in directory.glob("rank*.json"))
    return tuple(sorted(outcomes, key=lambda outcome: outcome.rank))
