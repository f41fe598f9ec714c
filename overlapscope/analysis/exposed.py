"""Causes of exposed copies: each nanosecond has exactly one cause, the first that applies.

`docs/how-it-works/causes.md` has the order and meaning of the causes. If several copies run at once, a piece gets the
first cause that applies to any of them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from overlapscope.analysis.event_waits import EXACT, SURE_HANDOVER_NS, handover_ns
from overlapscope.analysis.holds import Edges
from overlapscope.analysis.host_work import launchers
from overlapscope.analysis.pieces import Exposed, cut_at
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import I8, I64, Bool, Columns, Index, pick
from overlapscope.base.grouping import distinct, first_of_each, rows_by
from overlapscope.base.intervals import covered, expand, few_at_once, intersect, subtract, total, union
from overlapscope.catalog.causes import COPY_RANK as RANK
from overlapscope.catalog.causes import OTHER_RANK, CopyCause, OtherCause
from overlapscope.trace import op_names
from overlapscope.trace.host import Blocking, last_before
from overlapscope.trace.model import GpuOps, Kind, Memory, Trace

# -- Reasons that hold for copies and communication alike --------------------------------------------


PROMPT_NS = 50_000
"""Maximum time from a call's return to the start of an op that nothing on the device delayed."""

QUEUE_NS = 50_000
"""Maximum time from the end of an op to the start of the next one queued on the same engine or stream."""

NEVER = np.iinfo(np.int64).max


class DeviceRecording(Struct, frozen=True, eq=False, weakref=True):
    """Data in which causes are looked up."""

    trace: Trace
    timeline: Timeline
    edges: Edges
    blocking: Blocking
    bounds: I64
    """Instants between which supply and demand are compared, including the window's edges."""
    issued: I64
    """Time at which each op's launch call returned; `NEVER` where not recorded."""


MAX_AT_ONCE: Final = 32
"""Maximum number of ops to look at in a piece of exposed time."""


def recorded(trace: Trace, timeline: Timeline, edges: Edges, blocking: Blocking, periods: I64) -> DeviceRecording:
    """Return the data on a device. `periods` are the instants at which steps begin.

    Anything that runs before the first step counts for that step, whose copies run before its first compute.
    """
    judged = timeline.judged_from_ns
    bounds = distinct(np.concatenate([[timeline.start_ns, judged, timeline.end_ns], periods[1:]]))
    issued = pick(trace.runtime_calls.end_ns, timeline.ops.launch, NEVER)
    return DeviceRecording(trace, timeline, edges, blocking, bounds, issued)


def running_in(start: I64, begin: I64, end: I64) -> tuple[Index, Index]:
    """Return which ops run in which pieces, given by their starts. Pieces must be cut at the ops' edges.

    If a piece has more than `MAX_AT_ONCE` ops, only those that end last count. A GPU hardly runs so many at once.

    Returns:
        Places of the ops and of the pieces, one for each pair, by op.
    """
    first, last = np.searchsorted(start, begin, side="left"), np.searchsorted(start, end, side="left")
    return expand(first, few_at_once(first, last, end, MAX_AT_ONCE))


def host_was_blocked(recording: DeviceRecording, blocking: I64, launch: I64, since: I64, until: I64) -> Bool:
    """Select launches that came late because the host was blocked.

    For at least half of the time from `since` to `until`, and before the launch, its thread was in a blocking call, or
    did nothing while the thread of the previous launch was in one.

    Args:
        recording: The data.
        blocking: Rows of `Trace.runtime_calls` of the blocking calls that count.
        launch: Rows of `Trace.runtime_calls`; -1 where unknown.
        since: Start of the time in which the launch was missed.
        until: End of that time.

    Returns:
        Mask of `launch`.
    """
    calls = recording.trace.runtime_calls
    blocked = np.zeros(len(launch), np.bool_)
    waiting = calls.take(blocking)
    rows = np.flatnonzero(launch >= 0)
    for launcher, which in launchers(recording.trace, launch[rows]):
        of_threads = rows[which]
        begin, end = since[of_threads], until[of_threads]
        before = np.minimum(end, calls.start_ns[launch[of_threads]])
        blocked[of_threads] = 2 * covered(launcher.inside(waiting), begin, before) >= end - begin
    return blocked


def last_blocking(recording: DeviceRecording, launch: I64, until: I64) -> I64:
    """Return the last blocking call that begins before an instant, on the launch's thread or else on any; or -1.

    Calls and launches are rows of `Trace.runtime_calls`.
    """
    calls = recording.trace.runtime_calls
    return last_before(calls, recording.blocking.row, pick(calls.thread, launch), until)


# -- Exposed copies ----------------------------------------------------------------------------------


_LONGEST_CHAIN = 64

LEGACY_STREAMS = (0, 7)
"""Ids under which the legacy default stream is recorded: ROCm's and CUPTI's (first context)."""


class _Pairs(Columns, frozen=True):
    """Exposed pieces with the copies that run in them. A piece with several copies has several rows."""

    piece: I64
    """Number of the piece."""
    copy: I64
    """Row of `Timeline.ops`."""
    period: I64
    """Number of the period between two of `DeviceRecording.bounds`."""
    exposed_from: I64
    """Start of the exposed stretch around the piece, within the copy."""
    exposed_to: I64
    """End of the exposed stretch around the piece, within the copy."""
    issued: I64
    """Time at which the copy's launch call returned; `NEVER` where not recorded."""
    following: I64
    """Row of `Timeline.ops` of the first compute op that begins at or after `exposed_from`; -1 if none does."""


def attribute(recording: DeviceRecording) -> Exposed:
    """Return the causes of a device's exposed copies. Supply and demand are compared in each of its periods."""
    timeline, ops, bounds = recording.timeline, recording.timeline.ops, recording.bounds
    copies = np.flatnonzero(ops.is_copy)
    _, start, end = cut_at(*timeline.exposed_copy, [bounds, ops.start_ns[copies], ops.end_ns[copies]])
    period = np.searchsorted(bounds, start, side="right") - 1
    pairs = _pair(recording, start, period, copies)
    rank, confidence = _rank_pairs(recording, pairs)
    # A piece gets the first cause in order among its copies.
    chosen = first_of_each(pairs.piece, rank)
    piece_rank = rank[chosen]
    piece_rank[end <= timeline.judged_from_ns] = RANK[CopyCause.LEAD_IN]
    excess = _without_supply(recording, start, end, piece_rank, period)
    copy, confidence = pairs.copy[chosen], confidence[chosen]
    without = np.full(len(start), RANK[CopyCause.NO_COMPUTE])
    return Exposed.in_order(
        [
            _pieces(ops, copy, start, start + excess, without, np.full_like(confidence, EXACT)),
            _pieces(ops, copy, start + excess, end, piece_rank, confidence),
        ]
    )


def _pieces(ops: GpuOps, op: I64, start: I64, end: I64, cause: I64, confidence: I8) -> Exposed:
    """Return pieces of exposed memory work, given the op that decided each one's cause."""
    return Exposed.filled(
        start_ns=start, end_ns=end, cause=cause, confidence=confidence, op=op, call=ops.launch[op], held_by=-1
    )


def _pair(recording: DeviceRecording, start: I64, period: I64, copies: I64) -> _Pairs:
    """Return the pieces, given by their starts, with the copies that run in each."""
    ops, exposed = recording.timeline.ops, recording.timeline.exposed_copy
    which, piece = running_in(start, ops.start_ns[copies], ops.end_ns[copies])
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


def _rank_pairs(recording: DeviceRecording, pairs: _Pairs) -> tuple[I64, I8]:
    """Return the first cause that applies to each pair, and its confidence."""
    timeline, ops, copy = recording.timeline, recording.timeline.ops, pairs.copy
    held, held_confidence = _held_by_compute(recording)
    waited_for, waited_confidence, queued = _compute_waits_for_copy(recording, pairs)
    # Late copies had no compute to run beside between their issue and their start.
    began, issued = ops.start_ns[copy], pairs.issued
    late = (issued < NEVER) & ((began - issued <= PROMPT_NS) | (covered(timeline.compute, issued, began) == 0))
    # If compute runs both before and after the stretch within the copy, the copy was in time and the compute was late.
    late &= (pairs.exposed_from == began) | (pairs.exposed_to == ops.end_ns[copy])
    # The compute was launched late while the host was blocked.
    blocking = recording.blocking.row[~recording.blocking.allocation]
    launch = pick(ops.launch, pairs.following)
    blocked = host_was_blocked(recording, blocking, launch, pairs.exposed_from, pairs.exposed_to)
    missed = covered(timeline.compute, issued, pairs.exposed_from) > 0

    in_order: list[tuple[CopyCause, Bool]] = [
        (CopyCause.PAGEABLE_MEMORY, ops.host_memory[copy] == Memory.PAGEABLE),
        (CopyCause.SAME_STREAM, _on_compute_stream(recording, pairs)),
        (CopyCause.EVENT_WAIT, held[copy]),
        (CopyCause.HOST_SYNC, blocked),
        (CopyCause.ENGINE_BUSY, _queued_behind(timeline, copy, issued) | queued & missed),
        (CopyCause.LATE_ISSUE, late),
        (CopyCause.EVENT_WAIT, waited_for),
    ]
    rank = np.full(len(copy), RANK[CopyCause.UNKNOWN], np.int64)
    for cause, applies in reversed(in_order):
        rank[applies] = RANK[cause]
    by_edge = np.where(held[copy], held_confidence[copy], waited_confidence)
    return rank, np.where(rank == RANK[CopyCause.EVENT_WAIT], by_edge, EXACT).astype(np.int8)


def _on_compute_stream(recording: DeviceRecording, pairs: _Pairs) -> Bool:
    """Select copies on the stream of the compute that could have hidden them.

    Only the period's compute without a copy beside it could have hidden them. The copy's stream must carry at least
    half as much of that compute as any other stream. It must also carry at least half as much of all compute, since a
    cast after the copy doesn't make a compute stream.

    Returns:
        Mask of the pairs.
    """
    timeline, bounds = recording.timeline, recording.bounds
    ops, periods = timeline.ops, len(bounds) - 1
    # For each pair, the compute on the copy's stream in its period; for each period, that of the stream with the most.
    alone_ns, compute_ns = np.zeros((2, len(pairs)), np.int64)
    most_alone_ns, most_compute_ns = np.zeros((2, len(bounds)), np.int64)
    on_legacy = np.zeros(len(pairs), np.bool_)
    pairs_of = dict(rows_by(ops.stream[pairs.copy]))
    for stream, rows in rows_by(ops.stream):
        pairs_on_stream = pairs_of.get(stream, np.empty(0, np.int64))
        if stream in LEGACY_STREAMS:
            on_legacy[pairs_on_stream] = _orders_all(recording, stream)
        kernels = rows[ops.kind[rows] == Kind.COMPUTE]
        computes = union(ops.start_ns[kernels], ops.end_ns[kernels])
        if not len(computes.starts):
            continue
        first, last = np.searchsorted(bounds, (computes.starts[0], computes.ends[-1])).tolist()
        here = slice(max(first - 1, 0), min(last, periods))
        for intervals, of_pair, most in (
            (subtract(computes, timeline.copy), alone_ns, most_alone_ns),
            (computes, compute_ns, most_compute_ns),
        ):
            in_period = covered(intervals, bounds[:-1][here], bounds[1:][here])
            most[here] = np.maximum(most[here], in_period)
            of_pair[pairs_on_stream] = pick(in_period, pairs.period[pairs_on_stream] - here.start, 0)
    alone, most = alone_ns, most_alone_ns[pairs.period]
    ordered: Bool = (alone > 0) & (2 * alone >= most)
    ordered &= 2 * compute_ns >= most_compute_ns[pairs.period]
    ordered |= on_legacy & (most > 0)
    return ordered


def _orders_all(recording: DeviceRecording, stream: int) -> bool:
    """Return whether a legacy default stream was observed to exclude the others.

    Then their work never ran beside its own, and some op that was already queued had to wait for the other side without
    any event wait. Only streams created as blocking wait for the default stream (CUDA C++ Programming Guide, "Default
    Stream"). PyTorch's are not, so their ops run beside those of the default stream. Old ROCm traces put all copies on
    stream 0.
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
        # The op must be the first of its side to run after the other side had ended.
        first = pick(busy.starts, np.searchsorted(busy.starts, ended, side="left")) == ops.start_ns[rows]
        if (queued & first & (ops.start_ns[rows] - ended <= SURE_HANDOVER_NS)).any():
            return True
    return False


def _held_by_compute(recording: DeviceRecording) -> tuple[Bool, I8]:
    """Select copies that an event wait held until compute had ended: issued before that end, started after it.

    The same applies to a copy that waited by event for such a copy, or directly follows one on its stream, if it was
    also issued before that compute ended.

    Returns:
        Mask of the device's ops, and the confidence in each.
    """
    timeline, edges, issued = recording.timeline, recording.edges, recording.issued
    ops, copying = timeline.ops, timeline.ops.is_copy
    kernel = (ops.kind == Kind.COMPUTE) | (ops.kind == Kind.COMM)
    near = ops.start_ns[edges.held] - edges.source_end_ns <= handover_ns(edges.confidence)
    # If an op waited for several ops, the last to end held it.
    waits = edges.take(np.flatnonzero(near & (edges.source >= 0)))
    waits = waits.take(np.argsort(waits.source_end_ns, kind="stable"))
    # Copies that begin when the previous copy on their stream ends.
    order = np.lexsort((np.arange(len(ops)), ops.stream))
    leader, follower = order[:-1], order[1:]
    follows = (ops.stream[follower] == ops.stream[leader]) & copying[follower] & copying[leader]
    follows &= ops.start_ns[follower] - ops.end_ns[leader] <= QUEUE_NS
    leader, follower = leader[follows], follower[follows]
    until = np.full(len(ops), -1, np.int64)
    confidence = np.full(len(ops), EXACT, np.int8)
    for _ in range(_LONGEST_CHAIN):
        held_before = int((until >= 0).sum())
        through = np.where(kernel[waits.source], waits.source_end_ns, until[waits.source])
        holds = (through >= 0) & (issued[waits.held] <= through) & copying[waits.held]
        until[waits.held[holds]] = through[holds]
        confidence[waits.held[holds]] = np.minimum(waits.confidence, confidence[waits.source])[holds]
        inherits = (until[follower] < 0) & (until[leader] >= 0) & (issued[follower] <= until[leader])
        until[follower[inherits]] = until[leader[inherits]]
        confidence[follower[inherits]] = confidence[leader[inherits]]
        if int((until >= 0).sum()) == held_before:
            break
    return until >= 0, confidence


def _queued_behind(timeline: Timeline, copy: I64, issued: I64) -> Bool:
    """Select copies queued behind another one of their direction.

    They began when that one ended, were issued before that, and missed compute in between.

    Returns:
        Mask of the rows of `copy`.
    """
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


def _compute_waits_for_copy(recording: DeviceRecording, pairs: _Pairs) -> tuple[Bool, I8, Bool]:
    """Find compute that was launched in time but waited by event for a copy.

    Returns:
        Whether it waited for this copy, the confidence, and whether it waited for another copy that was queued behind
            this one.
    """
    ops, edges = recording.timeline.ops, recording.edges
    near = edges.take(ops.start_ns[edges.held] - edges.source_end_ns <= handover_ns(edges.confidence))
    edge = pick(near.last_to_end(len(ops)), pairs.following)
    waited = pick(near.source, edge)
    in_time = (waited >= 0) & (pick(recording.issued, pairs.following, NEVER) <= pairs.exposed_to)
    copy_end = ops.end_ns[pairs.copy]
    for_this = in_time & (ops.stream[waited] == ops.stream[pairs.copy]) & (ops.end_ns[waited] >= copy_end)
    behind = in_time & (waited != pairs.copy) & (ops.kind[waited] == ops.kind[pairs.copy])
    behind &= (ops.start_ns[waited] >= copy_end) & (recording.issued[waited] <= copy_end)
    return for_this, pick(near.confidence, edge, EXACT).astype(np.int8), behind


def _without_supply(recording: DeviceRecording, start: I64, end: I64, rank: I64, period: I64) -> I64:
    """Return how much of each piece no order of the same work could hide.

    In each period, it is the demand of copies minus the supply of compute, shared in proportion.
    """
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
        # Rounding the running share instead of each share makes the parts add up; the last is the excess itself.
        shared = np.floor(passed * (excess[number] / demand[number])).astype(np.int64)
        shared[passed == demand[number]] = excess[number]
        part[of_period] = np.diff(np.minimum(shared, excess[number]), prepend=0)
    return part


# -- Other memory work -------------------------------------------------------------------------------


def attribute_other(timeline: Timeline) -> Exposed:
    """Return the exposed memory work in and between GPUs by kind. If several run at once, the first in order counts."""
    ops = timeline.ops
    rows = np.flatnonzero((ops.kind == Kind.OTHER) | (ops.kind == Kind.P2P))
    begin, end = ops.start_ns[rows], ops.end_ns[rows]
    _, starts, ends = cut_at(*timeline.exposed_other, [begin, end])
    which, piece = running_in(starts, begin, end)
    in_order = (
        (OtherCause.PEER_COPY, ops.kind == Kind.P2P),
        (OtherCause.PAGE_MIGRATION, ops.named(op_names.is_migration)),
        (OtherCause.MEMSET, ops.named(op_names.is_fill)),
        (OtherCause.UNKNOWN, ops.named(op_names.hides_direction)),
    )
    masks, ranks = ([mask for _, mask in in_order], [OTHER_RANK[cause] for cause, _ in in_order])
    rank = np.select(masks, ranks, OTHER_RANK[OtherCause.DEVICE_COPY])[rows[which]]
    first = first_of_each(piece, rank)
    return _pieces(ops, rows[which[first]], starts, ends, rank[first], np.full(len(first), EXACT, np.int8))
