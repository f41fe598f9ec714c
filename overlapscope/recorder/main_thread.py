"""Has the main thread do something between two of its instructions, as a signal would."""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable

from overlapscope.recorder.termination import give_back, held, undisturbed

_add_pending = ctypes.pythonapi.Py_AddPendingCall
_CALL = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


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
        main = threading.current_thread() is threading.main_thread()
        if main and hasattr(signal, "SIGURG") and signal.getsignal(signal.SIGURG) is signal.SIG_DFL:
            signal.signal(signal.SIGURG, _nothing)

    def wake(self) -> None:
        """Wake it, from any thread."""
        if hasattr(signal, "SIGURG") and signal.getsignal(signal.SIGURG) is _nothing:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGURG)

    def stop(self) -> None:
        """Give the signal back, unless the program has taken it meanwhile."""
        if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGURG"):
            give_back(signal.SIGURG, _nothing)


def _nothing(*_: object) -> None:
    """Between its instructions requests are attended to."""
