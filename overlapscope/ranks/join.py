"""Reduced ranks, as they come in, joined into one report."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from overlapscope.analysis.results import efficiency_shown, hidden_copy_shown
from overlapscope.ranks import collectives
from overlapscope.ranks.clocks import Offsets, find_offsets
from overlapscope.ranks.notes import Told, clock_words, notes
from overlapscope.ranks.reduced import ReducedRank, StepFigures
from overlapscope.ranks.result import Duplicate, Matching, RankRow, RanksReport, Unreadable
from overlapscope.ranks.stragglers import find_stragglers, sum_by, worst_meetings
from overlapscope.ranks.summary import spreads, step_skew, top_causes, worst_ranks
from overlapscope.ranks.waits import Waits, find_waits
from overlapscope.reading import kineto

MOST_RANKS = 1_000_000
"""A stated world size beyond it is taken for damage."""


class Joined:
    """Takes what came of each trace, in any order, and says what they are together.

    The report is the same whatever the order.
    """

    def __init__(self, *, expected: int | None = None) -> None:
        """`expected` is how many ranks there should be; else the traces' word is taken."""
        self._expected = expected
        self._ranks: list[ReducedRank] = []
        self._unreadable: list[Unreadable] = []

    def add(self, rank: ReducedRank | Unreadable) -> None:
        """Take in one device of one rank, or a trace that could not be read; that one's rank is taken from its name."""
        if isinstance(rank, Unreadable):
            number = rank.rank if rank.rank is not None else kineto.rank_in_name(rank.source)
            self._unreadable.append(Unreadable(source=rank.source, reason=rank.reason, rank=number))
        else:
            self._ranks.append(rank)

    def report(self) -> RanksReport:
        """The report on all that was added so far."""
        ranks = sorted(self._ranks, key=_order)
        unreadable = tuple(sorted(self._unreadable, key=lambda one: (one.source, one.reason)))
        duplicated = _duplicated(ranks)
        compared = _compared(ranks)
        joined = [ranks[number] for number in compared]
        kernels = collectives.gather(joined)
        met = collectives.match(kernels, len(joined))
        symmetric = met.symmetric()
        offsets = find_offsets(symmetric, len(joined))
        contradicted = not offsets.consistent and met.by in ("kernel-names", "both")
        if contradicted:
            # Kernels of equal names in equal numbers, but of several groups: they do not end together.
            met = met.recorded()
            symmetric = met.symmetric()
            offsets = find_offsets(symmetric, len(joined))
        waits = find_waits(joined, symmetric, offsets)
        step_names = _step_names(joined)
        place = {number: place for place, number in enumerate(compared)}
        made = sum_by(waits.pairs.late, waits.pairs.waited_ns, len(joined))
        reference = _main_reference(offsets)
        rows = [
            _row(rank, place.get(number), offsets, reference, waits, made, step_names)
            for number, rank in enumerate(ranks)
        ]
        joined_rows = [rows[number] for number in compared]
        stragglers = find_stragglers(joined, waits)
        stated = Counter(rank.world_size for rank in ranks if rank.world_size and 0 < rank.world_size <= MOST_RANKS)
        world_size = min(stated, key=lambda size: (-stated[size], -size)) if stated else None
        expected = self._expected if self._expected is not None else world_size
        present = {rank.rank for rank in ranks} | {one.rank for one in unreadable}
        matching = Matching(
            kernels=len(kernels),
            matched=len(met.row),
            unmatched=len(kernels) - len(met.row) - met.not_collective,
            not_collective=met.not_collective,
            meetings=len(met),
            judged=len(waits.arrivals.meetings),
            by=met.by,
        )
        told = Told(ranks, joined, met, symmetric, waits, offsets, matching, reference, contradicted)
        return RanksReport(
            world_size=world_size,
            expected=expected,
            ranks=tuple(rows),
            unreadable=unreadable,
            missing=tuple(rank for rank in range(expected or 0) if rank not in present),
            duplicated=duplicated,
            clocks=clock_words(told),
            matching=matching,
            stragglers=stragglers,
            meetings=worst_meetings(joined, waits),
            step_names=step_names,
            steps=step_skew(joined_rows, step_names),
            spreads=spreads(joined_rows),
            worst=worst_ranks(joined, joined_rows, stragglers),
            notes=notes(told),
        )


def _order(rank: ReducedRank) -> tuple[bool, int, int, str]:
    return rank.rank is None, rank.rank or 0, rank.device, rank.source


def _compared(ranks: Sequence[ReducedRank]) -> list[int]:
    """Numbers of those that are compared: with a rank, and of several traces of one rank the first by name."""
    first: dict[int, str] = {}
    for rank in ranks:
        if rank.rank is not None:
            first[rank.rank] = min(first.get(rank.rank, rank.source), rank.source)
    kept, seen = [], set()
    for number, rank in enumerate(ranks):
        # One source that was given twice is a duplicate as well.
        if rank.rank is not None and rank.source == first[rank.rank] and (rank.rank, rank.device) not in seen:
            seen.add((rank.rank, rank.device))
            kept.append(number)
    return kept


def _duplicated(ranks: Sequence[ReducedRank]) -> tuple[Duplicate, ...]:
    sources: defaultdict[int, list[str]] = defaultdict(list)
    devices: Counter[tuple[int, int, str]] = Counter()
    for rank in ranks:
        if rank.rank is not None:
            devices[rank.rank, rank.device, rank.source] += 1
            if rank.source not in sources[rank.rank] or devices[rank.rank, rank.device, rank.source] > 1:
                sources[rank.rank].append(rank.source)
    return tuple(
        Duplicate(rank=rank, sources=tuple(sorted(paths)), used=min(paths))
        for rank, paths in sorted(sources.items())
        if len(paths) > 1
    )


def _step_names(ranks: Sequence[ReducedRank]) -> tuple[str, ...]:
    names = {name for rank in ranks for name in rank.steps.whole_names()}
    return tuple(sorted(names, key=lambda name: (len(name), name)))


def _main_reference(offsets: Offsets) -> int | None:
    """The reference of the most ranks; None where nothing matched."""
    references = offsets.reference[offsets.reference >= 0]
    if not len(references):
        return None
    values, counts = np.unique(references, return_counts=True)
    return int(values[int(np.argmax(counts))])


def _row(
    rank: ReducedRank,
    place: int | None,
    offsets: Offsets,
    reference: int | None,
    waits: Waits,
    made: np.ndarray[tuple[int], np.dtype[np.int64]],
    step_names: Sequence[str],
) -> RankRow:
    judged = int(waits.judged[place]) if place is not None else 0
    met = place if judged else None
    clocked = place is not None and (
        offsets.error_ns[place] >= 0 and (offsets.status == "shared" or offsets.reference[place] == reference)
    )
    spans = rank.steps.whole_spans()
    return RankRow(
        rank=rank.rank,
        source=rank.source,
        device=rank.device,
        device_name=rank.device_name,
        joined=place is not None,
        trust=rank.trust.verdict,
        doubts=tuple(check.detail for check in rank.trust.checks if check.status != "ok"),
        span_ns=rank.span_ns,
        lead_in_ns=rank.lead_in_ns,
        buckets=rank.buckets,
        efficiency_pct=efficiency_shown(rank),
        hidden_copy_pct=hidden_copy_shown(rank),
        comm_ns=rank.engines.comm_ns,
        exposed_comm_ns=rank.buckets.exposed_comm_ns,
        comm_compute_pct=rank.overlap.comm_compute_pct,
        median_step_ns=_median_step(rank.steps),
        step_spans_ns=tuple(spans.get(name) for name in step_names),
        waited_ns=None if met is None else int(waits.waited_ns[met]),
        waited_exposed_ns=None if met is None else int(waits.exposed_ns[met]),
        made_wait_ns=None if met is None else int(made[met]),
        last_in=None if met is None else int(waits.last_in[met]),
        meetings=judged,
        clock_offset_ns=int(offsets.offset_ns[place]) if clocked and place is not None else None,
        clock_error_ns=int(offsets.error_ns[place]) if clocked and place is not None else None,
        top_causes=top_causes(rank),
    )


def _median_step(steps: StepFigures) -> int | None:
    spans = sorted(steps.span_ns[steps.whole].tolist())
    return spans[(len(spans) - 1) // 2] if spans else None
