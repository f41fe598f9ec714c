"""Median of times."""

from __future__ import annotations

import statistics
from collections.abc import Iterable


def median_ns(lengths_ns: Iterable[int]) -> int:
    """Return the median in whole nanoseconds: of an even number of lengths, the mean of the middle two."""
    return round(statistics.median(lengths_ns))
