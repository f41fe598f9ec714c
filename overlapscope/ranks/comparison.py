"""Comparison of ranks: common collectives, clocks, waits, and notes on anything unknown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from statistics import median_low

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.jobs import Recorded, different_jobs
from overlapscope.base.columns import mask_of
from overlapscope.base.intervals import Bool
from overlapscope.base.words import listed, plural
from overlapscope.ranks import collectives
from overlapscope.ranks.clocks import Offsets, find_offsets, on_one_clock
from overlapscope.ranks.collectives import Meetings
from overlapscope.ranks.messages import is_message, point_to_point
from overlapscope.ranks.pairs import consistent, message_waits, pair, related_by_messages
from overlapscope.ranks.reduced import ComparedRank, ReducedRank
from overlapscope.ranks.result import Clocks, Matching
from overlapscope.ranks.waits import RankWaits, find_waits

_SAME_NS = 100_000
"""Maximum median difference of ends on one clock. (Up to 31 us were seen.)"""
_PART = re.compile(r"@\d+$")
"""Suffix of a file's name: number of the recording in the file."""


class Comparison(Struct, frozen=True, eq=False):
    """Result of a comparison. Arrays of ranks, and `reference`, go by the place in `ranks`."""

    ranks: Sequence[ComparedRank]
    met: Meetings
    symmetric: Meetings
    """Meetings in which every member waits for every other. Clocks and waits were found from them."""
    offsets: Offsets
    waits: RankWaits
    contradicted: bool
    """True if matches by name alone were dropped again."""
    by_messages: bool
    """True if some clocks were found from messages, because no collective relates them."""

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
        clocked: Bool = (self.offsets.error_ns >= 0) & (self.offsets.reference == self.reference)
        return clocked

    @property
    def matching(self) -> Matching:
        """Counts of the communication that could be compared."""
        met, kernels = self.met, len(self.met.kernels)
        return Matching(
            kernels=kernels,
            matched=len(met.row),
            unmatched=kernels - len(met.row) - met.not_collective,
            not_collective=met.not_collective,
            paired=len(self.waits.messages.kernel),
            meetings=len(met),
            judged=len(self.waits.meetings),
            by=met.by,
        )

    def after_lead_in(self) -> Bool:
        """Return a mask of the kernels after their rank's lead-in."""
        kernels, judged_from = self.met.kernels, [rank.judged_from_ns for rank in self.ranks]
        later: Bool = kernels.start_ns >= np.array(judged_from, np.int64)[kernels.rank]
        return later


def compare(ranks: Sequence[ComparedRank]) -> Comparison:
    """Compare ranks that all have a number of their own."""
    met = collectives.match(collectives.gather(ranks), len(ranks))
    symmetric = met.symmetric()
    offsets = find_offsets(symmetric, len(ranks))
    same = one_clock(ranks)
    impossible = same and bool((np.abs(offsets.offset_ns) > _SAME_NS).any())
    contradicted = (impossible or not offsets.consistent) and met.by in ("kernel-names", "both")
    if contradicted:
        # Kernels that agree in name and number but not in group or order don't end together.
        met = met.take(met.of_kinds(lambda kind: kind.recorded))
        symmetric = met.symmetric()
        offsets = find_offsets(symmetric, len(ranks))
    if same and offsets.status != "unknown":
        offsets = on_one_clock(offsets)
    torn = {*offsets.torn, *(number for rank in ranks for number in rank.turned_back)}
    offsets = replace(offsets, torn=tuple(sorted(torn)))
    messages = pair(ranks)
    related = related_by_messages(offsets, messages) if offsets.consistent else None
    offsets = related or offsets
    found = message_waits(ranks, consistent(ranks, messages, offsets), offsets)
    waits = find_waits(ranks, symmetric, offsets, found)
    return Comparison(ranks, met, symmetric, offsets, waits, contradicted, related is not None)


def one_clock(ranks: Sequence[ComparedRank]) -> bool:
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
    apart_ns, error_ns = (int(np.abs(each[comparison.clocked]).max()) for each in (offsets.offset_ns, offsets.error_ns))
    within = comparison.waits.latest.error_ns
    return Clocks(
        status=offsets.status,
        reference_rank=comparison.ranks[reference].rank,
        largest_offset_ns=apart_ns,
        largest_error_ns=error_ns,
        arrival_error_ns=median_low(within.tolist()) if len(within) else None,
        reason=_basis(comparison),
    )


def _basis(comparison: Comparison) -> str:
    """Return where the offsets are from, in sentences."""
    collectives = plural(len(comparison.symmetric), "matching collective")
    if comparison.by_messages:
        paired = plural(len(comparison.waits.messages.paired.met), "paired message")
        paired = f"{collectives} and {paired}" if len(comparison.symmetric) else paired
        return f"The offsets are estimated from {paired}: no receive can end before its send began."
    if one_clock(comparison.ranks):
        return "All ranks were recorded into one file, and so by one clock."
    basis = (
        f"The offsets are the median differences between the ends of kernels in {collectives}: no rank can finish "
        "before the last one has arrived."
    )
    if not comparison.offsets.consistent:
        basis += (
            " No constant offsets fit all of them, so the clocks drifted or jumped during the recording, or some "
            "kernels are not of the same collective. Arrivals are compared by the clocks as they were at each of them."
        )
    return basis


def _why_unknown(comparison: Comparison) -> str:
    if not comparison.ranks:
        return "No trace states its rank, so nothing can be compared."
    if len(comparison.ranks) < 2:
        return "There is only one rank, so nothing can be compared."
    if not comparison.matching.kernels:
        return "No rank recorded a communication kernel."
    if comparison.matching.not_collective == comparison.matching.kernels:
        return "All communication is point-to-point (send and receive), and too little of it could be paired."
    if comparison.matching.matched:
        return "No collective in which every rank waits for every other could be matched between ranks."
    return "No collective of one rank could be matched with one of another."


def notes(ranks: Sequence[ReducedRank], comparison: Comparison) -> tuple[str, ...]:
    """Return notes on what could not be determined, and why, for all ranks, compared or not."""
    return (*_trace_notes(ranks, comparison), *_kernel_notes(comparison), *_meeting_notes(comparison))


def _trace_notes(ranks: Sequence[ReducedRank], comparison: Comparison) -> Iterator[str]:
    nameless = sum(rank.rank is None for rank in ranks)
    if len({rank.source for rank in ranks}) == 1 and len({rank.rank for rank in ranks} - {None}) > 1:
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


def _kernel_notes(comparison: Comparison) -> Iterator[str]:
    kernels, later, matching = comparison.met.kernels, comparison.after_lead_in(), comparison.matching
    alone = later & ~mask_of(comparison.met.row, len(kernels)) & ~kernels.of_kinds(point_to_point)
    if alone.any() and len(comparison.ranks) > 1:
        yield (
            f"{int(alone.sum()):,} of {plural(int(later.sum()), 'communication kernel')} could not be matched between "
            "ranks and do not count as waiting."
        )
    yield from _message_notes(comparison)
    silent = (
        "Some collectives are recorded without their group (by Nsight Systems, JAX or older PyTorch, from a CUDA "
        "graph, or on the host)"
    )
    if matching.by in ("kernel-names", "both"):
        yield f"{silent}; those were matched by name and order, as if all ranks were one group."
    if comparison.contradicted:
        yield f"{silent}, and do not end together as those of one group would: they are left out."


def _message_notes(comparison: Comparison) -> Iterator[str]:
    """State how many sends and receives are not judged, and why."""
    kernels, waits = comparison.met.kernels, comparison.waits.messages
    sends = kernels.of_kinds(is_message) & comparison.after_lead_in()
    judged, known = (mask_of(rows, len(kernels)) for rows in (waits.kernel, waits.paired.sides.kernel))
    if len(comparison.ranks) < 2 or not (sends & ~judged).any():
        return
    sides, paired = waits.paired.sides.kernel, mask_of(waits.paired.met.row, len(waits.paired.sides))
    peer = [rank.messages.peer for rank in comparison.ranks]
    recorded = [rank.rank for rank in comparison.ranks if rank.rank is not None]
    elsewhere, contradicted, alone = (
        mask_of(sides[affected], len(kernels))
        for affected in (~np.isin(np.concatenate(peer), recorded), waits.paired.contradicted, ~paired)
    )
    reasons = (
        ("the other rank could not be read (with gloo, record shapes; only local files are read again)", ~known),
        ("the other rank was not recorded", elsewhere),
        ("sizes or times do not fit", contradicted),
        ("no counterpart is in a step that both ranks recorded as a whole", alone),
        ("the other side is in the lead-in, or its clock is unknown", ~judged),
    )
    left, parts = sends & ~judged, []
    for reason, affected in reasons:
        if number := int((left & affected).sum()):
            parts.append(f"of {number:,} {reason}")
        left &= ~affected
    count = f"{int((sends & ~judged).sum()):,} of {plural(int(sends.sum()), 'kernel')}"
    yield f"{count} that send or receive are not judged: {listed(parts)}."


def _meeting_notes(comparison: Comparison) -> Iterator[str]:
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
    judged, ranks = comparison.waits.meetings, len(comparison.ranks)
    # A group of unknown size is taken for all ranks.
    size = judged.kernels.by_kind(lambda kind: kind.group_size if kind.recorded else ranks)
    if lacking := int((judged.members < size[judged.kind]).sum()):
        yield (
            f"In {plural(lacking, 'collective')} the kernels of some ranks are missing: such a rank may have come "
            "even later."
        )
    if offsets.torn:
        names = comparison.waits.steps.names
        compared = f"{names[0]} to {names[-1]}" if names else "no time"
        yield f"A clock jumped during the recording: {compared} is compared, and lengths of other steps may be wrong."
    others = set(offsets.reference[offsets.reference >= 0].tolist()) - {comparison.reference}
    if others:
        yield (
            f"{plural(len(others) + 1, 'set')} of ranks have no collective in common, so clocks are compared only "
            "within each set."
        )
