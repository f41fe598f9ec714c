"""Has the main thread do something between two of its instructions, as a signal would, without taking a signal."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from overlapscope.recorder.termination import held, undisturbed

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
