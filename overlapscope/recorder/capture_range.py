"""Opens and closes windows where the program enters and leaves a range, or calls cudaProfilerStart and Stop."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from overlapscope.recorder.schedule import CUDA_PROFILER_API
from overlapscope.recorder.wrapping import around

if TYPE_CHECKING:
    from overlapscope.recorder.recorder import Recorder


class CaptureRange:
    """Watches `record_function` and `torch.cuda.nvtx` for ranges of that name, or the two calls of the CUDA runtime.

    Only on the thread that starts it. `call` is called there where something is to be done, which `advance` does: at
    once, or with the next step where that cannot be.
    """

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self._name = name
        self._call = call
        self._thread = -1
        self._inside: object = None
        """The outermost of these ranges that is open: a `record_function`, or how deep an NVTX range lies."""
        self._depth = 0
        self._undo = contextlib.ExitStack()

    def start(self) -> None:
        """Wrap the functions. Imports torch."""
        import torch
        from torch.cuda import nvtx

        self._thread = threading.get_ident()
        if self._name != CUDA_PROFILER_API:
            self._around(torch.profiler.record_function, "__enter__", self._enters)
            self._around(torch.profiler.record_function, "__exit__", self._leaves)
            self._around(nvtx, "range_push", self._pushes)
            self._around(nvtx, "range_pop", self._pops)
        elif runtime := getattr(torch._C, "_cudart", None):
            # What `torch.cuda.profiler` goes through, too. PyTorch for CPUs has none.
            self._around(runtime, "cudaProfilerStart", self._starts)
            self._around(runtime, "cudaProfilerStop", self._stops)

    def stop(self) -> None:
        """Unwrap them."""
        self._undo.close()

    def advance(self, recorder: Recorder) -> None:
        """Open or close the window."""
        if self._inside is not None:
            recorder.open()
        else:
            recorder.close()

    def _enters(self, enter: Callable[..., Any], entered: Any) -> Any:
        if entered.name == self._name:
            self._open(entered)
        return enter(entered)

    def _leaves(self, leave: Callable[..., Any], left: Any, *error: Any) -> Any:
        try:
            return leave(left, *error)
        finally:
            self._close(left)

    def _pushes(self, push: Callable[..., Any], name: str, *args: Any, **options: Any) -> Any:
        if threading.get_ident() == self._thread:
            self._depth += 1
            if name == self._name:
                self._open(self._depth)
        return push(name, *args, **options)

    def _pops(self, pop: Callable[..., Any], *args: Any, **options: Any) -> Any:
        try:
            return pop(*args, **options)
        finally:
            if threading.get_ident() == self._thread:
                self._close(self._depth)
                self._depth -= 1

    def _starts(self, start: Callable[..., Any]) -> Any:
        self._open(self._name)
        return start()

    def _stops(self, stop: Callable[..., Any]) -> Any:
        self._close(self._name)
        return stop()

    def _open(self, opened: object) -> None:
        if self._inside is None and threading.get_ident() == self._thread:
            self._inside = opened
            self._call()

    def _close(self, closed: object) -> None:
        if self._inside is not None and self._inside == closed and threading.get_ident() == self._thread:
            self._inside = None
            self._call()

    def _around(self, owner: Any, name: str, call: Callable[..., Any]) -> None:
        self._undo.callback(around(owner, name, call))
