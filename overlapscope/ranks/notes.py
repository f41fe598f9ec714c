"""What the report of ranks says in sentences: on what its clocks rest, and what could not be known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from overlapscope.analysis.jobs import Recorded, different_jobs
from overlapscope.base.words import plural
from overlapscope.ranks.clocks import Offsets
from overlapscope.ranks.collectives import Meetings
from overlapscope.ranks.reduced import ReducedRank
from overlapscope.ranks.result import Clocks, Matching
from overlapscope.ranks.waits import Waits


@dataclass(frozen=True, slots=True, eq=False)
class Told:
    """What the sentences are made from."""

    ranks: Sequence[ReducedRank]
    joined: Sequence[ReducedRank]
    met: Meetings
    symmetric: Meetings
    waits: Waits
    offsets: Offsets
    matching: Matching
    reference: int | None
    contradicted: bool
    """Whether matches by name alone were given up again."""


def clock_words(told: Told) -> Clocks:
    """How the clocks stand, and what that rests on."""
    offsets = told.offsets
    if told.reference is None:
        return Clocks(
            status="unknown",
            reference_rank=None,
            largest_offset_ns=None,
            largest_error_ns=None,
            reason=_why_unknown(told),
        )
    mine = offsets.reference == told.reference if offsets.status != "shared" else offsets.reference >= 0
    apart, bound = int(np.abs(offsets.apart_ns[mine]).max()), int(offsets.bound_ns[mine].max())
    count = len(told.symmetric)
    if offsets.status == "shared":
        reason = (
            f"Nothing contradicts one clock: in {plural(count, 'matching collective')} the ranks' kernels end within "
            f"{_us(apart)} of one another at the median, and clocks further apart than {_us(bound)} are ruled out."
        )
    else:
        reason = (
            f"Estimated from where kernels end in {plural(count, 'matching collective')}, to {_us(bound)} or better: "
            "no rank can be through before the last has come."
        )
        if not offsets.consistent:
            reason += (
                " No constant offsets fit them all, so the clocks ran apart during the recording, or some are not the "
                "same collective; the error covers the differences seen."
            )
    return Clocks(
        status=offsets.status,
        reference_rank=told.joined[told.reference].rank,
        largest_offset_ns=0 if offsets.status == "shared" else apart,
        largest_error_ns=bound,
        reason=reason,
    )


def _why_unknown(told: Told) -> str:
    if not told.joined:
        return "No trace says its rank, so that nothing can be compared."
    if len(told.joined) < 2:
        return "There is one rank, so that nothing can be compared."
    if not told.matching.kernels:
        return "No rank recorded a communication kernel."
    if told.matching.matched:
        return "No collective in which every rank waits for every other could be matched between ranks."
    return "No collective of one rank could be matched with one of another."


def notes(told: Told) -> tuple[str, ...]:
    """What could not be known, and why."""
    found: list[str] = []
    nameless = [rank for rank in told.ranks if rank.rank is None]
    if nameless:
        found.append(
            f"{plural(len(nameless), 'trace')} without a rank, neither inside nor in the name (rank3.json): shown, "
            "but not compared with the others."
        )
    found += different_jobs(
        [
            Recorded(rank.source, rank.rank, rank.world_size, rank.end_ns - rank.span_ns, rank.end_ns)
            for rank in told.ranks
        ]
    )
    predicted = [rank for rank in told.ranks if rank.predicted]
    if predicted:
        found.append(f"{plural(len(predicted), 'trace')} predicted by `overlapscope whatif`, and not recorded.")
    unknown = [rank for rank in told.joined if rank.lead_in_ns is None]
    if unknown:
        found.append(
            f"{plural(len(unknown), 'rank')} recorded no launches, so that neither a lead-in nor steps can be told "
            "there."
        )
    matching = told.matching
    if matching.unmatched and len(told.joined) > 1:
        found.append(
            f"{matching.unmatched:,} of {plural(matching.kernels, 'communication kernel')} could not be matched "
            "between ranks and are left out of waiting: other ranks have none in the same place, or it cannot be told "
            "which."
        )
    if matching.by in ("kernel-names", "both"):
        found.append(
            "Some kernels do not say which collective they are (older PyTorch, or launched from a CUDA graph); those "
            "were matched by name and order, as if all ranks were one group."
        )
    if told.contradicted:
        found.append(
            "Some kernels do not say which collective they are (older PyTorch, or launched from a CUDA graph), and do "
            "not end together as one group's would: they are left out."
        )
    asymmetric = len(told.met) - len(told.symmetric)
    if asymmetric:
        found.append(
            f"{plural(asymmetric, 'collective')} in which not every rank waits for every other (broadcast, reduce, "
            "uneven all-to-all) are not judged."
        )
    odd = int(told.offsets.odd.sum())
    if odd:
        found.append(
            f"{plural(odd, 'collective')} whose kernels do not end together on all ranks, unlike the others', are not "
            "judged."
        )
    early = len(told.symmetric) - odd - matching.judged
    if early:
        found.append(f"{plural(early, 'collective')} began in the lead-in of some rank and are not judged.")
    found += _incomplete(told)
    others = {int(one) for one in np.unique(told.offsets.reference) if one >= 0} - {told.reference}
    if others and told.offsets.status == "estimated":
        found.append(
            f"{plural(len(others) + 1, 'set')} of ranks have no collective in common, so that clocks are compared "
            "within each only."
        )
    return tuple(found)


def _incomplete(told: Told) -> list[str]:
    meetings = told.waits.arrivals.meetings
    if not len(meetings):
        return []
    size = np.array([kind.group_size for kind in meetings.kernels.kinds], np.int64)[meetings.kind]
    lacking = int((np.diff(meetings.first) < size).sum())
    if not lacking:
        return []
    return [
        f"In {plural(lacking, 'collective')} some members' kernels are missing: one of those may have come later still."
    ]


def _us(ns: int) -> str:
    return f"{ns / 1e3:.1f} us"
