"""Comparison of a changed run's results with those of unchanged runs, which may differ from each other by rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from statistics import median
from typing import Final

from overlapscope.plugins.trials.protocol import BUCKETS, RankResults, Sketch
from overlapscope.plugins.trials.result import Sameness

_MAX_DISTANCE_RATIO: Final = 2
"""Maximum distance of results from an unchanged run's, as a multiple of the distances between unchanged runs."""
_FEW_SUMS_TERM: Final = 12
"""Summand of the ratio for a tensor with few sums, times their number (`_max_ratio`)."""
SOUND: Final[tuple[Sameness, ...]] = ("same", "within noise")
"""Results with which a change may be recommended."""
WORST_LAST: Final[tuple[Sameness, ...]] = ("same", "within noise", "unknown", "different")
"""Judgements from best to worst."""


def same_bits(ranks: Sequence[RankResults], others: Sequence[RankResults]) -> bool:
    """Return whether every rank of two runs has the same results, bit for bit."""
    return (
        bool(ranks)
        and len(ranks) == len(others)
        and all(rank.digest and rank.digest == other.digest for rank, other in zip(ranks, others, strict=True))
    )


def sameness(ranks: Sequence[RankResults], unchanged: Sequence[Sequence[RankResults]]) -> Sameness:
    """Compare a changed run's results, by rank, with those of unchanged runs, one of them possibly rounded.

    Returns:
        The judgement of the worst rank.
    """
    if any(same_bits(ranks, other) for other in unchanged):
        return "same"
    others = [other for other in unchanged if len(other) == len(ranks)]
    if not ranks or not others:
        return "unknown"
    return max(
        (_judge(result, [other[rank] for other in others]) for rank, result in enumerate(ranks)), key=WORST_LAST.index
    )


def _judge(result: RankResults, unchanged: Sequence[RankResults]) -> Sameness:
    if not result.digest or not all(other.digest for other in unchanged):
        return "unknown"
    names = [sketch.name for sketch in result.sketches]
    if any([sketch.name for sketch in other.sketches] != names for other in unchanged):
        return "different"
    if len(unchanged) < 2:
        return "unknown"
    pairs = (combinations(tensors, 2) for tensors in zip(*(other.sketches for other in unchanged), strict=True))
    spreads = [max(distance(*pair) for pair in of_tensor) for of_tensor in pairs]
    # A tensor on which unchanged runs agree may differ as much as the others do.
    usual = median(spreads) if spreads else 0.0
    for number, sketch in enumerate(result.sketches):
        nearest = min(distance(sketch, other.sketches[number]) for other in unchanged)
        if not nearest <= _max_ratio(sketch) * max(spreads[number], usual):
            return "different"
    return "within noise" if _loss_is_near(result.loss, [other.loss for other in unchanged], usual) else "different"


def _max_ratio(sketch: Sketch) -> float:
    """Return the maximum distance of a tensor from an unchanged run's, as a multiple of that between unchanged runs.

    Both are samples, and of few numbers one is often several times the other: the ratio of the mean squares of k
    numbers has the F distribution. The root of its 99th percentile is about 1 + 12 / k for k from 3 to 20.
    """
    count = sum(map(bool, sketch.sums))
    return _MAX_DISTANCE_RATIO * (1 + _FEW_SUMS_TERM / count) if 0 < count < BUCKETS else _MAX_DISTANCE_RATIO


def _loss_is_near(loss: float | None, unchanged: Sequence[float | None], usual: float) -> bool:
    losses = [other for other in unchanged if other is not None]
    if loss is None or len(losses) < 2:
        return loss is None and not losses
    if math.isnan(loss):
        return any(map(math.isnan, losses))
    spread = max(losses) - min(losses)
    return min(abs(loss - other) for other in losses) <= _MAX_DISTANCE_RATIO * max(
        spread, usual * max(map(abs, losses))
    )


def distance(sketch: Sketch, reference: Sketch) -> float:
    """Return an estimate of the norm of the difference of two tensors, as a fraction of the larger norm.

    It is 0 if both are zero, infinite if their shapes differ.
    """
    if len(sketch.sums) != len(reference.sums):
        return math.inf
    largest = max(sketch.norm, reference.norm)
    return math.dist(sketch.sums, reference.sums) / largest if largest else 0.0
