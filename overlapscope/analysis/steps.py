"""Questions about a device's steps: a representative one, and outliers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from overlapscope.analysis.figures import Period
from overlapscope.base.columns import quantile
from overlapscope.base.intervals import Bool

FEWEST = 5
"""Minimum number of steps for outliers."""

DEVIATIONS = 3.0
LEAST_SHARE = 0.05
"""Minimum deviation of an outlier as a share of the median span, however even the other steps are."""

_SCALE = 1.4826
"""Factor that turns the median absolute deviation of a normal distribution into its standard deviation."""


def median_step(periods: Sequence[Period]) -> Period | None:
    """Return the step of median length, the lower of the two middle ones, so that it is a recorded one."""
    ordered = sorted(periods, key=lambda step: (step.span_ns, step.window.start_ns))
    return ordered[(len(ordered) - 1) // 2] if ordered else None


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
