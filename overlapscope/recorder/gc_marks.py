"""Marks in the trace around the runs of Python's garbage collector, during which the thread does nothing else.

A mark is an op of the trace, which costs some 2 us for each run; `overlapscope.reading` moves it to the annotations. A
recording without ops has no marks, since annotations would cost ten times as much.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from typing import Any

from overlapscope.base.marks import GC_PAUSE
from overlapscope.recorder.gc_callback import gc_callback


class GcMarks:
    """Marks between `start` and `stop`, on each thread that is recorded."""

    def __init__(self) -> None:
        import torch

        marker: Any = torch._C._profiler._RecordFunctionFast
        mark = marker(GC_PAUSE)
        # There is one collection at a time. Leaving a mark that was not entered does nothing.
        self._callback = gc_callback(mark.__enter__, mark.__exit__)

    def start(self) -> None:
        """Mark all collections from now on."""
        if self._callback not in gc.callbacks:
            gc.callbacks.append(self._callback)

    def stop(self) -> None:
        """Stop marking."""
        with suppress(ValueError):
            gc.callbacks.remove(self._callback)
