"""The worker process, as its parent sees it, and the messages between the two."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Generic, Literal, TypeVar

import msgspec

from overlapscope.base.child import Child, how_it_ended
from overlapscope.plugins.laboratory.experiment import WrongResults
from overlapscope.plugins.laboratory.results import Machine, TimeSpread

# -- Messages ----------------------------------------------------------------------------------------
# Each side appends lines of JSON to a file of its own. These survive a process that dies at any moment, and every rank
# of a job reads the same commands.

COMMANDS, EVENTS = "commands.jsonl", "events.jsonl"
POLL_S = 0.02

Phase = Literal["preparing", "timing", "recording"]

T = TypeVar("T")


class DescribeMachine(msgspec.Struct, frozen=True, tag=True):
    """Request that is answered by `MachineDescribed`."""


class RunVariant(msgspec.Struct, frozen=True, tag=True):
    """Request that each rank answers with `Began` for each phase, `VariantMeasured` for results, and `Ended`."""

    path: str
    """Scenario file."""
    variant: str
    scale: str
    repeat: int
    trace: str
    """File to record into."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Request to exit."""


Command = DescribeMachine | RunVariant | Stop


class RankStarted(msgspec.Struct, frozen=True, tag=True):
    """Message of a rank that has started."""

    rank: int
    pid: int


class MachineDescribed(msgspec.Struct, frozen=True, tag=True):
    """The machine, as the worker sees it."""

    machine: Machine


class Began(msgspec.Struct, frozen=True, tag=True):
    """Message of a rank that has begun a phase."""

    rank: int
    phase: Phase


class VariantMeasured(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """All results so far of a rank for the variant it runs."""

    rank: int
    wall_ms: TimeSpread | None = None
    host_ms: TimeSpread | None = None
    figures: dict[str, float | None] = {}
    wrong_results: WrongResults | None = None
    trace: str | None = None
    notes: tuple[str, ...] = ()


class Ended(msgspec.Struct, frozen=True, tag=True):
    """Message of a rank that has finished the variant."""

    rank: int
    error: str | None = None
    """Error, if any."""


Event = RankStarted | MachineDescribed | Began | VariantMeasured | Ended


class Outbox:
    """Writer of messages to a file, each in one write, so that those of several processes don't mix."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def send(self, message: Command | Event) -> None:
        os.write(self._file, msgspec.json.encode(message) + b"\n")

    def close(self) -> None:
        os.close(self._file)


class Inbox(Generic[T]):
    """Reader of a file of messages, which need not exist yet."""

    def __init__(self, path: Path, decoder: msgspec.json.Decoder[T]) -> None:
        self._path = path
        self._decoder = decoder
        self._read = 0

    def poll(self) -> list[T]:
        """Return the messages written since the last call."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        lines = data[: data.rfind(b"\n") + 1]
        self._read += len(lines)
        return [self._decoder.decode(line) for line in lines.splitlines()]


_WORKER = "overlapscope.plugins.laboratory.worker"
_GRACE_S = 10.0
"""Seconds that a worker has to exit by itself."""
_LAST_LINES = 3
_CRASH = re.compile(r"Fatal Python error: .*")
_CRASHED_AT = re.compile(r"^Current thread .*\n\s*(.+)", re.MULTILINE)
_SIGNALLED = re.compile(r"Signal (\d+) \(SIG")


# -- The process -------------------------------------------------------------------------------------


class WorkerDied(Exception):
    """The process ended, or was ended, before its work was done; the text says how, as far as is known."""


class Worker:
    """A process that runs variants, or one for each rank of a job; started by entering the context."""

    def __init__(self, *, ranks: int = 1) -> None:
        self._ranks = ranks
        self._pids: list[int] = []
        self._unread: deque[Event] = deque()
        self._abandoned = False

    def __enter__(self) -> Worker:
        self._directory = tempfile.TemporaryDirectory(prefix="overlapscope-")
        place = Path(self._directory.name)
        self._log = place / "output"
        self._commands = Outbox(place / COMMANDS)
        self._events = Inbox(place / EVENTS, msgspec.json.Decoder(Event))
        with open(self._log, "wb") as output:
            command = [*self._launcher(), _WORKER, str(place)]
            self._child = Child(command, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT)
        return self

    def _launcher(self) -> list[str]:
        if self._ranks == 1:
            return [sys.executable, "-X", "faulthandler", "-m"]
        job = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(self._ranks)]
        return [sys.executable, "-m", *job, "-m"]

    def send(self, command: Command) -> None:
        """Send the worker a command."""
        self._commands.send(command)

    def events(self) -> Iterator[Event]:
        """Yield the worker's events as they come.

        Raises:
            WorkerDied: The worker has ended.
        """
        while True:
            ended = self._child.poll() is not None
            self._unread.extend(self._events.poll())
            while self._unread:
                event = self._unread.popleft()
                if isinstance(event, RankStarted):
                    self._pids.append(event.pid)
                yield event
            if ended:
                raise WorkerDied(self._how_it_ended())
            time.sleep(POLL_S)

    def abandon(self) -> None:
        """Give the worker up: leaving the context does not wait for its unfinished work."""
        self._abandoned = True

    def output(self) -> str:
        """Return the output of the worker and its programs."""
        return self._log.read_text(errors="replace")

    def _how_it_ended(self) -> str:
        output = self.output()
        signalled = _SIGNALLED.search(output) if self._ranks > 1 else None
        code = -int(signalled[1]) if signalled else self._child.returncode
        why = ", perhaps because the machine ran out of memory" if code == -signal.SIGKILL else ""
        return f"its process {how_it_ended(code)}{why}{_last_words(output)}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._abandoned:
            self.send(Stop())
            self._child.ends_within(_GRACE_S)
        if self._child.stdin is not None:
            self._child.stdin.close()
        if not self._child.ends_within(_GRACE_S):
            # Ranks, which may be stuck in a call, have sessions of their own.
            for pid in self._pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._child.end()
        self._commands.close()
        self._directory.cleanup()


def _last_words(output: str) -> str:
    """Return the end of the output as a part of a sentence; after a crash, the crash and its place in Python."""
    crash, where = _CRASH.search(output), _CRASHED_AT.search(output)
    if crash is not None:
        shown = [crash[0], *([where[1]] if where else [])]
    else:
        shown = [line.strip() for line in output.splitlines() if line.strip()][-_LAST_LINES:]
    return f"; its last words: {' | '.join(shown)}" if shown else ""
