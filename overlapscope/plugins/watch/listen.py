"""The socket of a watched process, which answers requests there on separate threads."""

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
from typing import Final

import msgspec

from overlapscope.plugins.watch.protocol import (
    Ask,
    Asked,
    Begun,
    Lines,
    RecordingRequest,
    RequestOutcome,
    make_directory,
    send,
    socket_of,
)
from overlapscope.plugins.watch.watcher import Watcher

_MOST_AT_ONCE: Final = 16
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
    server.listen(_MOST_AT_ONCE)
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
    room = threading.Semaphore(_MOST_AT_ONCE)
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
            line = Lines(client).receive()
            if line is not None:
                match msgspec.json.decode(line, type=Asked):
                    case Ask():
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
                send(client, Begun(watcher.begun))
            # The client sends nothing more, so this is the end of the connection.
            if gone.poll(0):
                return
    finally:
        if not answered:
            watcher.withdraw(request)
