"""The worker process, as its parent sees it."""

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

import msgspec

from overlapscope.base.child import Child, how_it_ended
from overlapscope.plugins.laboratory.protocol import (
    COMMANDS,
    EVENTS,
    POLL_S,
    Command,
    Event,
    Inbox,
    Outbox,
    RankStarted,
    Stop,
)

_WORKER = "overlapscope.plugins.laboratory.worker"
_GRACE_S = 10.0
"""Seconds that a worker has to exit by itself."""
_LAST_LINES = 3
_CRASH = re.compile(r"Fatal Python error: .*")
_CRASHED_AT = re.compile(r"^Current thread .*\n\s*(.+)", re.MULTILINE)
_SIGNALLED = re.compile(r"Signal (\d+) \(SIG")


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
