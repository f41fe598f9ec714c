"""Joining of reduced ranks into one report, as they arrive."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from overlapscope.ranks.communication import by_group, by_rank, find_comm_causes, uncompared_causes
from overlapscope.ranks.comparison import Comparison, clock_words, compare, notes
from overlapscope.ranks.parts import modules
from overlapscope.ranks.reduced import ReducedRank, stated_world_size
from overlapscope.ranks.result import Duplicate, RankRow, RanksReport, Unreadable, framed
from overlapscope.ranks.summary import (
    find_stragglers,
    spreads,
    step_skew,
    steps_met,
    top_causes,
    unseen_pct,
    worst_meetings,
    worst_ranks,
)
from overlapscope.reading.file_names import rank_in_name


def report_on(
    outcomes: Iterable[ReducedRank | Unreadable | Sequence[ReducedRank]], *, expected: int | None = None
) -> RanksReport:
    """Return the report on these outcomes of traces, in any order: devices of ranks, and traces that can't be read.

    `expected` is the expected number of ranks; by default the traces state it.
    """
    readable, unreadable = list[ReducedRank](), list[Unreadable]()
    for outcome in outcomes:
        if isinstance(outcome, Unreadable):
            number = outcome.rank if outcome.rank is not None else rank_in_name(outcome.source)
            unreadable.append(replace(outcome, rank=number))
        else:
            readable += (outcome,) if isinstance(outcome, ReducedRank) else outcome
    unreadable.sort(key=lambda trace: (trace.source, trace.reason))
    ranks = sorted(
        readable if unreadable else _numbered(readable),
        key=lambda rank: (rank.rank is None, rank.rank or 0, rank.device, rank.source),
    )
    numbers, duplicated = _compared(ranks)
    compared = [ranks[number] for number in numbers]
    comparison = compare(compared)
    named = {name for rank in compared for name in rank.steps.judged_names()}
    step_names = tuple(sorted(named, key=lambda name: (len(name), name)))
    causes = find_comm_causes(compared, comparison.waits)
    parts, doubts = dict[str, Any](), list[str]()
    for name, module in modules().items():
        parts[name], unjudged = module.join(compared, comparison)
        doubts += unjudged
    rows = tuple(_rows(ranks, numbers, comparison, by_rank(comparison.waits.axis, causes), step_names))
    met_steps = steps_met(comparison.waits)
    shown = framed(rows, met_steps)
    compared_rows = [shown[number] for number in numbers]
    stragglers = find_stragglers(compared, comparison.waits)
    world_size = stated_world_size(ranks)
    expected = world_size if expected is None else expected
    present = {rank.rank for rank in ranks} | {trace.rank for trace in unreadable}
    return RanksReport(
        world_size=world_size,
        expected=expected,
        ranks=rows,
        unreadable=tuple(unreadable),
        missing=tuple(rank for rank in range(expected or 0) if rank not in present),
        duplicated=duplicated,
        clocks=clock_words(comparison),
        matching=comparison.matching,
        stragglers=stragglers,
        unseen_pct=unseen_pct(compared, comparison.waits, stragglers),
        meetings=worst_meetings(compared, comparison.waits),
        communication=by_group(compared, comparison.waits, causes),
        parts=parts,
        met_steps=met_steps,
        step_names=step_names,
        steps=step_skew(compared_rows, step_names),
        spreads=spreads(compared_rows),
        worst=worst_ranks(compared, compared_rows, stragglers, torn=bool(comparison.offsets.torn)),
        notes=(*notes(ranks, comparison), *doubts),
    )


def _numbered(ranks: Sequence[ReducedRank]) -> Sequence[ReducedRank]:
    """Return the ranks, numbered if they are the GPUs of a single process.

    If a single trace states no rank and its process drives several GPUs, each GPU with collectives becomes the rank of
    its number. Their collectives are matched by order over the whole recording: steps belong to the process, and one
    GPU may get its launches in a later step than another.
    """
    devices = {rank.device for rank in ranks if len(rank.comm)} - {-1}
    if len({rank.source for rank in ranks}) != 1 or len(devices) < 2 or ranks[0].rank is not None:
        return ranks
    return [
        replace(
            rank,
            rank=rank.device,
            findings=tuple(replace(finding, rank=rank.device) for finding in rank.findings),
            comm=replace(rank.comm, step=np.full(len(rank.comm), -1)),
        )
        if rank.device in devices
        else rank
        for rank in ranks
    ]


def _compared(ranks: Sequence[ReducedRank]) -> tuple[list[int], tuple[Duplicate, ...]]:
    """Return the numbers of the ranks to compare, and the ranks with several traces.

    Compared are those with a rank, and of its traces only the first by name. A source that was given twice is a
    duplicate as well.
    """
    sources: defaultdict[int, list[str]] = defaultdict(list)
    seen = set[tuple[int, int, str]]()
    for rank in ranks:
        if rank.rank is not None:
            each = rank.rank, rank.device, rank.source
            if each in seen or rank.source not in sources[rank.rank]:
                sources[rank.rank].append(rank.source)
            seen.add(each)
    numbers: dict[tuple[int, int], int] = {}
    for number, rank in enumerate(ranks):
        if rank.rank is not None and rank.source == min(sources[rank.rank]):
            numbers.setdefault((rank.rank, rank.device), number)
    several = ((rank, paths) for rank, paths in sorted(sources.items()) if len(paths) > 1)
    return [*numbers.values()], tuple(Duplicate(rank=rank, sources=tuple(sorted(paths))) for rank, paths in several)


def _rows(
    ranks: Sequence[ReducedRank],
    compared: Sequence[int],
    comparison: Comparison,
    causes: Sequence[dict[str, int]],
    step_names: Sequence[str],
) -> Iterator[RankRow]:
    """Yield a row for each rank.

    `compared` has the numbers of the ranks in the comparison, in its order, and `causes` those of their exposed
    communication.
    """
    waits, offsets, clocked = comparison.waits.by_rank, comparison.offsets, comparison.clocked
    places = {number: place for place, number in enumerate(compared)}
    for number, rank in enumerate(ranks):
        place, spans = places.get(number), rank.steps.judged_spans()
        met = place if place is not None and waits.judged[place] else None
        timed = place if place is not None and clocked[place] else None
        doubts = [check for check in rank.trust.checks if check.status != "ok"]
        yield RankRow(
            rank=rank.rank,
            source=rank.source,
            device=rank.device,
            device_name=rank.device_name,
            joined=place is not None,
            trust=rank.trust.verdict,
            doubts=tuple(check.detail for check in doubts),
            doubt_ids=tuple(check.id for check in doubts),
            span_ns=rank.span_ns,
            lead_in_ns=rank.lead_in_ns,
            buckets=rank.window.buckets,
            efficiency_pct=rank.window.efficiency_shown,
            hidden_copy_pct=rank.window.hidden_copy_shown,
            comm_ns=rank.window.engines.comm_ns,
            exposed_comm_ns=rank.window.buckets.exposed_comm_ns,
            exposed_comm_by_cause=uncompared_causes(rank) if place is None else causes[place],
            unjudged_comm_ns=None if place is None else int(waits.unjudged_ns[place]),
            comm_compute_pct=rank.window.overlap.comm_compute_pct,
            judged=rank.judged,
            plain_step_ns=rank.plain_step.step_ns if rank.plain_step is not None else None,
            step_spans_ns=tuple(spans.get(name) for name in step_names),
            waited_ns=None if met is None else int(waits.waited_ns[met]),
            waited_exposed_ns=None if met is None else int(waits.exposed_ns[met]),
            made_wait_ns=None if met is None else int(waits.made_wait_ns[met]),
            lost_ns=None if met is None else int(waits.lost_ns[met]),
            last_in=None if met is None else int(waits.last_in[met]),
            meetings=0 if place is None else int(waits.judged[place]),
            clock_offset_ns=None if timed is None else int(offsets.offset_ns[timed]),
            clock_error_ns=None if timed is None else int(offsets.error_ns[timed]),
            top_causes=top_causes(rank),
        )
