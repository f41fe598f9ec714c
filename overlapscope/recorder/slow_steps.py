"""Which step is a slow one."""

from __future__ import annotations

from collections import deque

from overlapscope.base.words import duration, plural, unit_for
from overlapscope.recorder.step_times import median_ns

_REMEMBERED = 1000
_FEWEST = 10
"""Steps that a median is made of."""


class SlowSteps:
    """Holds each step against the median of up to 1000 before it."""

    def __init__(self, times: float) -> None:
        self._times = times
        self._lengths_ns: deque[int] = deque(maxlen=_REMEMBERED)
        self._seen = 0

    def judge(self, step: int, length_ns: int) -> str | None:
        """A sentence where it took over `times` times the median."""
        lengths_ns, self._seen = self._lengths_ns, self._seen + 1
        usual_ns = median_ns(lengths_ns) if len(lengths_ns) >= _FEWEST else None
        lengths_ns.append(length_ns)
        if usual_ns is None or length_ns <= self._times * usual_ns:
            return None
        unit = unit_for(length_ns)
        return (
            f"Step {step} took {unit.text(length_ns)}, {length_ns / max(1, usual_ns):.1f} times the median of "
            f"{unit.text(usual_ns)} ({plural(len(lengths_ns) - 1, 'step')}, recorded ones like it)."
        )

    def none(self) -> str:
        """A sentence where none came."""
        if self._seen <= _FEWEST:
            return f"Only {plural(self._seen, 'step')} could be judged, too few to tell a slow one: there is no trace."
        usual_ns = median_ns(self._lengths_ns)
        return (
            f"No step took over {self._times:g} times the median of {duration(usual_ns)} "
            f"({plural(self._seen, 'step')} were judged): there is no trace."
        )
