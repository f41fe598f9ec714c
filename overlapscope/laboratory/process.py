"""The worker process, as seen by whoever gives it work."""

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

from overlapscope.laboratory.protocol import COMMANDS, EVENTS, POLL_S, Command, Event, Inbox, Outbox, RankStarted, Stop

_WORKER = "overlapscope.laboratory.worker"
_GRACE_S = 10.0
"""How long a worker may take to leave by itself."""
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
            self._process = subprocess.Popen(
                [*self._launcher(), _WORKER, str(place)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for us: what is under way is ended from here.
                start_new_session=True,
            )
        return self

    def _launcher(self) -> list[str]:
        if self._ranks == 1:
            return [sys.executable, "-X", "faulthandler", "-m"]
        job = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(self._ranks)]
        return [sys.executable, "-m", *job, "-m"]

    def send(self, command: Command) -> None:
        """Give it something to do."""
        self._commands.send(command)

    def events(self) -> Iterator[Event]:
        """What it says, as it says it. Raises WorkerDied where it ends."""
        while True:
            ended = self._process.poll() is not None
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
        """It is of no more use; leaving the context does not wait for what it is still at."""
        self._abandoned = True

    def output(self) -> str:
        """What it and its programs have printed."""
        return self._log.read_text(errors="replace")

    def _how_it_ended(self) -> str:
        output = self.output()
        code = self._process.returncode
        signalled = _SIGNALLED.search(output) if self._ranks > 1 else None
        number = int(signalled[1]) if signalled else -code
        if number > 0:
            how = f"was killed by {_signal_name(number)}"
            how += ", perhaps because the machine ran out of memory" if number == signal.SIGKILL else ""
        else:
            how = f"exited with code {code}"
        return f"its process {how}{_last_words(output)}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._abandoned:
            self.send(Stop())
            self._wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        if self._process.poll() is None:
            self._wait()
        self._kill()
        self._process.wait()
        self._commands.close()
        self._directory.cleanup()

    def _wait(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)

    def _kill(self) -> None:
        """End what has not left by itself: ranks stuck in a call, and what programs started."""
        if self._process.poll() is None:
            for pid in self._pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _last_words(output: str) -> str:
    """The end of what was printed, as a part of a sentence; of a crash, where Python was."""
    crash, where = _CRASH.search(output), _CRASHED_AT.search(output)
    if crash is not None:
        shown = [crash[0], *([where[1]] if where else [])]
    else:
        shown = [line.strip() for line in output.splitlines() if line.strip()][-_LAST_LINES:]
    return f"; its last words: {' | '.join(shown)}" if shown else ""
