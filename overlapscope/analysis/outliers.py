"""Which steps took unusually long, or unusually short."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from overlapscope.analysis.results import Period
from overlapscope.base.intervals import Bool

FEWEST = 5
"""Of fewer steps none is called unusual."""

DEVIATIONS = 3.0
LEAST_SHARE = 0.05
"""Of the median span; a smaller difference is not worth a look however even the other steps are."""

_SCALE = 1.4826
"""Makes the median absolute deviation of a normal distribution its standard deviation."""


WARM_UP_FACTOR = 1.5
_FEWEST_BESIDE_WARM_UP = 3


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
    median = np.median(spans)
    away = np.abs(spans - median)
    unusual: Bool = (away > DEVIATIONS * _SCALE * np.median(away)) & (away >= LEAST_SHARE * median)
    return unusual
