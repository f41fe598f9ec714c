"""What a recording found a step to take, in words."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from overlapscope.base.drift import drifted
from overlapscope.base.words import plural, unit_for


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
