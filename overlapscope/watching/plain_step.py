"""What a step of a running program takes."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

_TIMED: Final = 100
"""Steps: the latest ones, of which the plain step is known."""
_TOGETHER: Final = 20
"""Steps that are timed together: the host runs ahead of the GPU and waits for it at every tenth or so."""


class PlainStep:
    """What one took lately while nothing was recorded, by the host's clock."""

    def __init__(self) -> None:
        self._marks: deque[int] = deque(maxlen=_TIMED + 1)
        """Ends of steps between which nothing was recorded."""
        self._before: int | None = None
        """Before the last recording."""

    def mark(self, at_ns: int) -> None:
        """A step ended then."""
        self._marks.append(at_ns)

    def interrupt(self) -> None:
        """What comes next does not follow the last mark: something was recorded in between."""
        self._before = self.ns
        self._marks.clear()

    @property
    def ns(self) -> int | None:
        """The median of means of twenty steps each, in which a pause counts little; None before there are any."""
        marks = tuple(self._marks)
        together = min(_TOGETHER, len(marks) - 1)
        if together < 1 or (together < _TOGETHER and self._before is not None):
            return self._before
        begins = range(len(marks) - 1 - together, -1, -together)
        return round(median((marks[begin + together] - marks[begin]) / together for begin in begins))
