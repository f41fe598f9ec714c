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
    """Marks between `start` and `stop`, on the thread that called `start` last."""

    def __init__(self) -> None:
        import torch

        marker: Any = torch._C._profiler._RecordFunctionFast
        self._markers = [marker(f"{GC_PAUSE}{generation}") for generation in range(_GENERATIONS)]
        self._open: Any = None
        self._thread = 0

    def start(self) -> None:
        """Mark the collections of the calling thread."""
        if not self._thread:
            gc.callbacks.append(self._called)
        self._thread = threading.get_ident()

    def stop(self) -> None:
        """Stop marking."""
        with suppress(ValueError):
            gc.callbacks.remove(self._called)

    def _called(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start" and threading.get_ident() == self._thread:
            self._open = self._markers[info["generation"]]
            self._open.__enter__()
        elif phase == "stop" and self._open is not None:
            # There is one collection at a time.
            self._open.__exit__(None, None, None)
            self._open = None
