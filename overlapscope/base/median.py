"""Mean, median and spread of times, the interval of a share, and a test whether a program changed while recorded.

Python's `statistics` does the same, but importing it takes longer than analyzing a small trace's steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum, sqrt


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


_NORMAL_QUANTILE = 1.96
"""Quantile of the normal distribution for 95%."""


def proportion(share: float, samples: int) -> tuple[float, float]:
    """Return the 95% interval of a share of samples.

    Wilson, Journal of the American Statistical Association 22, 1927.
    """
    middle, squared = share + _NORMAL_QUANTILE**2 / (2 * samples), _NORMAL_QUANTILE**2 / samples
    aside = sqrt(squared * share * (1 - share) + squared**2 / 4)
    return (middle - aside) / (1 + squared), (middle + aside) / (1 + squared)


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
