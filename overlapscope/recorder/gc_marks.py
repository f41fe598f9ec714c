"""Marks in the trace around the runs of Python's garbage collector, during which the thread does nothing else.

A mark is an op of the trace, which costs some 2 us for each run; `overlapscope.reading` moves it to the annotations. A
recording without ops has no marks, since annotations would cost ten times as much.
"""

from __future__ import annotations

import gc
import threading
from contextlib import suppress
from typing import Any

from overlapscope.base.marks import GC_PAUSE

_GENERATIONS = 3


class GcMarks:
    """Marks between `start` and `stop`, on the thread that calls both."""

    def __init__(self) -> None:
        import torch

        marker: Any = torch._C._profiler._RecordFunctionFast
        self._markers = [marker(f"{GC_PAUSE}{generation}") for generation in range(_GENERATIONS)]
        self._open: Any = None
        self._thread = 0

    def start(self) -> None:
        """Begin to mark the collections of the calling thread, unless this has begun already."""
        if not self._thread:
            self._thread = threading.get_ident()
            gc.callbacks.append(self._called)

    def stop(self) -> None:
        """Stop marking."""
        with suppress(ValueError):
            gc.callbacks.remove(self._called)

    def _called(self, phase: str, info: dict[str, int]) -> None:
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._open = self._markers[info["generation"]]
            self._open.__enter__()
        elif self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None
