"""The step time of a running program without the profiler."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

_TIMED: Final = 100
"""Number of the latest steps that the step time is based on."""
_TOGETHER: Final = 20
"""Number of steps that are timed together, since the host runs ahead of the GPU and waits for it every ten or so."""


class PlainStepTimer:
    """The recent step time by the host's clock, without the profiler."""

    def __init__(self) -> None:
        self._marks: deque[int] = deque(maxlen=_TIMED + 1)
        """Ends of steps without a recording in between, in nanoseconds."""
        self._before: int | None = None
        """Step time before the last recording, in nanoseconds."""

    def mark(self, at_ns: int) -> None:
        """Note the end of a step."""
        self._marks.append(at_ns)

    def interrupt(self) -> None:
        """Note that something is recorded before the next mark."""
        self._before = self.ns
        self._marks.clear()

    @property
    def ns(self) -> int | None:
        """Median of the means of twenty steps each, in which pauses hardly count; None before the first steps."""
        marks = tuple(self._marks)
        together = min(_TOGETHER, len(marks) - 1)
        if together < 1 or (together < _TOGETHER and self._before is not None):
            return self._before
        begins = range(len(marks) - 1 - together, -1, -together)
        return round(median((marks[begin + together] - marks[begin]) / together for begin in begins))
