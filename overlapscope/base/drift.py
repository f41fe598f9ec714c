"""Whether the program changed while it was recorded, by the steps that were timed on either side."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

FEWEST_PLAIN = 3
"""Fewer plain steps on a side tell nothing of how they vary."""
_DRIFT_PCT = 2
"""Sides that differ by less agree."""


def drifted(before_ns: Sequence[int], after_ns: Sequence[int]) -> bool:
    """Whether the medians of both sides differ by more than their steps vary, and by more than 2%."""
    if min(len(before_ns), len(after_ns)) < FEWEST_PLAIN:
        return False
    before, after = statistics.median(before_ns), statistics.median(after_ns)
    difference = abs(after - before)
    spread = max(middle_half_ns(before_ns), middle_half_ns(after_ns))
    return difference > spread and 100 * difference > _DRIFT_PCT * min(before, after)


def middle_half_ns(lengths_ns: Sequence[int]) -> float:
    """How far apart the quartiles of two lengths or more are."""
    first, _, third = statistics.quantiles(lengths_ns, n=4, method="inclusive")
    return third - first
