"""How far the difference of two sides can be trusted: the noise floor, and the bootstrap over steps.

The steps of one recording tell how much they differ among themselves, and nothing of how much the same program differs
from one recording to the next: the host is twice as fast on another day, the link to it is shared.
`docs/evaluation/noise.md` has the measurements behind the numbers of the floor.

B. Efron, "Bootstrap Methods: Another Look at the Jackknife", The Annals of Statistics 7 (1979), 1-26: draw as many
steps as there are, with replacement, many times over, and see how a figure scatters.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from overlapscope.base.intervals import I64
from overlapscope.catalog.causes import CAUSES

F64 = NDArray[np.float64]

GPU_SHARE = 0.01
"""Of the span: the clock of the GPU and the order of what runs on it."""
LINK_SHARE = 0.1
"""Of the time that copies and communication take: others use the link to the host, too."""
HOST_SHARE = 2.0
"""Of the time that the host decides about: it was half as fast during some recordings, from end to end."""
POINTS = 1.0
"""A percentage that changed by less, in points, is the same; more where the times it is made of are noisier."""

HOST_CAUSES = frozenset(cause.id for causes in CAUSES.values() for cause in causes.values() if cause.by_host)
"""Causes that are of the host's making: how fast it is decides how long they last."""


def floor_ns(span_ns: float, *, link_ns: float = 0.0, host_ns: float = 0.0) -> float:
    """The least change of a time that is more than noise, in a span of this length.

    `link_ns` and `host_ns`: how much of that time is the link's and the host's to decide.
    """
    return GPU_SHARE * span_ns + LINK_SHARE * link_ns + HOST_SHARE * host_ns


# -- the bootstrap ----------------------------------------------------------------------------------

FEWEST = 5
"""Of fewer steps a bootstrap says nothing: of 4 there are no more than 35 different draws."""

DRAWS = 2000
CONFIDENCE = 0.99
"""Not 0.95: many figures are compared at a time, and the percentile bootstrap of few steps is narrow."""

_MOST_NUMBERS = 1 << 22
"""Drawn at most; of very many steps fewer draws do."""


def draw(spans_ns: Sequence[int]) -> I64:
    """Step numbers, drawn with replacement: (draws, steps).

    They depend on the steps' spans alone: so every figure of one side is drawn alike (what adds up in each step adds up
    in each draw), a side compared with itself differs by exactly nothing, and two sides may change places.
    """
    steps = len(spans_ns)
    generator = np.random.default_rng(crc32(np.array(spans_ns, np.int64).tobytes()))
    draws = max(200, min(DRAWS, _MOST_NUMBERS // max(1, steps)))
    return generator.integers(0, steps, (draws, steps))


def weights(drawn: I64) -> F64:
    """Each step's share of each draw: (draws, steps) @ (steps, figures) are the means of the figures."""
    draws, steps = drawn.shape
    counts = np.zeros((draws, steps), np.float64)
    np.add.at(counts, (np.arange(draws)[:, None], drawn), 1.0)
    result: F64 = counts / steps
    return result


def interval(before: F64, after: F64) -> tuple[F64, F64]:
    """Low and high end of `after - before`, from the draws (first axis) of both, for each figure."""
    draws = min(len(before), len(after))
    tail = (1 - CONFIDENCE) / 2
    with np.errstate(invalid="ignore"):  # ratios of nothing stay NaN
        change = after[:draws] - before[:draws]
        # Both from the same side of the sorted draws, so that the interval of the negative is the negative interval.
        low: F64 = np.quantile(change, tail, axis=0)
        high: F64 = -np.quantile(-change, tail, axis=0)
    return low, high
