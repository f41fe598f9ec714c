"""Pure choice of the number of warm-up and timed steps of a run."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from overlapscope.base.words import plural
from overlapscope.errors import UsageError
from overlapscope.plugins.trials.measure import BLOCKS

_WARMUP_STEPS: Final = 20
_FEWEST_WARMUP_STEPS: Final = 5
_AHEAD: Final = 2
"""Number of batches that a DataLoader worker makes ahead. They pile up during a slow first step, as when compiling, and
the next steps don't wait for batches."""
_LAST_STEPS: Final = 1
"""Number of steps after the timed steps, for the results."""
_TIMED_NS: Final = 3_000_000_000
FEWEST_STEPS: Final = 20
"""Minimum number of timed steps, if the program makes as many."""
MOST_STEPS: Final = 300


class StepPlan(Struct, frozen=True):
    """Numbers of steps of a run, which ends after them."""

    warmup_steps: int
    timed_steps: int


SURVEY: Final = StepPlan(_FEWEST_WARMUP_STEPS, FEWEST_STEPS)


def plan(step_ns: float, asked: int | None, workers: int = 0) -> StepPlan:
    """Plan the steps of a run.

    Args:
        step_ns: Approximate length of a step.
        asked: Number of steps to time, if the user chose it.
        workers: Maximum number of loader workers to try.

    Returns:
        The numbers of steps.
    """
    warmup = max(_WARMUP_STEPS, _FEWEST_WARMUP_STEPS + _AHEAD * workers)
    return StepPlan(warmup, asked or min(MOST_STEPS, max(FEWEST_STEPS, round(_TIMED_NS / step_ns))))


def shortened(wanted: StepPlan, there_are: int) -> StepPlan:
    """Shorten a plan for a program that makes fewer steps. Raises UsageError if they are too few."""
    least = _FEWEST_WARMUP_STEPS + BLOCKS + _LAST_STEPS
    if there_are < least:
        raise UsageError(
            f"the program made {plural(there_are, 'step')}, and at least {least} are needed: {_FEWEST_WARMUP_STEPS} to "
            f"warm up, {BLOCKS} to time and {_LAST_STEPS} to compare results. Let it make more steps."
        )
    warmup = min(wanted.warmup_steps, max(_FEWEST_WARMUP_STEPS, there_are // 3))
    return StepPlan(warmup, min(wanted.timed_steps, there_are - warmup - _LAST_STEPS))
