"""Length of a step without the profiler, from steps that the recorder timed around the recording."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from math import comb
from typing import Final

from msgspec import Struct

from overlapscope.analysis.results import PlainOrigin
from overlapscope.base.words import between, duration
from overlapscope.errors import UsageError
from overlapscope.trace.model import PlainSteps, TimedSteps

FEWEST = 5
"""Minimum number of timed steps for a median."""
_CONFIDENCE = 0.95
_LONGEST_NS = 1 << 53
"""104 days, which a float still represents exactly."""


class PlainStep(Struct, frozen=True):
    """Length of a step, with `low_ns <= step_ns <= high_ns`."""

    step_ns: int
    low_ns: int
    high_ns: int
    origin: PlainOrigin

    @property
    def words(self) -> str:
        """The length, its origin and the interval, such as `31.9 ms (measured, 31.4 to 33.1 ms)`."""
        return takes(self.step_ns, self.low_ns, self.high_ns, self.origin)

    @property
    def decides(self) -> bool:
        """False if it is only estimated, so that verdict, findings, predictions and budgets ignore it."""
        return self.origin != "estimated"


_HOW: Final[Mapping[PlainOrigin, str]] = {"measured": "measured", "told": "as given", "estimated": "estimated"}


def takes(step_ns: int, low_ns: int, high_ns: int, origin: PlainOrigin) -> str:
    """Return a plain step's length in words; an estimated length is an interval."""
    interval, how = between(low_ns, high_ns), _HOW[origin]
    if origin == "estimated":
        return f"{interval} ({how})"
    return f"{duration(step_ns)} ({how}{'' if low_ns == high_ns else f', {interval}'})"


def from_user(step_ns: int) -> PlainStep:
    """Return a length given by the user.

    Raises:
        UsageError: If it isn't a whole number of nanoseconds from 1 to 2**53 - 1.
    """
    if not 0 < step_ns < _LONGEST_NS or step_ns % 1:
        raise UsageError(f"{step_ns} ns is no length of a plain step; tell whole nanoseconds, such as 31_800_000.")
    step_ns = int(step_ns)
    return PlainStep(step_ns, step_ns, step_ns, "told")


def measured(steps: PlainSteps, recorded_ns: int) -> PlainStep | None:
    """Return the plain step from timed steps; None if there are too few.

    It is the mean of the medians before and after the recording if both are known, otherwise the one median. A
    recording slows a program down. If one side was slower than the recorded step (`recorded_ns`) and the other was not,
    the machine's speed changed, and only the other side is comparable with the recording. The interval contains the 95%
    intervals of all medians, by order statistics (Conover, Practical Nonparametric Statistics, 3.2).
    """
    sides = [sorted(lengths) for side in (steps.before, steps.after) if len(lengths := lengths_of(side)) >= FEWEST]
    if not sides:
        return None
    medians = [statistics.median(side) for side in sides]
    alike = [median for median in medians if median <= recorded_ns] or medians
    ends = [end for side in sides for end in _interval(side)]
    return PlainStep(round(statistics.fmean(alike)), min(ends), max(ends), "measured")


def lengths_of(side: TimedSteps) -> tuple[int, ...]:
    """Return lengths by the device's clock if known; the host's clock only shows when steps were launched."""
    return side.device_ns or side.host_ns


def _interval(lengths: list[int]) -> tuple[int, int]:
    """Return the two sorted lengths between which the median lies with 95% confidence; of few lengths, the extremes."""
    count = len(lengths)
    aside, tail = 0, 0.0
    while 2 * (tail + comb(count, aside) / 2**count) <= 1 - _CONFIDENCE:
        tail += comb(count, aside) / 2**count
        aside += 1
    aside = max(0, aside - 1)
    return lengths[aside], lengths[count - 1 - aside]
