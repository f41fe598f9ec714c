"""Signals and calls of the recorder's that interrupt the main thread between two instructions of Python.

Python calls a signal's handler between any two instructions of the main thread, and the handler may raise there:
KeyboardInterrupt, a timeout, a DataLoader that lost a worker. Handlers must not run inside the recorder's work, so
`held` surrounds that work, and `undisturbed` replaces the program's handlers until its end.

SIGTERM and SIGHUP without a handler end the program at once, even inside a long call into C. They are deferred only
while a trace is written, since a handler in Python would come too late for such a call.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_add_pending, _interrupt = ctypes.pythonapi.Py_AddPendingCall, ctypes.pythonapi.PyErr_SetInterruptEx
_CALL = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
_IMPORTS = "<frozen importlib._bootstrap>"
"""File of the frames in which a thread waits for a module that another thread imports."""
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGTRAP, signal.SIGSYS}
"""Signals that a fault of the thread itself raises."""


class _DeferredSignals:
    """Signals that came on the main thread between the outermost `held` and its end.

    `handlers` is empty outside of `held`: `end` gives back every handler that was replaced.
    """

    def __init__(self) -> None:
        self.depth = 0
        self.handlers: dict[int, Any] = {}
        """Handlers of the program that `defer` replaces, by signal."""
        self.received: list[int] = []
        """Numbers of the signals that came, each once."""

    def defer(self, number: int, frame: FrameType | None) -> None:
        """Note a signal, in place of the program's handler."""
        if number not in self.received:
            self.received.append(number)

    def replace(self, number: int, handler: Any) -> None:
        """Replace a handler of the program until `end`."""
        self.handlers[number] = handler
        signal.signal(number, self.defer)

    def end(self) -> None:
        """Give the handlers back, and let each signal that came have its effect."""
        for number, handler in self.handlers.items():
            if signal.getsignal(number) == self.defer:
                signal.signal(number, handler)
        self.handlers.clear()
        received, self.received = self.received, []
        for number in received:
            if signal.getsignal(number) is signal.SIG_DFL:
                os.kill(os.getpid(), number)
        # A pending call has Python call the handler at the main thread's next instruction. In the pending call itself,
        # an exception that the handler raises would be lost. No function may be entered after this (`Interruption`).
        for number in received:
            _add_pending(_interrupt, ctypes.c_void_p(number))


_deferred = _DeferredSignals()


@contextmanager
def held() -> Iterator[None]:
    """Surround work in which `undisturbed` may be called. Signals that it defers come at the end.

    This takes almost no time.
    """
    if not _on_main_thread():
        yield
        return
    _deferred.depth += 1
    try:
        yield
    finally:
        _deferred.depth -= 1
        if not _deferred.depth and _deferred.handlers:
            _deferred.end()


def undisturbed(*, even_by_the_end: bool = False) -> None:
    """Defer the program's handlers of signals until the end of `held`. Takes under 1 ms.

    With `even_by_the_end`, SIGTERM and SIGHUP without a handler, which would end the program, are deferred as well.
    """
    if _deferred.depth and _on_main_thread():
        for number in signal.valid_signals() - _deferred.handlers.keys():
            handler = signal.getsignal(number)
            # SIGURG wakes the thread (`Wake`), and must not be deferred.
            handled = callable(handler) and number != signal.SIGURG
            if handled or (even_by_the_end and number in _ENDING_SIGNALS and handler is signal.SIG_DFL):
                _at_forks()
                _deferred.replace(number, handler)


@functools.cache
def _at_forks() -> None:
    os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_forked)


_forking = threading.local()


def _block() -> None:
    # A signal that came to a child before its handlers are given back there would be lost.
    _forking.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING_SIGNALS)


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _forking.mask)


def _forked() -> None:
    # Another thread may fork while the main thread writes. The parent's signals are not for the child.
    _deferred.received.clear()
    _deferred.end()
    _unblock()


def give_back(number: int, handler: Callable[..., Any]) -> None:
    """Let the system handle a signal again if this is its handler. Call this on the main thread."""
    if signal.getsignal(number) == handler:
        signal.signal(number, signal.SIG_DFL)
    elif _deferred.handlers.get(number) == handler:
        _deferred.handlers[number] = signal.SIG_DFL


def _on_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


@contextmanager
def threads_without_signals() -> Iterator[None]:
    """Keep signals of the process from threads of ours and of the profiler's that start inside.

    A program may block signals on all threads that it knows, to wait for them (`signal.sigwait`). They would end it as
    soon as they came to a thread that doesn't block them.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - _FAULTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _signal_again(error: BaseException) -> None:
    """Have the signal whose handler has raised this come again after the pending call under way."""
    codes = {frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)}
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        of_c = handler is signal.default_int_handler and isinstance(error, KeyboardInterrupt)
        if of_c or getattr(handler, "__code__", None) in codes:
            _add_pending(_interrupt, ctypes.c_void_p(number))


class Interruption:
    """Calls `function`, which must not raise, on the main thread soon after each `request` from any thread.

    At most one call is pending or under way; a request during a call is met after it. Otherwise Python 3.11 hangs on
    entering a function if a Python profiler runs, as it does for stacks.
    """

    def __init__(self, function: Callable[[], None]) -> None:
        self.under_way = self._again = False
        """True from a request until its call is over."""

        def call(_: int | None) -> int:
            if sys._getframe(1).f_code.co_filename == _IMPORTS:
                # In Python 3.11, an import inside this wait makes the program's own import fail.
                self.under_way = False
                self.request()
                return 0
            # An exception that a handler raised in here would be lost, and one that leaves it ends the program.
            try:
                with held():
                    undisturbed()
                    function()
            except BaseException as error:
                _signal_again(error)
            self.under_way = False
            if self._again:
                self.request()
            return 0

        # The interpreter keeps only its address, so this object must outlive the pending call.
        self._call = _CALL(call)

    def request(self) -> None:
        """Request a call, unless the interpreter's list of pending calls is full."""
        if self.under_way:
            self._again = True
            return
        self.under_way, self._again = True, False
        if _add_pending(self._call, None):
            self.under_way = False


class Wake:
    """Wakes the main thread for an instruction while it waits for a lock, a socket or the time. It then waits on.

    The signal for that is SIGURG, which does nothing by itself. If the program has a handler for it, or if the thread
    computes in C, nothing happens.
    """

    def start(self) -> None:
        """Install a handler that does nothing. On other threads than the main thread, this has no effect."""
        if _on_main_thread() and signal.getsignal(signal.SIGURG) is signal.SIG_DFL:
            signal.signal(signal.SIGURG, _nothing)

    def wake(self) -> None:
        """Wake it, from any thread, unless it waits for an import (`Interruption`)."""
        thread = threading.main_thread().ident or 0
        frame = sys._current_frames().get(thread)
        if frame and frame.f_code.co_filename != _IMPORTS and signal.getsignal(signal.SIGURG) is _nothing:
            signal.pthread_kill(thread, signal.SIGURG)

    def stop(self) -> None:
        """Remove the handler, unless the program has replaced it meanwhile."""
        if _on_main_thread():
            give_back(signal.SIGURG, _nothing)


def _nothing(*_: object) -> None:
    """Let the main thread execute an instruction, before which Python makes the pending calls."""
