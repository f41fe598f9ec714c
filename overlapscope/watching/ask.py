"""Requests to watched processes of this user, for their status and for recordings."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from overlapscope.errors import UsageError
from overlapscope.recorder.destination import Destination, Rank
from overlapscope.watching import places
from overlapscope.watching.protocol import Ask, Begun, Lines, RecordingRequest, RequestOutcome, Said, Status, send

_PATIENCE_S: Final = 2.0
"""Time for a process to answer with its status, in seconds."""


class SilentProcess(msgspec.Struct, frozen=True, tag="silent"):
    """A watched process that doesn't answer."""

    pid: int
    stopped: bool
    """True if the system states that it is stopped, as by SIGSTOP."""


def statuses() -> list[Status]:
    """Return the status of each watched process of this user that answers, by process id."""
    return [process for process in processes() if isinstance(process, Status)]


def processes() -> list[Status | SilentProcess]:
    """Return all watched processes of this user, by process id. Sockets of dead processes are removed."""
    by_pid: dict[int, Status | SilentProcess] = {}
    for pid, path in places.sockets():
        try:
            status = _status(path)
        except TimeoutError:
            if lives(pid):
                by_pid.setdefault(pid, SilentProcess(pid, _stopped(pid)))
                continue
            status = None
        if status is not None:
            by_pid[pid] = status
        elif not lives(pid):
            with suppress(OSError):
                path.unlink()
    return [by_pid[pid] for pid in sorted(by_pid)]


def status_of(pid: int) -> Status:
    """Return the status of a process. Raises UsageError if it is not watched, or doesn't answer."""
    for number, path in places.sockets():
        try:
            if number == pid and (status := _status(path)) is not None:
                return status
        except TimeoutError:
            raise UsageError(f"process {pid} is watched, but does not answer; {why_silent(pid)}.") from None
    if not lives(pid):
        raise UsageError(f"there is no process {pid}; `overlapscope record --list` shows those that can be recorded.")
    raise UsageError(
        f"process {pid} is not watched, or is another user's. Start it with `overlapscope run --on-demand`, call "
        "overlapscope.watch() in it, or set OVERLAPSCOPE_WATCH=1 for it; on Python 3.14, --attach watches it as it is. "
        "`overlapscope record --list` shows what is watched."
    )


class Asking:
    """A request to a process for a recording."""

    def __init__(self, pid: int, request: RecordingRequest, rank: Rank | None = None) -> None:
        """Send the request. `rank` is the process's, if known. Raises UsageError if the process has ended."""
        self._pid = pid
        self._trace, self._asked_at_ns = Destination.asked(request.path).path(rank), time.time_ns()
        for number, path in places.sockets():
            if number == pid:
                try:
                    self._socket = _connected(path)
                    send(self._socket, request)
                except OSError:
                    break
                self._lines = Lines(self._socket)
                return
        raise UsageError(f"process {pid} is gone.")

    def __enter__(self) -> Asking:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection, on any thread. Before the outcome, this cancels the request."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def outcome(self, begun: Callable[[int], object], *, until_begun_s: float) -> RequestOutcome:
        """Wait for the outcome. The recording calls `begun(step)` within `until_begun_s` seconds."""
        self._socket.settimeout(until_begun_s)
        try:
            while (line := self._lines.receive()) is not None:
                match msgspec.json.decode(line, type=Said):
                    case Begun(step):
                        self._socket.settimeout(None)
                        begun(step)
                    case RequestOutcome() as outcome:
                        return outcome
        except TimeoutError:
            return RequestOutcome(
                failure=f"Process {self._pid} made no step for {until_begun_s:.0f} s. --seconds records by time."
            )
        except (OSError, UsageError, msgspec.MsgspecError):
            pass
        with suppress(OSError):
            # If the file exists, it is complete.
            if self._trace.stat().st_mtime_ns >= self._asked_at_ns:
                note = f"Process {self._pid} ended before all was timed that follows the recording."
                return RequestOutcome(path=str(self._trace), notes=(note,))
        return RequestOutcome(failure=f"Process {self._pid} ended before its recording was complete.")


def _connected(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.settimeout(_PATIENCE_S)
    try:
        client.connect(str(path))
    except OSError:
        client.close()
        raise
    return client


def _status(path: Path) -> Status | None:
    """Return the status of the process with this socket; None without one. Raises TimeoutError if it doesn't answer."""
    try:
        with _connected(path) as client:
            send(client, Ask())
            line = Lines(client).receive()
        answer = None if line is None else msgspec.json.decode(line, type=Said)
    except TimeoutError:
        raise
    except (OSError, UsageError, msgspec.MsgspecError):
        return None
    return answer if isinstance(answer, Status) else None


def why_silent(pid: int) -> str:
    """Return why a process may not answer, as far as the system knows."""
    if _stopped(pid):
        return f"it is stopped, and `kill -CONT {pid}` continues it"
    return "it may be stopped, or in a call that holds Python's lock; try again"


def _stopped(pid: int) -> bool:
    """Return whether the system states that a process is stopped. Other systems than Linux don't."""
    with suppress(OSError, IndexError):
        # The name of the program, in parentheses, may hold anything.
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"T", b"t")
    return False


def lives(pid: int) -> bool:
    """Return whether such a process of any user exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
