"""What is asked of a device's steps: which one stands for them, which are out of line, and what happened in each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from overlapscope.analysis.periods import Periods
from overlapscope.analysis.results import Device, Period
from overlapscope.base.columns import pick, quantile
from overlapscope.base.intervals import I64, Bool

FEWEST = 5
"""Of fewer steps none is called unusual."""

DEVIATIONS = 3.0
LEAST_SHARE = 0.05
"""Of the median span; a smaller difference is not worth a look however even the other steps are."""

_SCALE = 1.4826
"""Makes the median absolute deviation of a normal distribution its standard deviation."""

WARM_UP_FACTOR = 1.5
_FEWEST_BESIDE_WARM_UP = 3


def whole(device: Device) -> Period:
    """The figures of the whole window, as those of a step are given."""
    same = ("window", "span_ns", "buckets", "engines", "overlap", "exposed_copy_by_cause", "idle_by_cause")
    return Period(name="", partial=False, **{name: getattr(device, name) for name in same})


def median_step(periods: Sequence[Period]) -> Period | None:
    """The step of median length; the lower of the two middle ones, so that it is one that was recorded."""
    ordered = sorted(periods, key=lambda step: (step.span_ns, step.window.start_ns))
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def begins_with_warm_up(spans_ns: Sequence[int]) -> bool:
    """Whether the first of the steps took more than 1.5 times as long as the longest of the others: it allocated,
    compiled or chose kernels. Not asked of fewer than three."""
    enough = len(spans_ns) >= _FEWEST_BESIDE_WARM_UP
    return enough and spans_ns[0] > WARM_UP_FACTOR * max(spans_ns[1:])


def find_outliers(steps: Sequence[Period]) -> Bool:
    """For each step whether its span lies more than 3 scaled median absolute deviations and 5% from the median.

    Median and median absolute deviation are not themselves moved by the outliers sought; 3 is the strictest of the
    thresholds that C. Leys et al. propose ("Detecting outliers: Do not use standard deviation around the mean, use
    absolute deviation around the median", Journal of Experimental Social Psychology 49 (2013), 764-766).
    """
    spans = np.array([step.span_ns for step in steps], np.float64)
    if len(spans) < FEWEST:
        return np.zeros(len(spans), np.bool_)
    usual = quantile(spans, 0.5)
    away = np.abs(spans - usual)
    unusual: Bool = (away > DEVIATIONS * _SCALE * quantile(away, 0.5)) & (away >= LEAST_SHARE * usual)
    return unusual


def step_at(steps: Periods, at: I64) -> I64:
    """The step that each instant lies in; -1 where there is none. Steps are disjoint."""
    number = np.searchsorted(steps.start_ns, at, side="right") - 1
    return np.where((number >= 0) & (pick(steps.end_ns, number, 0) > at), number, -1)


def sums_by_step(group: I64, step: I64, weight: I64, shape: tuple[int, int]) -> I64:
    """The weights of each group's members in each step, `shape` = (groups, steps); what lies in no step (-1) is left
    out."""
    inside = step >= 0
    sums = np.zeros(shape, np.int64)
    np.add.at(sums, (group[inside], step[inside]), weight[inside])
    return sums
