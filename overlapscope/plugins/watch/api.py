"""`overlapscope.watch`: letting users ask this process for recordings, by a socket."""

from __future__ import annotations

import atexit
import errno
import os
import queue
import select
import socket
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from overlapscope.base.output import tell
from overlapscope.errors import UsageError
from overlapscope.plugins.watch.protocol import (
    ClientMessage,
    RecordingBegun,
    RecordingRequest,
    RequestOutcome,
    StatusRequest,
    make_directory,
    receive,
    send,
    socket_of,
)
from overlapscope.plugins.watch.watcher import Watcher
from overlapscope.recorder.destination import rank_by_launcher

if TYPE_CHECKING:
    from overlapscope.plugins.watch.continuous import Continuous, WatchSettings


_watchers: dict[int, Watcher] = {}
"""Watchers by process id: at most one of this process, and those of processes that it was forked from."""
_continuous: dict[int, Continuous] = {}
"""Continuous recordings by process id, as in `_watchers`."""


def watch(
    every: str | None = None,
    *,
    steps: int = 3,
    keep: str = "200 MB",
    job: str | None = None,
    history: str | os.PathLike[str] | None = None,
    log: object = (),
) -> None:
    """Watch this process, so that `overlapscope record PID` can record it while it goes on.

    With `every`, some steps of rank 0 are also recorded at regular intervals, and analyzed in another process
    (`docs/guides/watch.md`). This function may be called again, and before torch is imported. Later failures are
    reported on stderr, each once, and never raised.

    Args:
        every: Interval between recordings, such as `"10 min"`.
        steps: Number of steps to record each time.
        keep: Maximum size of reports and traces on the disk.
        job: Name of the figures in the history, by default that of the script.
        history: File that figures are added to, by default the user's.
        log: Function that figures are sent to (`continuous.SentFigures`), on another thread, or a list of functions.

    Raises:
        UsageError: The arguments make no sense.
    """
    if every is not None:
        from overlapscope.plugins.watch.continuous import settings

        watch_continuously(settings(every, steps=steps, keep=keep, job=job, history=history, log=log))
        return
    if log != ():
        raise UsageError('log needs recordings to tell of; pass every, such as every="10 min".')
    watcher_of_this_process()


def watch_on_demand() -> None:
    """Watch this process, which runs a program of the user, and print how to record it."""
    place = rank_by_launcher(os.environ)
    if place is None or not place.number:
        tell(f"overlapscope: `overlapscope record {os.getpid()}` records this program while it goes on.")
    watch()


def watch_by_variable(value: str) -> None:
    """Call `watch` for the value of OVERLAPSCOPE_WATCH: `1`, or an interval such as `10min`."""
    try:
        watch(None if value == "1" else value)
    except UsageError as error:
        tell(f"overlapscope: OVERLAPSCOPE_WATCH is ignored: {error}")


def watch_continuously(settings: WatchSettings) -> Continuous:
    """Record at regular intervals, in place of earlier settings."""
    from overlapscope.plugins.watch.continuous import Continuous

    watcher, process = watcher_of_this_process(), os.getpid()
    if process in _continuous:
        _continuous[process].stop()
    _continuous[process] = Continuous(watcher, settings)
    return _continuous[process]


def watcher_of_this_process() -> Watcher:
    """Return the watcher of this process, which the first call starts."""
    process = os.getpid()
    if process in _watchers:
        return _watchers[process]
    watcher = _watchers[process] = Watcher()
    watcher.start()
    try:
        listen(watcher)
    except OSError as error:
        tell(f"overlapscope: this process cannot be asked for recordings: {error}.")
    return watcher


# -- The socket of this process, which answers requests there on separate threads -----------------------

_MAX_AT_ONCE: Final = 16
"""Maximum number of simultaneous requests."""
_PATIENCE_S: Final = 10.0
"""Time for a request to arrive after its connection, in seconds."""
_POLL_S: Final = 0.1
_LAST_S: Final = 0.5
"""Time for the last answers of a program that ends, in seconds."""
_ANSWERING: Final = "overlapscope answer"


def listen(watcher: Watcher) -> Path:
    """Answer requests until the process ends, and return the socket's path. Raises OSError if it cannot be made."""
    path = socket_of(make_directory(), os.getpid())
    # An earlier process had the same id.
    path.unlink(missing_ok=True)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    path.chmod(0o600)
    server.listen(_MAX_AT_ONCE)
    process = os.getpid()
    # Otherwise, requests would wait for a child that never answers.
    os.register_at_fork(after_in_child=server.close)

    def finish() -> None:
        # A forked child runs this, too.
        if os.getpid() != process:
            return
        with suppress(OSError):
            path.unlink()
        watcher.finish()
        until = time.monotonic() + _LAST_S
        for thread in threading.enumerate():
            if thread.name == _ANSWERING:
                thread.join(max(0.0, until - time.monotonic()))

    # A recording that began on this thread ends before that, since it registers later.
    atexit.register(finish)
    threading.Thread(target=_serve, args=(server, watcher), name="overlapscope socket", daemon=True).start()
    return path


def _serve(server: socket.socket, watcher: Watcher) -> None:
    room = threading.Semaphore(_MAX_AT_ONCE)
    while True:
        try:
            client, _ = server.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ECONNABORTED):
                time.sleep(_POLL_S)
                continue
            # The program closed it, as programs that become daemons do.
            return
        if not _is_ours(client) or not room.acquire(blocking=False):
            client.close()
            continue
        threading.Thread(target=_answer, args=(client, watcher, room), name=_ANSWERING, daemon=True).start()


def _is_ours(client: socket.socket) -> bool:
    """Return whether a process of this user asks, or true if unknown, since the directory is private."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    _, user, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return bool(user == os.getuid())


def _answer(client: socket.socket, watcher: Watcher, room: threading.Semaphore) -> None:
    # Requests come at any time, even during the import of torch, and must not disturb the program.
    with suppress(Exception), client:
        try:
            client.settimeout(_PATIENCE_S)
            with client.makefile("rb") as lines:
                match receive(lines, ClientMessage):
                    case StatusRequest():
                        send(client, watcher.status)
                    case RecordingRequest() as request:
                        _record(client, watcher, request)
        finally:
            room.release()


def _record(client: socket.socket, watcher: Watcher, request: RecordingRequest) -> None:
    outcomes: queue.SimpleQueue[RequestOutcome] = queue.SimpleQueue()
    watcher.ask(request, outcomes.put)
    gone = select.poll()
    gone.register(client, select.POLLIN)
    reported_begin = answered = False
    try:
        while not answered:
            with suppress(queue.Empty):
                outcome = outcomes.get(timeout=_POLL_S)
                answered = True
                send(client, outcome)
                return
            if not reported_begin and watcher.begun is not None:
                reported_begin = True
                send(client, RecordingBegun(watcher.begun))
            # The client sends nothing more, so this is the end of the connection.
            if gone.poll(0):
                return
    finally:
        if not answered:
            watcher.withdraw(request)
