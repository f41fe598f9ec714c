"""Runs of a program, one at a time, each in processes of its own, of which nothing is left."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from overlapscope.base.words import plural
from overlapscope.trials.child import environment
from overlapscope.trials.protocol import Outcome, Task

OUTPUT: Final = "output.txt"
_POLL_S: Final = 0.02
_GRACE_S: Final = 10.0
"""How long a program may take to end when all its steps are made."""


@dataclass(frozen=True, slots=True)
class Program:
    """What is run."""

    options: tuple[str, ...]
    """Of Python, which say what is run: `-m MODULE`, `-c CODE`, a script."""
    arguments: tuple[str, ...]
    launcher: tuple[str, ...] = ()
    """A command that starts Python itself: then it is run with `arguments` instead."""
    stdin: bytes = b""
    """What each run reads there."""
    launches: bool = False
    """It starts the processes that make steps."""
    text: str = ""
    """Its command line."""
    root: Path = Path()
    """The directory that its own files are in."""

    @property
    def command(self) -> list[str]:
        """As a person would start it, with this Python."""
        return [*(self.launcher or (sys.executable, *self.options)), *self.arguments]

    def recorded(self, *options: str) -> list[str]:
        """The same under `overlapscope run` with these options."""
        return [sys.executable, "-m", "overlapscope", "run", *options, *self.options, *self.arguments]


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that is over."""

    outcomes: tuple[Outcome, ...]
    """By rank: of those that told something."""
    exit_code: int | None
    """As Python has it; None where it had to be stopped before it was done."""
    output: str
    """What it printed."""
    wall_s: float

    @property
    def complete(self) -> bool:
        """Every rank has made its steps."""
        return _all_complete(self.outcomes)

    @property
    def how(self) -> str:
        """How it ended before its steps were made, in a sentence with its last line."""
        last = next((line.strip() for line in reversed(self.output.splitlines()) if line.strip()), "")
        words = f": {last}" if last else "."
        if self.exit_code is None:
            return f"It was stopped after {self.wall_s:.0f} s{words}"
        if self.exit_code < 0:
            return f"It was killed by signal {-self.exit_code}{words}"
        if self.exit_code:
            return f"It ended with exit code {self.exit_code}{words}"
        return f"It ended after {plural(max((one.all_steps for one in self.outcomes), default=0), 'step')}."


def run(command: Sequence[str], task: Task, *, stdin: bytes, cwd: Path, limit_s: float) -> Ended:
    """Run a command until its steps are made or it ends, at most so long. `task.directory` must be there."""
    directory = Path(task.directory)
    began = time.monotonic()
    with tempfile.TemporaryFile() as entered, open(directory / OUTPUT, "wb") as output:
        entered.write(stdin)
        entered.seek(0)
        process = subprocess.Popen(
            command,
            stdin=entered,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env={**os.environ, **environment(task)},
            # Ctrl-C is for us: what is under way is ended from here.
            start_new_session=True,
        )
        try:
            stopped = not _wait(process, directory, began + limit_s)
        finally:
            _end(process)
    return Ended(
        _outcomes(directory),
        None if stopped else process.returncode,
        (directory / OUTPUT).read_text(errors="replace"),
        time.monotonic() - began,
    )


def _wait(process: subprocess.Popen[bytes], directory: Path, until: float) -> bool:
    """Until it ends, or a while after its ranks have told that they are done. False where it took too long."""
    while process.poll() is None:
        now = time.monotonic()
        if now >= until:
            return False
        if _all_complete(_outcomes(directory)):
            until = min(until, now + _GRACE_S)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(until - now)
            return True
        time.sleep(_POLL_S)
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it, and whatever it has started that is still there."""
    if process.poll() is None:
        # A launcher ends its ranks itself, which are in sessions of their own.
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    _signal(process.pid, signal.SIGKILL)
    process.wait()


def _signal(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _outcomes(directory: Path) -> tuple[Outcome, ...]:
    """What ranks have told so far; each writes its file at once."""
    told = (msgspec.json.decode(path.read_bytes(), type=Outcome) for path in directory.glob("rank*.json"))
    return tuple(sorted(told, key=lambda outcome: outcome.rank))


def _all_complete(outcomes: Sequence[Outcome]) -> bool:
    return bool(outcomes) and len(outcomes) == outcomes[0].ranks and all(outcome.complete for outcome in outcomes)
