"""Why each exposed copy is exposed: every nanosecond to exactly one cause, the first that applies.

The order and meaning of the causes are in `docs/causes.md`. Where several copies run at once, a piece goes to
the cause that stands first for any of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from overlapscope.analysis.causes import COPY_CAUSES, CopyCause
from overlapscope.analysis.edges import EXACT, HANDOVER_NS, Edges
from overlapscope.analysis.host import Blocking, on_thread
from overlapscope.analysis.timeline import Timeline
from overlapscope.intervals import I64, Bool, contains, covered, expand, intersect, subtract, total, union
from overlapscope.trace import I8, Kind, Memory, Trace

RANK = {cause: rank for rank, cause in enumerate(COPY_CAUSES)}

PROMPT_NS = 50_000
"""A copy that begins at most this long after its call returned was held up by nothing on the device."""

LEGACY_STREAMS = (0, 7)
"""Ids under which the legacy default stream is recorded: ROCm and CUPTI (first context)."""


@dataclass(frozen=True, slots=True, eq=False)
class ExposedCopies:
    """The exposed copy time, cut into pieces. Sorted and disjoint; their lengths add up to it exactly."""

    start_ns: I64
    end_ns: I64
    cause: I8
    """Index into `COPY_CAUSES`."""
    copy: I64
    """The copy that decided; a row of `Timeline.ops`."""
    confidence: I8
    """`edges.EXACT` unless it rests on a rebuilt edge."""


@dataclass(frozen=True, slots=True, eq=False)
class _Pairs:
    """An exposed piece and a copy that runs in it; several pairs where several copies run at once."""

    piece: I64
    copy: I64
    exposed_from: I64
    """Where the exposed stretch around the piece begins, within the copy..."""
    exposed_to: I64
    """...and ends."""


def attribute(trace: Trace, timeline: Timeline, edges: Edges, blocking: Blocking, periods: I64) -> ExposedCopies:
    """The causes of a device's exposed copies.

    `periods`: instants at which steps begin; supply and demand are weighed between two of them, with what runs
    before the first step counted to it (its copies run before the compute that begins it).
    """
    t, ops = timeline, timeline.ops
    copies = np.flatnonzero((ops.kind == Kind.H2D) | (ops.kind == Kind.D2H))
    judged = t.judged_from_ns
    bounds = np.unique(np.concatenate([[t.start_ns, judged, t.end_ns], periods[1:]])).astype(np.int64)
    start, end = _pieces(timeline, np.concatenate([bounds, ops.start_ns[copies], ops.end_ns[copies]]))
    pairs = _pair(timeline, start, copies)
    period = np.searchsorted(bounds, start, side="right") - 1

    rank, confidence = _rank_pairs(trace, timeline, edges, blocking, pairs, bounds, period)
    order = np.lexsort((rank, pairs.piece))
    first = np.flatnonzero(np.diff(pairs.piece[order], prepend=-1))
    chosen = order[first]
    piece_rank = rank[chosen]
    piece_rank[end <= judged] = RANK[CopyCause.LEAD_IN]

    excess = _without_supply(timeline, start, end, piece_rank, bounds, period)
    return _split(start, end, piece_rank, pairs.copy[chosen], confidence[chosen], excess)


def _pieces(timeline: Timeline, cuts: I64) -> tuple[I64, I64]:
    exposed = timeline.exposed_copy
    edges = np.unique(np.concatenate([exposed.starts, exposed.ends, cuts]))
    inside = contains(exposed, edges[:-1])
    return edges[:-1][inside], edges[1:][inside]


def _pair(timeline: Timeline, start: I64, copies: I64) -> _Pairs:
    ops, exposed = timeline.ops, timeline.exposed_copy
    first = np.searchsorted(start, ops.start_ns[copies], side="left")
    last = np.searchsorted(start, ops.end_ns[copies], side="left")
    which, piece = expand(first, last)
    copy = copies[which]
    stretch = np.searchsorted(exposed.starts, start[piece], side="right") - 1
    return _Pairs(
        piece,
        copy,
        np.maximum(exposed.starts[stretch], ops.start_ns[copy]),
        np.minimum(exposed.ends[stretch], ops.end_ns[copy]),
    )


def _rank_pairs(
    trace: Trace,
    timeline: Timeline,
    edges: Edges,
    blocking: Blocking,
    pairs: _Pairs,
    bounds: I64,
    period: I64,
) -> tuple[I64, I8]:
    ops, calls, copy = timeline.ops, trace.runtime_calls, pairs.copy
    launched = ops.launch[copy] >= 0
    issued = np.where(launched, np.append(calls.end_ns, 0)[ops.launch[copy]], np.iinfo(np.int64).max)
    host_side = np.where(ops.kind[copy] == Kind.H2D, ops.source_kind[copy], ops.target_kind[copy])
    following = _next_compute(timeline, pairs.exposed_from)
    held, held_confidence = _held_by_compute(trace, timeline, edges)
    waited_for, waited_confidence, queued = _compute_waits_for_copy(trace, timeline, edges, pairs, following)
    prompt = launched & (ops.start_ns[copy] - issued <= PROMPT_NS)

    found: list[tuple[CopyCause, Bool]] = [
        (CopyCause.PAGEABLE_MEMORY, host_side == Memory.PAGEABLE),
        (CopyCause.SAME_STREAM, _on_compute_stream(timeline, edges, pairs, bounds, period)),
        (CopyCause.EVENT_WAIT, held[copy]),
        (CopyCause.HOST_SYNC, _host_was_blocked(trace, timeline, blocking, pairs, following)),
        (CopyCause.ENGINE_BUSY, _queued_behind(timeline, copy, issued) | queued),
        (CopyCause.LATE_ISSUE, prompt),
        (CopyCause.EVENT_WAIT, waited_for),
    ]
    undecided = np.ones(len(copy), np.bool_)
    rank = np.full(len(copy), RANK[CopyCause.UNKNOWN], np.int64)
    for cause, applies in found:
        rank[undecided & applies] = RANK[cause]
        undecided &= ~applies
    waits = rank == RANK[CopyCause.EVENT_WAIT]
    by_edge = np.where(held[copy], held_confidence[copy], waited_confidence)
    return rank, np.where(waits, by_edge, EXACT).astype(np.int8)


def _next_compute(timeline: Timeline, at: I64) -> I64:
    """Row of the first compute op that begins at or after each instant; -1 if none does."""
    rows = np.flatnonzero(timeline.ops.kind == Kind.COMPUTE)
    return np.append(rows, -1)[np.searchsorted(timeline.ops.start_ns[rows], at, side="left")]


def _on_compute_stream(timeline: Timeline, edges: Edges, pairs: _Pairs, bounds: I64, period: I64) -> Bool:
    """The compute that could have hidden the copy sits on the copy's own stream.

    That compute is the part of the period's that no copy ran beside. The copy's stream must carry at least half
    as much of it as any other does: a cast behind the copy makes no compute stream.
    """
    ops = timeline.ops
    streams = np.unique(ops.stream)
    share = np.zeros((len(streams), len(bounds)), np.int64)
    on_legacy = np.zeros(len(streams), np.bool_)
    for number, stream in enumerate(streams):
        mine = (ops.stream == stream) & (ops.kind == Kind.COMPUTE)
        free = subtract(union(ops.start_ns[mine], ops.end_ns[mine]), timeline.copy)
        share[number, :-1] = covered(free, bounds[:-1], bounds[1:])
        on_legacy[number] = stream in LEGACY_STREAMS and _orders_all(timeline, edges, int(stream))
    row = np.searchsorted(streams, ops.stream[pairs.copy])
    own = share[row, period[pairs.piece]]
    most = share.max(axis=0, initial=0)[period[pairs.piece]]
    ordered: Bool = (own > 0) & (2 * own >= most) | on_legacy[row] & (most > 0)
    return ordered


def _orders_all(timeline: Timeline, edges: Edges, stream: int) -> bool:
    """Whether a legacy default stream is shown to exclude the others: their work alternates with its own, never
    runs beside it, and no event wait explains that.

    Only streams created as blocking wait for it (CUDA C++ Programming Guide, "Default Stream"); PyTorch's are
    not, so their ops do run beside those of the default stream.
    """
    ops = timeline.ops
    mine = ops.stream == stream
    if mine.all() or len(edges.held):
        return False
    own = union(ops.start_ns[mine], ops.end_ns[mine])
    others = union(ops.start_ns[~mine], ops.end_ns[~mine])
    alternate = bool(len(own.starts) and len(others.starts) and others.starts[0] < own.ends[-1])
    return alternate and total(intersect(own, others)) == 0


def _held_by_compute(trace: Trace, timeline: Timeline, edges: Edges) -> tuple[Bool, I8]:
    """Copies that were issued before some compute ended, and began when it had: an event wait held them.

    A copy that directly follows such a copy on its stream, and was issued in time too, was held with it.
    """
    ops, calls = timeline.ops, trace.runtime_calls
    kernel = (ops.kind == Kind.COMPUTE) | (ops.kind == Kind.COMM)
    issued = np.where(ops.launch >= 0, np.append(calls.end_ns, 0)[ops.launch], np.iinfo(np.int64).max)
    until = np.full(len(ops), -1, np.int64)
    confidence = np.full(len(ops), EXACT, np.int8)
    # An op may have waited for several; the one that ended last held it.
    rows = edges.take(np.argsort(edges.source_end_ns, kind="stable"))
    ended = rows.source_end_ns
    holds = (rows.source >= 0) & kernel[rows.source] & (issued[rows.held] <= ended)
    holds &= ops.start_ns[rows.held] - ended <= HANDOVER_NS
    until[rows.held[holds]] = ended[holds]
    confidence[rows.held[holds]] = rows.confidence[holds]

    by_stream = np.lexsort((np.arange(len(ops)), ops.stream))
    stream, begin, end = ops.stream[by_stream], ops.start_ns[by_stream], ops.end_ns[by_stream]
    copying = ((ops.kind == Kind.H2D) | (ops.kind == Kind.D2H))[by_stream]
    follows = np.zeros(len(ops), np.bool_)
    follows[1:] = (stream[1:] == stream[:-1]) & copying[1:] & copying[:-1] & (begin[1:] - end[:-1] <= HANDOVER_NS)
    follows &= until[by_stream] < 0
    head = np.maximum.accumulate(np.where(follows, 0, np.arange(len(ops))))
    inherited = until[by_stream][head]
    held_sorted = (inherited >= 0) & (issued[by_stream] <= inherited)
    held = np.zeros(len(ops), np.bool_)
    held[by_stream] = held_sorted
    confidence[by_stream] = confidence[by_stream][head]
    return held, confidence


def _host_was_blocked(trace: Trace, timeline: Timeline, blocking: Blocking, pairs: _Pairs, following: I64) -> Bool:
    """The next compute was launched only after the exposed stretch had begun, and for at least half of the
    stretch its thread sat in a blocking call."""
    ops, calls = timeline.ops, trace.runtime_calls
    launch = np.where(following >= 0, ops.launch[following], -1)
    blocked = np.zeros(len(following), np.bool_)
    waiting = blocking.row[~blocking.allocation]
    for thread in np.unique(calls.thread[launch[launch >= 0]]):
        mine = (launch >= 0) & (np.append(calls.thread, 0)[launch] == thread)
        until = np.minimum(pairs.exposed_to[mine], calls.start_ns[launch[mine]])
        waited = covered(on_thread(calls, int(thread), waiting), pairs.exposed_from[mine], until)
        blocked[mine] = 2 * waited >= pairs.exposed_to[mine] - pairs.exposed_from[mine]
    return blocked


def _queued_behind(timeline: Timeline, copy: I64, issued: I64) -> Bool:
    """Copies that began when another of their direction ended, had been issued before that, and missed
    compute meanwhile."""
    ops = timeline.ops
    queued = np.zeros(len(copy), np.bool_)
    for kind in (Kind.H2D, Kind.D2H):
        rows = np.flatnonzero(ops.kind == kind)
        ends = np.sort(ops.end_ns[rows])
        mine = ops.kind[copy] == kind
        begin = ops.start_ns[copy[mine]]
        last = np.searchsorted(ends, begin, side="right") - 1
        ended = np.append(ends, 0)[last]
        queued[mine] = (
            (last >= 0)
            & (begin - ended <= HANDOVER_NS)
            & (issued[mine] <= ended)
            & (covered(timeline.compute, issued[mine], begin) > 0)
        )
    return queued


def _compute_waits_for_copy(
    trace: Trace, timeline: Timeline, edges: Edges, pairs: _Pairs, following: I64
) -> tuple[Bool, I8, Bool]:
    """Whether the next compute was launched in time but waited by event for this copy, with the confidence;
    and whether it waited for another one that was queued behind this copy."""
    ops, calls = timeline.ops, trace.runtime_calls
    source = np.full(len(ops) + 1, -1, np.int64)
    confidence = np.full(len(ops) + 1, EXACT, np.int8)
    rows = edges.take(np.argsort(edges.source_end_ns, kind="stable"))
    near = ops.start_ns[rows.held] - rows.source_end_ns <= HANDOVER_NS
    source[rows.held[near]] = rows.source[near]
    confidence[rows.held[near]] = rows.confidence[near]
    waited = source[following]
    launch = np.where(following >= 0, ops.launch[following], -1)
    in_time = (launch >= 0) & (np.append(calls.end_ns, 0)[launch] <= pairs.exposed_to)
    in_time &= waited >= 0
    for_this = in_time & (ops.stream[waited] == ops.stream[pairs.copy])
    for_this &= ops.end_ns[waited] >= ops.end_ns[pairs.copy]
    behind_launch = np.append(calls.end_ns, 0)[ops.launch[waited]]
    behind = in_time & (waited != pairs.copy) & (ops.kind[waited] == ops.kind[pairs.copy])
    behind &= (ops.start_ns[waited] >= ops.end_ns[pairs.copy]) & (ops.launch[waited] >= 0)
    behind &= behind_launch <= ops.end_ns[pairs.copy]
    return for_this, confidence[following], behind


def _without_supply(timeline: Timeline, start: I64, end: I64, rank: I64, bounds: I64, period: I64) -> I64:
    """How much of each piece no order of the same work could hide: per period X - C, shared in proportion."""
    length = np.where(rank > RANK[CopyCause.PAGEABLE_MEMORY], end - start, 0)
    demand = np.zeros(len(bounds), np.int64)
    np.add.at(demand, period, length)
    supply = np.append(covered(subtract(timeline.compute, timeline.copy), bounds[:-1], bounds[1:]), 0)
    excess = np.maximum(demand - supply, 0)
    part = np.zeros(len(start), np.int64)
    for number in np.flatnonzero(excess):
        mine = slice(*np.searchsorted(period, [number, number + 1]))
        passed = np.cumsum(length[mine])
        # Rounding the running share, not each share, makes the parts add up; the last is the excess itself.
        shared = np.floor(passed * (excess[number] / demand[number])).astype(np.int64)
        shared[passed == demand[number]] = excess[number]
        part[mine] = np.diff(np.minimum(shared, excess[number]), prepend=0)
    return part


def _split(start: I64, end: I64, rank: I64, copy: I64, confidence: I8, excess: I64) -> ExposedCopies:
    cut = start + excess
    starts, ends = np.concatenate([start, cut]), np.concatenate([cut, end])
    cause = np.concatenate([np.full(len(rank), RANK[CopyCause.NO_COMPUTE]), rank])
    certain = np.concatenate([np.full(len(rank), EXACT, np.int8), confidence])
    kept = np.flatnonzero(ends > starts)
    kept = kept[np.argsort(starts[kept], kind="stable")]
    return ExposedCopies(starts[kept], ends[kept], cause[kept].astype(np.int8), np.tile(copy, 2)[kept], certain[kept])
