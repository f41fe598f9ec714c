"""Which steps of a program are left out, which are recorded, and which of those are judged."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from overlapscope.errors import UsageError


class Phase(enum.Enum):
    """What a step is to a recording."""

    WAIT = "wait"
    WARM_UP = "warm-up"
    ACTIVE = "active"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class Schedule:
    """`wait` steps, then `warmup`, then `active` (None: all that follow). Steps are counted from 0."""

    wait: int
    warmup: int
    active: int | None

    def __post_init__(self) -> None:
        for name, value, least in (("wait", self.wait, 0), ("warmup", self.warmup, 0), ("active", self.active, 1)):
            if value is not None and value < least:
                raise UsageError(f"{name} is {value}; it must be {least} or more.")

    def phase(self, step: int) -> Phase:
        """The phase that a step is in."""
        if step < self.wait:
            return Phase.WAIT
        if step < self._unjudged:
            return Phase.WARM_UP
        return Phase.ACTIVE if self.active is None or step < self._unjudged + self.active else Phase.DONE

    def opens(self, step: int) -> bool:
        """Whether everything before this step is to be left out."""
        return 0 < step == self.wait

    def judged(self, finished: int) -> bool:
        """Whether a step to be judged is among the finished ones."""
        return finished > self._unjudged

    def warm_up_steps(self, first: int, finished: int) -> int:
        """How many finished steps of a trace that begins in step `first` must not be judged.

        0 where none other is there: a trace of nothing but warm-up is judged as it is.
        """
        return max(0, self._unjudged - first) if self.judged(finished) else 0

    def why_unjudged(self, finished: int) -> str | None:
        """A sentence for a program that ended before a judged step did; None where that is as it should be."""
        if self.judged(finished):
            return None
        asked = f"{self.wait} to wait, {self.warmup} of warm-up and 1 to judge"
        if finished == 0:
            return None if self.wait == 0 else "The program marked no step, so all of it was recorded."
        return (
            f"The program made only {finished} of the {self._unjudged + 1} steps needed ({asked}); what was recorded "
            f"counts as it is."
        )

    @property
    def _unjudged(self) -> int:
        return self.wait + self.warmup
