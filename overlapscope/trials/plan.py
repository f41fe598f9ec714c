"""How many steps a run warms up for, and how many are timed: pure."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from overlapscope.base.words import plural
from overlapscope.errors import UsageError
from overlapscope.trials.measure import BLOCKS

_WARMUP_STEPS: Final = 20
_FEWEST_WARMUP_STEPS: Final = 5
_AHEAD: Final = 2
"""Batches that a worker of a DataLoader makes ahead: while a first step takes long, as to compile, they pile up, and
the steps that use them up wait for none."""
_LAST_STEPS: Final = 1
"""Behind those that are timed: it tells the results."""
_TIMED_NS: Final = 3_000_000_000
FEWEST_STEPS: Final = 20
"""That are timed, where there are so many."""
MOST_STEPS: Final = 300


class StepPlan(Struct, frozen=True):
    """Steps of a run; what comes after them is not run."""

    warmup_steps: int
    timed_steps: int


SURVEY: Final = StepPlan(_FEWEST_WARMUP_STEPS, FEWEST_STEPS)


def plan(step_ns: float, asked: int | None, workers: int = 0) -> StepPlan:
    """Of a program whose steps take about so long; `asked`: how many are to be timed; `workers`: the most of a loader's
    that are tried."""
    warmup = max(_WARMUP_STEPS, _FEWEST_WARMUP_STEPS + _AHEAD * workers)
    return StepPlan(warmup, asked or min(MOST_STEPS, max(FEWEST_STEPS, round(_TIMED_NS / step_ns))))


def shortened(wanted: StepPlan, there_are: int) -> StepPlan:
    """The same of a program that makes only so many steps. Raises UsageError where they are too few."""
    least = _FEWEST_WARMUP_STEPS + BLOCKS + _LAST_STEPS
    if there_are < least:
        raise UsageError(
            f"the program made {plural(there_are, 'step')}, and at least {least} are needed: {_FEWEST_WARMUP_STEPS} to "
            f"warm up, {BLOCKS} to time and {_LAST_STEPS} to compare results. Let it make more steps."
        )
    warmup = min(wanted.warmup_steps, max(_FEWEST_WARMUP_STEPS, there_are // 3))
    return StepPlan(warmup, min(wanted.timed_steps, there_are - warmup - _LAST_STEPS))
