"""Median and spread of times, and a test whether the program changed during the recording."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence


def median_ns(lengths_ns: Iterable[int]) -> int:
    """Return the median in whole nanoseconds: of an even number of lengths, the mean of the middle two."""
    return round(statistics.median(lengths_ns))


# -- Drift -------------------------------------------------------------------------------------------

MIN_PLAIN = 3
"""Minimum plain steps on each side; fewer do not show how much steps vary."""
_DRIFT_PCT = 2
"""Maximum relative difference of sides that agree."""


def drifted(before_ns: Sequence[int], after_ns: Sequence[int]) -> bool:
    """Return whether the medians of both sides differ by more than their steps vary, and by more than 2%."""
    if min(len(before_ns), len(after_ns)) < MIN_PLAIN:
        return False
    before, after = statistics.median(before_ns), statistics.median(after_ns)
    difference = abs(after - before)
    spread = max(middle_half_ns(before_ns), middle_half_ns(after_ns))
    return difference > spread and 100 * difference > _DRIFT_PCT * min(before, after)


def middle_half_ns(lengths_ns: Sequence[int]) -> float:
    """Return the distance between the quartiles of two or more lengths."""
    first, _, third = statistics.quantiles(lengths_ns, n=4, method="inclusive")
    return third - first
