"""Questions about a device's steps: a representative one, outliers, and events in each step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from overlapscope.analysis.figures import Period
from overlapscope.analysis.periods import Periods
from overlapscope.analysis.results import Device
from overlapscope.base.columns import pick, quantile
from overlapscope.base.intervals import I64, Bool, Intervals, cut

FEWEST = 5
"""Minimum number of steps for outliers."""

DEVIATIONS = 3.0
LEAST_SHARE = 0.05
"""Minimum deviation of an outlier as a share of the median span, however even the other steps are."""

_SCALE = 1.4826
"""Factor that turns the median absolute deviation of a normal distribution into its standard deviation."""

WARM_UP_FACTOR = 1.5
_FEWEST_BESIDE_WARM_UP = 3


def whole(device: Device) -> Period:
    """Return the figures of the whole window in the form of a step's."""
    by_cause = ("exposed_copy_by_cause", "exposed_comm_by_cause", "exposed_other_by_cause", "idle_by_cause")
    same = ("window", "span_ns", "buckets", "engines", "overlap", *by_cause)
    return Period(name="", partial=False, **{name: getattr(device, name) for name in same})


def median_step(periods: Sequence[Period]) -> Period | None:
    """Return the step of median length, the lower of the two middle ones, so that it is a recorded one."""
    ordered = sorted(periods, key=lambda step: (step.span_ns, step.window.start_ns))
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def begins_with_warm_up(spans_ns: Sequence[int]) -> bool:
    """Return whether the first step took over 1.5 times as long as the longest of the others.

    Then it allocated, compiled or chose kernels. With fewer than three steps, the result is False.
    """
    enough = len(spans_ns) >= _FEWEST_BESIDE_WARM_UP
    return enough and spans_ns[0] > WARM_UP_FACTOR * max(spans_ns[1:])


def find_outliers(steps: Sequence[Period]) -> Bool:
    """Select the steps whose span is more than 3 scaled median absolute deviations and 5% from the median.

    Outliers don't move the median and the median absolute deviation. 3 is the strictest threshold that C. Leys et al.
    propose ("Detecting outliers: Do not use standard deviation around the mean, use absolute deviation around the
    median", Journal of Experimental Social Psychology 49 (2013), 764-766).

    Returns:
        Mask of the steps; all false if there are too few to judge.
    """
    spans = np.array([step.span_ns for step in steps], np.float64)
    if len(spans) < FEWEST:
        return np.zeros(len(spans), np.bool_)
    usual = quantile(spans, 0.5)
    away = np.abs(spans - usual)
    unusual: Bool = (away > DEVIATIONS * _SCALE * quantile(away, 0.5)) & (away >= LEAST_SHARE * usual)
    return unusual


def step_at(steps: Periods, at: I64) -> I64:
    """Return the step of each instant; -1 if there is none. Steps are disjoint."""
    number = np.searchsorted(steps.start_ns, at, side="right") - 1
    return np.where((number >= 0) & (pick(steps.end_ns, number, 0) > at), number, -1)


def times_by_step(group: I64, start: I64, end: I64, steps: Periods, groups: int) -> list[list[int]]:
    """Return the time of each group's intervals in each step, with shape (groups, steps), cut at the steps' edges.

    Intervals of group -1 don't count.
    """
    piece, begin, stop = cut(start, end, Intervals(steps.start_ns, steps.end_ns))
    step = np.where(group[piece] >= 0, step_at(steps, begin), -1)
    sums: list[list[int]] = sums_by_step(group[piece], step, stop - begin, (groups, len(steps))).tolist()
    return sums


def sums_by_step(group: I64, step: I64, weight: I64, shape: tuple[int, int]) -> I64:
    """Return the weights of each group's members in each step, with `shape` (groups, steps).

    Members in no step (-1) are left out.
    """
    inside = step >= 0
    sums = np.zeros(shape, np.int64)
    np.add.at(sums, (group[inside], step[inside]), weight[inside])
    return sums
