"""Has the main thread do something between two of its instructions, as a signal would, without taking a signal."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from overlapscope.recorder.termination import held, undisturbed

_CALL = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class Interruption:
    """Calls `function` on the main thread, soon after each `request`, from any thread. It must not raise."""

    def __init__(self, function: Callable[[], None]) -> None:
        def call(_: int | None) -> int:
            # A handler that raises in here is not heard of.
            with held():
                undisturbed()
                function()
            return 0

        # The interpreter keeps only its address: whoever asks must keep this object.
        self._call = _CALL(call)

    def request(self) -> bool:
        """False where the interpreter's list is full."""
        return bool(ctypes.pythonapi.Py_AddPendingCall(self._call, None) == 0)
