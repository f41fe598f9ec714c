"""What a recording found a step to take, in words, and which step is a slow one."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from overlapscope.base.drift import drifted
from overlapscope.base.words import duration, plural, unit_for

_REMEMBERED = 1000
_FEWEST = 10
"""Steps that a median is made of."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Lengths of steps by the host's clock, in nanoseconds."""

    before_ns: tuple[int, ...]
    after_ns: tuple[int, ...]
    """Right before and right behind the recording, while nothing was recorded."""
    recorded_ns: tuple[int, ...]
    """The judged steps of the recording."""
    asked: int
    """So many were to be timed on either side."""

    @property
    def changed(self) -> bool:
        """Whether steps behind the recording took longer, or less long, than before it."""
        return drifted(self.before_ns, self.after_ns)

    def sentence(self) -> str | None:
        """Half of `overlapscope: ...`: what a step takes, recorded and not; None where none was timed."""
        plain_ns = (*self.before_ns, *self.after_ns)
        if not plain_ns:
            return None
        recorded_ns = median_ns(self.recorded_ns) if self.recorded_ns else 0
        unit = unit_for(max(recorded_ns, median_ns(plain_ns)))
        if self.changed:
            said = (
                f"a step takes {unit.text(median_ns(self.before_ns))} before the recording and "
                f"{unit.text(median_ns(self.after_ns))} after it: the program or the machine changed."
            )
            return f"{said} While it is recorded, it takes {unit.text(recorded_ns)}." if recorded_ns else said
        few = "" if len(plain_ns) >= self.asked else f" ({plural(len(plain_ns), 'step')} timed)"
        recorded = f", and {unit.text(recorded_ns)} while it is recorded" if recorded_ns else ""
        return f"a step takes {unit.text(median_ns(plain_ns))}{few}{recorded}."


def median_ns(lengths_ns: Sequence[int]) -> int:
    """Their median, in whole nanoseconds."""
    return int(statistics.median(lengths_ns))


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
