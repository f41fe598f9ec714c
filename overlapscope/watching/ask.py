"""Asks watched processes of this user: which there are, and for recordings."""

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
from overlapscope.watching.protocol import Ask, Begun, Lines, Outcome, Request, Said, Status, send

_PATIENCE_S: Final = 2.0
"""For a process to say how it is."""


def statuses() -> list[Status]:
    """Of all watched processes of this user, by their ids. What processes left that are dead is removed."""
    found = {}
    for pid, path in places.sockets():
        status = _status(path)
        if status is not None:
            found[pid] = status
        elif not lives(pid):
            with suppress(OSError):
                path.unlink()
    return [found[pid] for pid in sorted(found)]


def status_of(pid: int) -> Status:
    """Raises UsageError where it is not watched."""
    for number, path in places.sockets():
        if number == pid and (status := _status(path)) is not None:
            return status
    if not lives(pid):
        raise UsageError(f"there is no process {pid}; `overlapscope ps` lists those that can be recorded.")
    raise UsageError(
        f"process {pid} is not watched, or is another user's. Start it with `overlapscope run --on-demand`, call "
        "overlapscope.watch() in it, or set OVERLAPSCOPE_WATCH=1 for it; `overlapscope ps` lists what is watched."
    )


class Asking:
    """A recording that one process was asked for."""

    def __init__(self, pid: int, request: Request, rank: Rank | None = None) -> None:
        """`rank` is the process's, if it has one. Raises UsageError where the process has gone."""
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
        """Whoever goes before there is an outcome withdraws the request. On any thread."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def outcome(self, begun: Callable[[int], object], *, until_begun_s: float) -> Outcome:
        """What becomes of it; `begun(step)` is called when it has begun, which may take so long."""
        self._socket.settimeout(until_begun_s)
        try:
            while (line := self._lines.receive()) is not None:
                match msgspec.json.decode(line, type=Said):
                    case Begun(step):
                        self._socket.settimeout(None)
                        begun(step)
                    case Outcome() as outcome:
                        return outcome
        except TimeoutError:
            return Outcome(
                failure=f"Process {self._pid} made no step for {until_begun_s:.0f} s. --seconds records by time."
            )
        except (OSError, UsageError, msgspec.MsgspecError):
            pass
        with suppress(OSError):
            # It is there whole or not at all.
            if self._trace.stat().st_mtime_ns >= self._asked_at_ns:
                note = f"Process {self._pid} ended before all was timed that follows the recording."
                return Outcome(path=str(self._trace), notes=(note,))
        return Outcome(failure=f"Process {self._pid} ended before its recording was complete.")


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
    with suppress(OSError, UsageError, msgspec.MsgspecError), _connected(path) as client:
        send(client, Ask())
        line = Lines(client).receive()
        said = None if line is None else msgspec.json.decode(line, type=Said)
        return said if isinstance(said, Status) else None
    return None


def lives(pid: int) -> bool:
    """Return whether there is such a process, whoever's it is."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
