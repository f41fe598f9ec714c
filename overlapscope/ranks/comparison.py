"""Ranks compared: which of their collectives are the same, how their clocks stand, who waited for whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from overlapscope.base.intervals import Bool
from overlapscope.ranks import collectives
from overlapscope.ranks.clocks import Offsets, find_offsets
from overlapscope.ranks.collectives import Meetings
from overlapscope.ranks.reduced import ReducedRank
from overlapscope.ranks.result import Matching
from overlapscope.ranks.waits import Waits, find_waits


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """What came of it. Arrays of ranks, and `reference`, go by the place in `ranks`."""

    ranks: Sequence[ReducedRank]
    met: Meetings
    symmetric: Meetings
    """Those in which every member waits for every other: clocks and waits were found from them."""
    offsets: Offsets
    waits: Waits
    contradicted: bool
    """Whether matches by name alone were given up again."""

    @property
    def reference(self) -> int | None:
        """The place of the rank that most clocks were compared with; None where nothing matched."""
        references = self.offsets.reference[self.offsets.reference >= 0]
        if not len(references):
            return None
        values, counts = np.unique(references, return_counts=True)
        return int(values[int(np.argmax(counts))])

    @property
    def clocked(self) -> Bool:
        """Of each rank, whether its clock is known against that of `reference`."""
        offsets = self.offsets
        known: Bool = offsets.error_ns >= 0
        return known if offsets.status == "shared" else known & (offsets.reference == self.reference)

    @property
    def matching(self) -> Matching:
        """How much could be compared."""
        met, kernels = self.met, len(self.met.kernels)
        return Matching(
            kernels=kernels,
            matched=len(met.row),
            unmatched=kernels - len(met.row) - met.not_collective,
            not_collective=met.not_collective,
            meetings=len(met),
            judged=len(self.waits.arrivals.meetings),
            by=met.by,
        )


def compare(ranks: Sequence[ReducedRank]) -> Comparison:
    """Compare ranks that all have a number of their own."""
    met = collectives.match(collectives.gather(ranks), len(ranks))
    symmetric = met.symmetric()
    offsets = find_offsets(symmetric, len(ranks))
    contradicted = not offsets.consistent and met.by in ("kernel-names", "both")
    if contradicted:
        # Kernels of equal names in equal numbers, but of several groups: they do not end together.
        met = met.recorded()
        symmetric = met.symmetric()
        offsets = find_offsets(symmetric, len(ranks))
    return Comparison(ranks, met, symmetric, offsets, find_waits(ranks, symmetric, offsets), contradicted)
