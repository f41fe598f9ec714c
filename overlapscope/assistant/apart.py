"""Work in a separate process, whose memory, threads and limits end with it."""

from __future__ import annotations

import ctypes
import os
import pickle
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Final, NoReturn

_DIES_WITH_PARENT: Final = 1
"""Linux's number of the request to be killed when the parent ends."""
_BLOCK_BYTES: Final = 1 << 16
_turn: Final = Lock()


def apart(work: Callable[[], str], limit_s: float) -> str | None:
    """Return the text that `work` makes in a copy of this process. Only one copy exists at a time.

    Some SQL functions can't be interrupted, so only the end of their process frees their memory. Other systems than
    Linux don't support a copy of a process with threads, so `work` runs in this one there.

    Returns:
        The text; None if the process died, or took longer than the limit.

    Raises:
        Exception: `work` raised it.
    """
    if sys.platform != "linux":
        return work()
    # A limit on the memory of one copy is then a limit on all memory.
    with _turn:
        answer = _answer_of_copy(work, limit_s)
    if answer is None:
        return None
    text, error = pickle.loads(answer)
    if error is not None:
        raise error
    return str(text)


def _answer_of_copy(work: Callable[[], str], limit_s: float) -> bytes | None:
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python warns that other threads may hold locks. A copy that waits for a lock is killed at the limit.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _work(work, writing)
    os.close(writing)
    try:
        return _received(reading, time.monotonic() + limit_s)
    finally:
        os.close(reading)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _received(reading: int, deadline_s: float) -> bytes | None:
    """Return everything from the pipe; None if that is nothing, or doesn't end in time."""
    blocks: list[bytes] = []
    while select.select([reading], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
        block = os.read(reading, _BLOCK_BYTES)
        if not block:
            return b"".join(blocks) or None
        blocks.append(block)
    return None


def _work(work: Callable[[], str], writing: int) -> NoReturn:
    """Work in the copy, and end it."""
    with suppress(BaseException):
        ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)
        # Stdin and stdout belong to the client, and libraries that run out of memory write to stderr.
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(nowhere, standard)
        try:
            answer = pickle.dumps((work(), None))
        except Exception as error:
            answer = pickle.dumps((None, error))
        with open(writing, "wb") as pipe:
            pipe.write(answer)
    os._exit(0)
