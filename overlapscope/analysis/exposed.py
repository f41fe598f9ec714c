"""Why each exposed copy is exposed: every nanosecond to exactly one cause, the first that applies.

The order and meaning of the causes are in `docs/how-it-works/causes.md`. Where several copies run at once, a piece
goes to the cause that stands first for any of them.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from overlapscope.analysis.edges import EXACT, SURE_HANDOVER_NS, Edges, handover_ns
from overlapscope.analysis.grouping import distinct, rows_by
from overlapscope.analysis.host import Blocking, inside_with, launching_threads
from overlapscope.analysis.pieces import ExposedCopies
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import Columns, pick
from overlapscope.base.intervals import I64, Bool, Index, contains, covered, expand, intersect, subtract, total, union
from overlapscope.catalog.causes import COPY_RANK as RANK
from overlapscope.catalog.causes import CopyCause
from overlapscope.trace.model import I8, Kind, Memory, Trace

PROMPT_NS = 50_000
"""A copy that begins at most this long after its call returned was held up by nothing on the device."""

QUEUE_NS = 50_000
"""A copy that was queued behind another on its engine or stream begins at most this long after it."""

_LONGEST_CHAIN = 64

_NEVER = np.iinfo(np.int64).max

LEGACY_STREAMS = (0, 7)
"""Ids under which the legacy default stream is recorded: ROCm and CUPTI (first context)."""


class _Pairs(Columns, frozen=True):
    """An exposed piece and a copy that runs in it; several rows where several copies run at once."""

    piece: I64
    """Which piece."""
    copy: I64
    """Row of `Timeline.ops`."""
    period: I64
    """Which of the `_Periods` it lies in."""
    exposed_from: I64
    """Where the exposed stretch around the piece begins, within the copy..."""
    exposed_to: I64
    """...and ends."""
    issued: I64
    """When the copy's launch call returned; `_NEVER` where it was not recorded."""
    following: I64
    """Row of `Timeline.ops` of the first compute op that begins behind `exposed_from`; -1 if none does."""


class _Recording(Struct, frozen=True, eq=False):
    """What the causes are looked up in."""

    trace: Trace
    timeline: Timeline
    edges: Edges
    blocking: Blocking
    bounds: I64
    """Instants between two of which supply and demand are weighed, the window's edges among them."""
    issued: I64
    """When the launch call of each op returned; `_NEVER` where it was not recorded."""


def attribute(trace: Trace, timeline: Timeline, edges: Edges, blocking: Blocking, periods: I64) -> ExposedCopies:
    """The causes of a device's exposed copies.

    `periods`: instants at which steps begin; supply and demand are weighed between two of them, with what runs
    before the first step counted to it (its copies run before the compute that begins it).
    """
    ops, judged = timeline.ops, timeline.judged_from_ns
    bounds = distinct(np.concatenate([[timeline.start_ns, judged, timeline.end_ns], periods[1:]]))
    issued = pick(trace.runtime_calls.end_ns, ops.launch, _NEVER)
    recording = _Recording(trace, timeline, edges, blocking, bounds, issued)
    copies = np.flatnonzero(ops.is_copy)
    start, end = _pieces(timeline, np.concatenate([bounds, ops.start_ns[copies], ops.end_ns[copies]]))
    period = np.searchsorted(bounds, start, side="right") - 1
    pairs = _pair(recording, start, period, copies)
    rank, confidence = _rank_pairs(recording, pairs)
    # Of the copies in a piece the one whose cause stands first.
    order = np.lexsort((rank, pairs.piece))
    chosen = order[np.flatnonzero(np.diff(pairs.piece[order], prepend=-1))]
    piece_rank = rank[chosen]
    piece_rank[end <= judged] = RANK[CopyCause.LEAD_IN]
    excess = _without_supply(recording, start, end, piece_rank, period)
    copy, confidence = pairs.copy[chosen], confidence[chosen]
    return ExposedCopies.in_order(
        [
            ExposedCopies.filled(
                start_ns=start, end_ns=start + excess, cause=RANK[CopyCause.NO_COMPUTE], confidence=EXACT, copy=copy
            ),
            ExposedCopies.filled(
                start_ns=start + excess, end_ns=end, cause=piece_rank, confidence=confidence, copy=copy
            ),
        ]
    )


def _pieces(timeline: Timeline, cuts: I64) -> tuple[I64, I64]:
    """Starts and ends of the exposed copy time, cut at the given instants."""
    exposed = timeline.exposed_copy
    edges = distinct(np.concatenate([exposed.starts, exposed.ends, cuts]))
    inside = contains(exposed, edges[:-1])
    return edges[:-1][inside], edges[1:][inside]


def _pair(recording: _Recording, start: I64, period: I64, copies: I64) -> _Pairs:
    """The pieces, by their starts, with the copies that run in each."""
    ops, exposed = recording.timeline.ops, recording.timeline.exposed_copy
    first = np.searchsorted(start, ops.start_ns[copies], side="left")
    which, piece = expand(first, np.searchsorted(start, ops.end_ns[copies], side="left"))
    copy = copies[which]
    stretch = np.searchsorted(exposed.starts, start[piece], side="right") - 1
    exposed_from = np.maximum(exposed.starts[stretch], ops.start_ns[copy])
    compute = np.flatnonzero(ops.kind == Kind.COMPUTE)
    return _Pairs(
        piece=piece,
        copy=copy,
        period=period[piece],
        exposed_from=exposed_from,
        exposed_to=np.minimum(exposed.ends[stretch], ops.end_ns[copy]),
        issued=recording.issued[copy],
        following=pick(compute, np.searchsorted(ops.start_ns[compute], exposed_from, side="left")),
    )


def _rank_pairs(recording: _Recording, pairs: _Pairs) -> tuple[I64, I8]:
    """The first cause that applies to each pair, and how sure it is."""
    timeline, ops, copy = recording.timeline, recording.timeline.ops, pairs.copy
    held, held_confidence = _held_by_compute(recording)
    waited_for, waited_confidence, queued = _compute_waits_for_copy(recording, pairs)
    # From its issue to its start no compute ran that it could have run beside.
    began, issued = ops.start_ns[copy], pairs.issued
    late = (issued < _NEVER) & ((began - issued <= PROMPT_NS) | (covered(timeline.compute, issued, began) == 0))
    # Where compute runs before and after within the copy, the copy came in time; the launches of compute did not.
    late &= (pairs.exposed_from == began) | (pairs.exposed_to == ops.end_ns[copy])
    missed = covered(timeline.compute, issued, pairs.exposed_from) > 0

    in_order: list[tuple[CopyCause, Bool]] = [
        (CopyCause.PAGEABLE_MEMORY, ops.host_memory[copy] == Memory.PAGEABLE),
        (CopyCause.SAME_STREAM, _on_compute_stream(recording, pairs)),
        (CopyCause.EVENT_WAIT, held[copy]),
        (CopyCause.HOST_SYNC, _host_was_blocked(recording, pairs)),
        (CopyCause.ENGINE_BUSY, _queued_behind(timeline, copy, issued) | queued & missed),
        (CopyCause.LATE_ISSUE, late),
        (CopyCause.EVENT_WAIT, waited_for),
    ]
    rank = np.full(len(copy), RANK[CopyCause.UNKNOWN], np.int64)
    for cause, applies in reversed(in_order):
        rank[applies] = RANK[cause]
    by_edge = np.where(held[copy], held_confidence[copy], waited_confidence)
    return rank, np.where(rank == RANK[CopyCause.EVENT_WAIT], by_edge, EXACT).astype(np.int8)


def _on_compute_stream(recording: _Recording, pairs: _Pairs) -> Bool:
    """The compute that could have hidden the copy sits on the copy's own stream.

    That compute is the part of the period's that no copy ran beside. The copy's stream must carry at least half
    as much of it as any other does, and of all compute too: a cast behind the copy makes no compute stream.
    """
    timeline, bounds = recording.timeline, recording.bounds
    ops, streams = timeline.ops, distinct(timeline.ops.stream)
    alone_ns, compute_ns = np.zeros((2, len(streams), len(bounds)), np.int64)
    on_legacy = np.zeros(len(streams), np.bool_)
    for number, (stream, rows) in enumerate(rows_by(ops.stream)):
        if stream in LEGACY_STREAMS:
            on_legacy[number] = _orders_all(recording, stream)
        kernels = rows[ops.kind[rows] == Kind.COMPUTE]
        computes = union(ops.start_ns[kernels], ops.end_ns[kernels])
        compute_ns[number, :-1] = covered(computes, bounds[:-1], bounds[1:])
        alone_ns[number, :-1] = covered(subtract(computes, timeline.copy), bounds[:-1], bounds[1:])
    row = np.searchsorted(streams, ops.stream[pairs.copy])
    alone, most = alone_ns[row, pairs.period], alone_ns.max(axis=0, initial=0)[pairs.period]
    ordered: Bool = (alone > 0) & (2 * alone >= most)
    ordered &= 2 * compute_ns[row, pairs.period] >= compute_ns.max(axis=0, initial=0)[pairs.period]
    ordered |= on_legacy[row] & (most > 0)
    return ordered


def _orders_all(recording: _Recording, stream: int) -> bool:
    """Whether a legacy default stream is shown to exclude the others: their work never ran beside its own, and some
    op that was already queued had to wait for the other side, which no event wait explains.

    Only streams created as blocking wait for it (CUDA C++ Programming Guide, "Default Stream"); PyTorch's are
    not, so their ops do run beside those of the default stream. Old ROCm traces put all copies on stream 0.
    """
    ops, calls = recording.timeline.ops, recording.trace.runtime_calls
    on_stream = ops.stream == stream
    if on_stream.all() or len(recording.edges) or calls.named(lambda name: name.startswith("hip")).any():
        return False
    busy_here = union(ops.start_ns[on_stream], ops.end_ns[on_stream])
    others = union(ops.start_ns[~on_stream], ops.end_ns[~on_stream])
    if not len(busy_here.starts) or not len(others.starts) or total(intersect(busy_here, others)):
        return False
    for here, busy, excluded in ((on_stream, busy_here, others), (~on_stream, others, busy_here)):
        rows = np.flatnonzero(here & (ops.launch >= 0))
        last = np.searchsorted(excluded.ends, ops.start_ns[rows], side="right") - 1
        ended = pick(excluded.ends, last, 0)
        queued = (last >= 0) & (calls.end_ns[ops.launch[rows]] < ended - SURE_HANDOVER_NS)
        # It was the first of its side to run after the other had ended.
        first = pick(busy.starts, np.searchsorted(busy.starts, ended, side="left")) == ops.start_ns[rows]
        if (queued & first & (ops.start_ns[rows] - ended <= SURE_HANDOVER_NS)).any():
            return True
    return False


def _held_by_compute(recording: _Recording) -> tuple[Bool, I8]:
    """Copies that were issued before some compute ended, and began when it had: an event wait held them.

    So was a copy that waited by event for such a copy, or directly follows one on its stream, if it had been issued
    before that compute ended too.
    """
    timeline, edges, issued = recording.timeline, recording.edges, recording.issued
    ops, copying = timeline.ops, timeline.ops.is_copy
    kernel = (ops.kind == Kind.COMPUTE) | (ops.kind == Kind.COMM)
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


def _host_was_blocked(recording: _Recording, pairs: _Pairs) -> Bool:
    """The next compute was launched only after the exposed stretch had begun, and for at least half of the
    stretch its thread sat in a blocking call, or did nothing while the thread that launched before it sat in one."""
    trace, calls, blocking = recording.trace, recording.trace.runtime_calls, recording.blocking
    launch = pick(recording.timeline.ops.launch, pairs.following)
    blocked = np.zeros(len(pairs), np.bool_)
    waiting = calls.take(blocking.row[~blocking.allocation])
    rows = np.flatnonzero(launch >= 0)
    for thread, companion, which in launching_threads(trace, launch[rows]):
        asked = rows[which]
        until = np.minimum(pairs.exposed_to[asked], calls.start_ns[launch[asked]])
        waits = inside_with(trace, thread, companion, waiting)
        waited = covered(waits, pairs.exposed_from[asked], until)
        blocked[asked] = 2 * waited >= pairs.exposed_to[asked] - pairs.exposed_from[asked]
    return blocked


def _queued_behind(timeline: Timeline, copy: I64, issued: I64) -> Bool:
    """Copies that began when another of their direction ended, had been issued before that, and missed
    compute meanwhile."""
    ops = timeline.ops
    queued = np.zeros(len(copy), np.bool_)
    for kind in (Kind.H2D, Kind.D2H):
        rows = np.flatnonzero(ops.kind == kind)
        ends = np.sort(ops.end_ns[rows])
        of_kind = ops.kind[copy] == kind
        begin = ops.start_ns[copy[of_kind]]
        last = np.searchsorted(ends, begin, side="right") - 1
        ended = pick(ends, last, 0)
        queued[of_kind] = (
            (last >= 0)
            & (begin - ended <= QUEUE_NS)
            & (issued[of_kind] <= ended)
            & (covered(timeline.compute, issued[of_kind], begin) > 0)
        )
    return queued


def _compute_waits_for_copy(recording: _Recording, pairs: _Pairs) -> tuple[Bool, I8, Bool]:
    """Whether the next compute was launched in time but waited by event for this copy, with the confidence;
    and whether it waited for another one that was queued behind this copy."""
    ops, edges = recording.timeline.ops, recording.edges
    near = edges.take(ops.start_ns[edges.held] - edges.source_end_ns <= handover_ns(edges.confidence))
    # Of several that an op waited for, the one that ended last.
    near = near.take(np.argsort(near.source_end_ns, kind="stable"))
    source, confidence = np.full(len(ops), -1, np.int64), np.full(len(ops), EXACT, np.int8)
    source[near.held], confidence[near.held] = near.source, near.confidence
    waited = pick(source, pairs.following)
    in_time = (waited >= 0) & (pick(recording.issued, pairs.following, _NEVER) <= pairs.exposed_to)
    copy_end = ops.end_ns[pairs.copy]
    for_this = in_time & (ops.stream[waited] == ops.stream[pairs.copy]) & (ops.end_ns[waited] >= copy_end)
    behind = in_time & (waited != pairs.copy) & (ops.kind[waited] == ops.kind[pairs.copy])
    behind &= (ops.start_ns[waited] >= copy_end) & (recording.issued[waited] <= copy_end)
    return for_this, pick(confidence, pairs.following, EXACT).astype(np.int8), behind


def _without_supply(recording: _Recording, start: I64, end: I64, rank: I64, period: I64) -> I64:
    """How much of each piece no order of the same work could hide: per period X - C, shared in proportion."""
    timeline, bounds = recording.timeline, recording.bounds
    length = np.where(rank > RANK[CopyCause.PAGEABLE_MEMORY], end - start, 0)
    demand = np.zeros(len(bounds), np.int64)
    np.add.at(demand, period, length)
    supply = np.append(covered(subtract(timeline.compute, timeline.copy), bounds[:-1], bounds[1:]), 0)
    excess = np.maximum(demand - supply, 0)
    part = np.zeros(len(start), np.int64)
    for number in np.flatnonzero(excess):
        of_period = slice(*np.searchsorted(period, [number, number + 1]))
        passed = np.cumsum(length[of_period])
        # Rounding the running share, not each share, makes the parts add up; the last is the excess itself.
        shared = np.floor(passed * (excess[number] / demand[number])).astype(np.int64)
        shared[passed == demand[number]] = excess[number]
        part[of_period] = np.diff(np.minimum(shared, excess[number]), prepend=0)
    return part
