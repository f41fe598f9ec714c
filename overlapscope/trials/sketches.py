"""How far two tensors are apart, told from a few numbers of each."""

from __future__ import annotations

import math

from overlapscope.trials.protocol import Sketch

BUCKETS = 32
"""Sums that a sketch has: each of a tensor's elements is added to one of them, or taken from it.

The square of the distance of two sketches has the square of the tensors' distance as its mean, and a standard deviation
of at most sqrt(2 / 32) = 25 % of it (Charikar, Chen, Farach-Colton: Finding frequent items in data streams, 2002).
"""


def distance(one: Sketch, other: Sketch) -> float:
    """The norm of the difference of two tensors, estimated, as a share of the larger norm of the two.

    0 where both are zero; infinite where they cannot be compared, as they have different shapes.
    """
    if len(one.sums) != len(other.sums):
        return math.inf
    largest = max(one.norm, other.norm)
    return math.dist(one.sums, other.sums) / largest if largest else 0.0
