"""Why each exposed copy is exposed: every nanosecond to exactly one cause, the first that applies.

The order and meaning of the causes are in `docs/causes.md`. Where several copies run at once, a piece goes to
the cause that stands first for any of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from overlapscope.analysis.edges import EXACT, SURE_HANDOVER_NS, Edges, handover_ns
from overlapscope.analysis.grouping import distinct, groups_of, rows_by
from overlapscope.analysis.host import Blocking, companion_of, inside_with
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import pick
from overlapscope.base.intervals import I64, Bool, Index, contains, covered, expand, intersect, subtract, total, union
from overlapscope.catalog.causes import COPY_RANK as RANK
from overlapscope.catalog.causes import CopyCause
from overlapscope.trace.model import I8, Kind, Memory, Trace

PROMPT_NS = 50_000
"""A copy that begins at most this long after its call returned was held up by nothing on the device."""

QUEUE_NS = 50_000
"""A copy that was queued behind another on its engine or stream begins at most this long after it."""

_LONGEST_CHAIN = 64

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
    copies = np.flatnonzero(ops.is_copy)
    judged = t.judged_from_ns
    bounds = distinct(np.concatenate([[t.start_ns, judged, t.end_ns], periods[1:]]))
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
    edges = distinct(np.concatenate([exposed.starts, exposed.ends, cuts]))
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
    ops, copy = timeline.ops, pairs.copy
    issue = _issue(trace, timeline)
    issued = issue[copy]
    following = _next_compute(timeline, pairs.exposed_from)
    held, held_confidence = _held_by_compute(timeline, edges, issue)
    waited_for, waited_confidence, queued = _compute_waits_for_copy(timeline, edges, issue, pairs, following)
    # From its issue to its start no compute ran that it could have run beside.
    began = ops.start_ns[copy]
    late = (issued < _NEVER) & ((began - issued <= PROMPT_NS) | (covered(timeline.compute, issued, began) == 0))
    # Where compute runs before and after within the copy, the copy came in time; the launches of compute did not.
    late &= (pairs.exposed_from == began) | (pairs.exposed_to == ops.end_ns[copy])
    missed = covered(timeline.compute, issued, pairs.exposed_from) > 0

    found: list[tuple[CopyCause, Bool]] = [
        (CopyCause.PAGEABLE_MEMORY, ops.host_memory[copy] == Memory.PAGEABLE),
        (CopyCause.SAME_STREAM, _on_compute_stream(trace, timeline, edges, pairs, bounds, period)),
        (CopyCause.EVENT_WAIT, held[copy]),
        (CopyCause.HOST_SYNC, _host_was_blocked(trace, timeline, blocking, pairs, following)),
        (CopyCause.ENGINE_BUSY, _queued_behind(timeline, copy, issued) | queued & missed),
        (CopyCause.LATE_ISSUE, late),
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


_NEVER = np.iinfo(np.int64).max


def _issue(trace: Trace, timeline: Timeline) -> I64:
    """When each op's launch call returned; `_NEVER` where it was not recorded."""
    launch = timeline.ops.launch
    return pick(trace.runtime_calls.end_ns, launch, _NEVER)


def _next_compute(timeline: Timeline, at: I64) -> I64:
    """Row of the first compute op that begins at or after each instant; -1 if none does."""
    rows = np.flatnonzero(timeline.ops.kind == Kind.COMPUTE)
    return pick(rows, np.searchsorted(timeline.ops.start_ns[rows], at, side="left"))


def _on_compute_stream(trace: Trace, timeline: Timeline, edges: Edges, pairs: _Pairs, bounds: I64, period: I64) -> Bool:
    """The compute that could have hidden the copy sits on the copy's own stream.

    That compute is the part of the period's that no copy ran beside. The copy's stream must carry at least half
    as much of it as any other does, and of all compute too: a cast behind the copy makes no compute stream.
    """
    ops = timeline.ops
    streams = distinct(ops.stream)
    share = np.zeros((len(streams), len(bounds)), np.int64)
    whole = np.zeros((len(streams), len(bounds)), np.int64)
    on_legacy = np.zeros(len(streams), np.bool_)
    for number, (stream, rows) in enumerate(rows_by(ops.stream)):
        if stream in LEGACY_STREAMS:
            on_legacy[number] = _orders_all(trace, timeline, edges, stream)
        mine = rows[ops.kind[rows] == Kind.COMPUTE]
        if not len(mine):
            continue
        computes = union(ops.start_ns[mine], ops.end_ns[mine])
        whole[number, :-1] = covered(computes, bounds[:-1], bounds[1:])
        share[number, :-1] = covered(subtract(computes, timeline.copy), bounds[:-1], bounds[1:])
    row = np.searchsorted(streams, ops.stream[pairs.copy])
    when = period[pairs.piece]
    own, most = share[row, when], share.max(axis=0, initial=0)[when]
    ordered: Bool = (own > 0) & (2 * own >= most)
    ordered &= 2 * whole[row, when] >= whole.max(axis=0, initial=0)[when]
    ordered |= on_legacy[row] & (most > 0)
    return ordered


def _orders_all(trace: Trace, timeline: Timeline, edges: Edges, stream: int) -> bool:
    """Whether a legacy default stream is shown to exclude the others: their work never ran beside its own, and some
    op that was already queued had to wait for the other side, which no event wait explains.

    Only streams created as blocking wait for it (CUDA C++ Programming Guide, "Default Stream"); PyTorch's are
    not, so their ops do run beside those of the default stream. Old ROCm traces put all copies on stream 0.
    """
    ops, calls = timeline.ops, trace.runtime_calls
    mine = ops.stream == stream
    if mine.all() or len(edges.held) or any(calls.names[i].startswith("hip") for i in distinct(calls.name_id)):
        return False
    own = union(ops.start_ns[mine], ops.end_ns[mine])
    others = union(ops.start_ns[~mine], ops.end_ns[~mine])
    if not len(own.starts) or not len(others.starts) or total(intersect(own, others)):
        return False
    for here, busy, excluded in ((mine, own, others), (~mine, others, own)):
        rows = np.flatnonzero(here & (ops.launch >= 0))
        last = np.searchsorted(excluded.ends, ops.start_ns[rows], side="right") - 1
        ended = pick(excluded.ends, last, 0)
        queued = (last >= 0) & (calls.end_ns[ops.launch[rows]] < ended - SURE_HANDOVER_NS)
        # It was the first of its side to run after the other had ended.
        first = pick(busy.starts, np.searchsorted(busy.starts, ended, side="left")) == ops.start_ns[rows]
        if (queued & first & (ops.start_ns[rows] - ended <= SURE_HANDOVER_NS)).any():
            return True
    return False


def _held_by_compute(timeline: Timeline, edges: Edges, issued: I64) -> tuple[Bool, I8]:
    """Copies that were issued before some compute ended, and began when it had: an event wait held them.

    So was a copy that waited by event for such a copy, or directly follows one on its stream, if it had been issued
    before that compute ended too.
    """
    ops = timeline.ops
    kernel = (ops.kind == Kind.COMPUTE) | (ops.kind == Kind.COMM)
    copying = ops.is_copy
    near = ops.start_ns[edges.held] - edges.source_end_ns <= handover_ns(edges.confidence)
    # An op may have waited for several; the one that ended last held it.
    waits = edges.take(np.flatnonzero(near & (edges.source >= 0)))
    waits = waits.take(np.argsort(waits.source_end_ns, kind="stable"))
    follower, leader = _directly_following(timeline)
    until = np.full(len(ops), -1, np.int64)
    confidence = np.full(len(ops), EXACT, np.int8)
    for _ in range(_LONGEST_CHAIN):
        known = int((until >= 0).sum())
        through = np.where(kernel[waits.source], waits.source_end_ns, until[waits.source])
        holds = (through >= 0) & (issued[waits.held] <= through) & copying[waits.held]
        until[waits.held[holds]] = through[holds]
        confidence[waits.held[holds]] = np.minimum(waits.confidence, confidence[waits.source])[holds]
        inherits = (until[follower] < 0) & (until[leader] >= 0) & (issued[follower] <= until[leader])
        until[follower[inherits]] = until[leader[inherits]]
        confidence[follower[inherits]] = confidence[leader[inherits]]
        if int((until >= 0).sum()) == known:
            break
    return until >= 0, confidence


def _directly_following(timeline: Timeline) -> tuple[Index, Index]:
    """Copies that begin when the copy before them on their stream ends, each with that copy."""
    ops, copying = timeline.ops, timeline.ops.is_copy
    order = np.lexsort((np.arange(len(ops)), ops.stream))
    before, after = order[:-1], order[1:]
    follows = (ops.stream[after] == ops.stream[before]) & copying[after] & copying[before]
    follows &= ops.start_ns[after] - ops.end_ns[before] <= QUEUE_NS
    return after[follows], before[follows]


def _host_was_blocked(trace: Trace, timeline: Timeline, blocking: Blocking, pairs: _Pairs, following: I64) -> Bool:
    """The next compute was launched only after the exposed stretch had begun, and for at least half of the
    stretch its thread sat in a blocking call, or did nothing while the thread that launched before it sat in one."""
    ops, calls = timeline.ops, trace.runtime_calls
    launch = np.where(following >= 0, ops.launch[following], -1)
    blocked = np.zeros(len(following), np.bool_)
    waiting = calls.take(blocking.row[~blocking.allocation])
    rows = np.flatnonzero(launch >= 0)
    pair = (calls.thread[launch[rows]], companion_of(trace, launch[rows]))
    for _, which in rows_by(groups_of(pair)) if len(rows) else ():
        thread, companion = (int(one[which[0]]) for one in pair)
        mine = rows[which]
        until = np.minimum(pairs.exposed_to[mine], calls.start_ns[launch[mine]])
        waits = inside_with(trace, thread, companion, waiting)
        waited = covered(waits, pairs.exposed_from[mine], until)
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
        ended = pick(ends, last, 0)
        queued[mine] = (
            (last >= 0)
            & (begin - ended <= QUEUE_NS)
            & (issued[mine] <= ended)
            & (covered(timeline.compute, issued[mine], begin) > 0)
        )
    return queued


def _compute_waits_for_copy(
    timeline: Timeline, edges: Edges, issued: I64, pairs: _Pairs, following: I64
) -> tuple[Bool, I8, Bool]:
    """Whether the next compute was launched in time but waited by event for this copy, with the confidence;
    and whether it waited for another one that was queued behind this copy."""
    ops = timeline.ops
    source = np.full(len(ops) + 1, -1, np.int64)
    confidence = np.full(len(ops) + 1, EXACT, np.int8)
    rows = edges.take(np.argsort(edges.source_end_ns, kind="stable"))
    near = ops.start_ns[rows.held] - rows.source_end_ns <= handover_ns(rows.confidence)
    source[rows.held[near]] = rows.source[near]
    confidence[rows.held[near]] = rows.confidence[near]
    waited = source[following]
    in_time = (waited >= 0) & (pick(issued, following, _NEVER) <= pairs.exposed_to)
    for_this = in_time & (ops.stream[waited] == ops.stream[pairs.copy])
    for_this &= ops.end_ns[waited] >= ops.end_ns[pairs.copy]
    behind = in_time & (waited != pairs.copy) & (ops.kind[waited] == ops.kind[pairs.copy])
    behind &= (ops.start_ns[waited] >= ops.end_ns[pairs.copy]) & (issued[waited] <= ops.end_ns[pairs.copy])
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
