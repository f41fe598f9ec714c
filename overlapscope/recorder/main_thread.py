"""What comes between two instructions of the main thread: signals, and what the recorder asks of it.

A signal's handler is called between any two instructions of the main thread, and may raise there: KeyboardInterrupt,
a timeout, a DataLoader that lost a worker. It waits while the recorder is in the middle of something.

SIGTERM and SIGHUP, where the program has no handler, end it at once, as without a recorder, even inside one long call
into C, where no handler in Python would be called. They wait only while a trace is written.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_add_pending, _interrupt = ctypes.pythonapi.Py_AddPendingCall, ctypes.pythonapi.PyErr_SetInterruptEx
_CALL = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_ENDING = (signal.SIGTERM, signal.SIGHUP)


class _Hold:
    """On the main thread, between the outermost `held` and its end."""

    def __init__(self) -> None:
        self.depth = 0
        self.handlers: dict[int, Any] = {}
        """The program's, where ours stand in for them."""
        self.came: list[int] = []

    def take(self, number: int, frame: FrameType | None) -> None:
        """In the place of a handler."""
        if number not in self.came:
            self.came.append(number)

    def end(self) -> None:
        for number, handler in self.handlers.items():
            if signal.getsignal(number) == self.take:
                signal.signal(number, handler)
        came, self.came = self.came, []
        self.handlers.clear()
        for number in came:
            if signal.getsignal(number) is signal.SIG_DFL:
                os.kill(os.getpid(), number)
        # The handlers are called at the main thread's next instruction, though not within a pending call of the
        # interpreter's: what is raised there is lost. So this is done by one, and no function may be entered any more
        # (see `Interruption`).
        for number in came:
            _add_pending(_interrupt, ctypes.c_void_p(number))


_hold = _Hold()


@contextmanager
def held() -> Iterator[None]:
    """Surround what `undisturbed` may be called in: signals that it puts off come at the end.

    This costs next to nothing.
    """
    if not _on_main_thread():
        yield
        return
    _hold.depth += 1
    try:
        yield
    finally:
        _hold.depth -= 1
        if not _hold.depth and _hold.handlers:
            _hold.end()


def undisturbed(*, even_by_the_end: bool = False) -> None:
    """From here to the end of `held`, put off what the program's handlers of signals do. Takes under 1 ms.

    `even_by_the_end` also puts off that SIGTERM and SIGHUP end a program without handlers for them.
    """
    if _hold.depth and _on_main_thread():
        for number in signal.valid_signals() - _hold.handlers.keys():
            handler = signal.getsignal(number)
            # Neither the system's default nor ignored. SIGURG wakes the thread (`Wake`).
            taken = callable(handler) and number != signal.SIGURG
            if taken or (even_by_the_end and number in _ENDING and handler is signal.SIG_DFL):
                _at_forks()
                _hold.handlers[number] = handler
                signal.signal(number, _hold.take)


@functools.cache
def _at_forks() -> None:
    os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_forked)


_forking = threading.local()


def _block() -> None:
    # In a child the signals must not come before they have been given back there: they would be lost.
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _forked() -> None:
    # Another thread may fork while the main thread writes.
    _hold.came.clear()
    _hold.end()
    _unblock()


def give_back(number: int, handler: Callable[..., Any]) -> None:
    """Let the system handle a signal again where this is its handler, on the main thread."""
    if signal.getsignal(number) == handler:
        signal.signal(number, signal.SIG_DFL)
    elif _hold.handlers.get(number) == handler:
        _hold.handlers[number] = signal.SIG_DFL


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


class Interruption:
    """Calls `function` on the main thread, soon after each `request`, from any thread. It must not raise.

    What is requested again before that is over comes behind it. No call must be pending while another is under way:
    with a Python profiler, as stacks need one, Python 3.11 then hangs when a function is entered.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        self._under_way = self._again = False

        def call(_: int | None) -> int:
            # A handler that raises in here is not heard of.
            with held():
                undisturbed()
                function()
            self._under_way = False
            if self._again:
                self.request()
            return 0

        # The interpreter keeps only its address: whoever asks must keep this object.
        self._call = _CALL(call)

    def request(self) -> bool:
        """False where the interpreter's list is full."""
        if self._under_way:
            self._again = True
            return True
        self._under_way, self._again = True, False
        return bool(_add_pending(self._call, None) == 0)


class Wake:
    """Has the main thread come to an instruction where it waits for a lock, a socket or the time, and then wait on.

    It takes a signal for that: SIGURG, which does nothing by itself, and which others wake threads with, too. Where the
    program has a handler for it, or the thread computes in C, nothing happens.
    """

    def start(self) -> None:
        """Take the signal. On another thread than the main one it does nothing."""
        main = _on_main_thread()
        if main and hasattr(signal, "SIGURG") and signal.getsignal(signal.SIGURG) is signal.SIG_DFL:
            signal.signal(signal.SIGURG, _nothing)

    def wake(self) -> None:
        """Wake it, from any thread."""
        if hasattr(signal, "SIGURG") and signal.getsignal(signal.SIGURG) is _nothing:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGURG)

    def stop(self) -> None:
        """Give the signal back, unless the program has taken it meanwhile."""
        if _on_main_thread() and hasattr(signal, "SIGURG"):
            give_back(signal.SIGURG, _nothing)


def _nothing(*_: object) -> None:
    """Between its instructions requests are attended to."""
