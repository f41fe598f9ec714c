"""Mean, median and spread of times, and a test whether the program changed during the recording.

Python's `statistics` does the same, but importing it takes longer than analyzing a small trace's steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum


def median(values: Iterable[float]) -> float:
    """Return the median; of an even number of values, the mean of the middle two. There must be a value."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def mean(values: Iterable[float]) -> float:
    """Return the mean, rounded once. There must be a value."""
    every = list(values)
    return fsum(every) / len(every)


def median_ns(lengths_ns: Iterable[int]) -> int:
    """Return the median in whole nanoseconds: of an even number of lengths, the mean of the middle two."""
    return round(median(lengths_ns))


# -- Drift -------------------------------------------------------------------------------------------

MIN_PLAIN = 3
"""Minimum plain steps on each side; fewer do not show how much steps vary."""
_DRIFT_PCT = 2
"""Maximum relative difference of sides that agree."""


def drifted(before_ns: Sequence[int], after_ns: Sequence[int]) -> bool:
    """Return whether the medians of both sides differ by more than their steps vary, and by more than 2%."""
    if min(len(before_ns), len(after_ns)) < MIN_PLAIN:
        return False
    before, after = median(before_ns), median(after_ns)
    difference = abs(after - before)
    spread = max(middle_half_ns(before_ns), middle_half_ns(after_ns))
    return difference > spread and 100 * difference > _DRIFT_PCT * min(before, after)


def middle_half_ns(lengths_ns: Sequence[int]) -> float:
    """Return the distance between the quartiles of two or more lengths."""
    # Few recordings have timed steps.
    import statistics

    first, _, third = statistics.quantiles(lengths_ns, n=4, method="inclusive")
    return third - first
