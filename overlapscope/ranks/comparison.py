"""Comparison of ranks: common collectives, clocks, waits, and notes on anything unknown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct

from overlapscope.analysis.jobs import Recorded, different_jobs
from overlapscope.base.intervals import Bool
from overlapscope.base.words import plural
from overlapscope.ranks import collectives
from overlapscope.ranks.clocks import SHARED_NS, Offsets, find_offsets
from overlapscope.ranks.collectives import Meetings
from overlapscope.ranks.reduced import ReducedRank
from overlapscope.ranks.result import Clocks, Matching
from overlapscope.ranks.waits import RankWaits, find_waits

_PART = re.compile(r"@\d+$")
"""Suffix of a file's name: number of the recording in the file."""


class Comparison(Struct, frozen=True, eq=False):
    """Result of a comparison. Arrays of ranks, and `reference`, go by the place in `ranks`."""

    ranks: Sequence[ReducedRank]
    met: Meetings
    symmetric: Meetings
    """Meetings in which every member waits for every other. Clocks and waits were found from them."""
    offsets: Offsets
    waits: RankWaits
    contradicted: bool
    """True if matches by name alone were dropped again."""

    @property
    def reference(self) -> int | None:
        """Place of the rank that most clocks were compared with; None where nothing matched."""
        references = self.offsets.reference[self.offsets.reference >= 0]
        if not len(references):
            return None
        values, counts = np.unique(references, return_counts=True)
        return int(values[int(np.argmax(counts))])

    @property
    def clocked(self) -> Bool:
        """Mask of the ranks whose clock is known against that of `reference`."""
        offsets = self.offsets
        estimated: Bool = offsets.error_ns >= 0
        return estimated if offsets.status == "shared" else estimated & (offsets.reference == self.reference)

    @property
    def matching(self) -> Matching:
        """Counts of the communication that could be compared."""
        met, kernels = self.met, len(self.met.kernels)
        return Matching(
            kernels=kernels,
            matched=len(met.row),
            unmatched=kernels - len(met.row) - met.not_collective,
            not_collective=met.not_collective,
            meetings=len(met),
            judged=len(self.waits.meetings),
            by=met.by,
        )


def compare(ranks: Sequence[ReducedRank]) -> Comparison:
    """Compare ranks that all have a number of their own."""
    met = collectives.match(collectives.gather(ranks), len(ranks))
    symmetric = met.symmetric()
    offsets = find_offsets(symmetric, len(ranks))
    impossible = _one_clock(ranks) and bool((np.abs(offsets.apart_ns) > SHARED_NS).any())
    contradicted = (impossible or not offsets.consistent) and met.by in ("kernel-names", "both")
    if contradicted:
        # Kernels that agree in name and number but not in group or order don't end together.
        met = met.recorded()
        symmetric = met.symmetric()
        offsets = find_offsets(symmetric, len(ranks))
    return Comparison(ranks, met, symmetric, offsets, find_waits(ranks, symmetric, offsets), contradicted)


def _one_clock(ranks: Sequence[ReducedRank]) -> bool:
    """Return whether all ranks were recorded into one file, and so by one clock."""
    return len({_PART.sub("", rank.source) for rank in ranks}) == 1


def clock_words(comparison: Comparison) -> Clocks:
    """Return the state of the clocks, and a sentence on its basis."""
    offsets, reference = comparison.offsets, comparison.reference
    if reference is None:
        return Clocks(
            status="unknown",
            reference_rank=None,
            largest_offset_ns=None,
            largest_error_ns=None,
            reason=_why_unknown(comparison),
        )
    clocked = offsets.reference >= 0 if offsets.status == "shared" else offsets.reference == reference
    apart_ns, bound_ns = int(np.abs(offsets.apart_ns[clocked]).max()), int(offsets.bound_ns[clocked].max())
    collectives = plural(len(comparison.symmetric), "matching collective")
    if offsets.status == "shared":
        reason = (
            f"In {collectives} the ranks' kernels end within {_us(apart_ns)} of each other (median), so the clocks "
            f"differ by {_us(bound_ns)} at most."
        )
    else:
        reason = (
            f"The offsets are estimated from the ends of kernels in {collectives}, to {_us(bound_ns)} or better: "
            "no rank can finish before the last one has arrived."
        )
        if not offsets.consistent:
            reason += (
                " No constant offsets fit all of them, so the clocks drifted during the recording, or some "
                "kernels are not of the same collective; the error covers the differences."
            )
    return Clocks(
        status=offsets.status,
        reference_rank=comparison.ranks[reference].rank,
        largest_offset_ns=0 if offsets.status == "shared" else apart_ns,
        largest_error_ns=bound_ns,
        reason=reason,
    )


def _why_unknown(comparison: Comparison) -> str:
    if not comparison.ranks:
        return "No trace states its rank, so nothing can be compared."
    if len(comparison.ranks) < 2:
        return "There is only one rank, so nothing can be compared."
    if not comparison.matching.kernels:
        return "No rank recorded a communication kernel."
    if comparison.matching.not_collective == comparison.matching.kernels:
        return "All communication is point-to-point (send and receive), whose two sides are not compared."
    if comparison.matching.matched:
        return "No collective in which every rank waits for every other could be matched between ranks."
    return "No collective of one rank could be matched with one of another."


def notes(ranks: Sequence[ReducedRank], comparison: Comparison) -> tuple[str, ...]:
    """Return notes on what could not be determined, and why, for all ranks, compared or not."""
    return (*_of_traces(ranks, comparison), *_of_kernels(comparison), *_of_meetings(comparison))


def _of_traces(ranks: Sequence[ReducedRank], comparison: Comparison) -> Iterator[str]:
    nameless = sum(rank.rank is None for rank in ranks)
    if _by_device(ranks):
        yield "One process drives all these GPUs, so each is taken for the rank of its number."
        if nameless:
            yield f"{plural(nameless, 'GPU')} without collectives: shown, but not compared with the others."
    elif nameless:
        yield (
            f"{plural(nameless, 'trace')} without a rank, in the file or in its name (rank3.json): shown, but not "
            "compared with the others."
        )
    yield from different_jobs(
        [Recorded(rank.source, rank.rank, rank.world_size, rank.end_ns - rank.span_ns, rank.end_ns) for rank in ranks]
    )
    if any(rank.on_host for rank in ranks):
        yield (
            "Recorded without a GPU: ranges on the host such as gloo:all_reduce count as communication, ops as compute."
        )
    if predicted := sum(rank.predicted for rank in ranks):
        yield f"{plural(predicted, 'trace')} predicted by `overlapscope whatif`, not recorded."
    if unlaunched := sum(rank.lead_in_ns is None for rank in comparison.ranks):
        yield (f"{plural(unlaunched, 'rank')} recorded no launches, so lead-in and steps are unknown there.")


def _by_device(ranks: Sequence[ReducedRank]) -> bool:
    """Return whether the ranks are the GPUs of one process, whose trace states no rank."""
    return len({rank.source for rank in ranks}) == 1 and len({rank.rank for rank in ranks} - {None}) > 1


def _of_kernels(comparison: Comparison) -> Iterator[str]:
    matching = comparison.matching
    if matching.unmatched and len(comparison.ranks) > 1:
        yield (
            f"{matching.unmatched:,} of {plural(matching.kernels, 'communication kernel')} could not be matched "
            "between ranks and do not count as waiting."
        )
    silent = (
        "Some collectives are recorded without their group (by Nsight Systems, JAX or older PyTorch, from a CUDA "
        "graph, or on the host)"
    )
    if matching.by in ("kernel-names", "both"):
        yield f"{silent}; those were matched by name and order, as if all ranks were one group."
    if comparison.contradicted:
        yield f"{silent}, and do not end together as those of one group would: they are left out."


def _of_meetings(comparison: Comparison) -> Iterator[str]:
    offsets, symmetric = comparison.offsets, len(comparison.symmetric)
    if asymmetric := len(comparison.met) - symmetric:
        yield (
            f"{plural(asymmetric, 'collective')} in which not every rank waits for every other (broadcast, reduce, "
            "uneven all-to-all) are not judged."
        )
    odd = int(offsets.odd.sum())
    if odd:
        yield (
            f"{plural(odd, 'collective')} whose kernels do not end together on all ranks, unlike the others', are not "
            "judged."
        )
    if early := symmetric - odd - len(comparison.waits.meetings):
        yield f"{plural(early, 'collective')} began in the lead-in of some rank and are not judged."
    if lacking := _incomplete(comparison.waits.meetings):
        yield (
            f"In {plural(lacking, 'collective')} the kernels of some ranks are missing: such a rank may have come "
            "even later."
        )
    others = set(offsets.reference[offsets.reference >= 0].tolist()) - {comparison.reference}
    if others and offsets.status == "estimated":
        yield (
            f"{plural(len(others) + 1, 'set')} of ranks have no collective in common, so clocks are compared only "
            "within each set."
        )


def _incomplete(meetings: Meetings) -> int:
    """Return the number of meetings in which some member of the group has no kernel."""
    group_sizes = np.array([kind.group_size for kind in meetings.kernels.kinds], np.int64)
    return int((np.diff(meetings.first) < group_sizes[meetings.kind]).sum()) if len(meetings) else 0


def _us(ns: int) -> str:
    return f"{ns / 1e3:.1f} us"
