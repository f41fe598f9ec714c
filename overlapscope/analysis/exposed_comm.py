"""Causes of exposed communication: each nanosecond has exactly one cause.

If several collectives run at once, the piece belongs to the collective that the next compute waits for. If the next
compute waits for several or for none, it belongs to the last to end. Then two questions are asked:

- Does the next compute wait for it? If not, the compute could have run beside it, and the cause is what kept it.
- If so, could the collective have begun earlier, beside compute? It began when its launch, the collective before it on
  its stream, and the event that it waited for had all come. If the last of these had come first, the others would have
  let it begin earlier, and more compute would have run beside it. The cause gets as much of the exposed time. The rest
  outlasted the compute beside it, or there was none.

Waits follow from streams and event waits, as far as these are known or rebuilt (`holds.py`). `order.py` also follows
the host, but leaves out event waits that the trace doesn't state, which are most of them in traces of CUDA 13.
`docs/how-it-works/causes.md` has the causes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.collectives import comm_kinds
from overlapscope.analysis.event_waits import EXACT, LOW, SURE_HANDOVER_NS
from overlapscope.analysis.exposed import (
    NEVER,
    PROMPT_NS,
    QUEUE_NS,
    DeviceRecording,
    host_was_blocked,
    last_blocking,
    running_in,
)
from overlapscope.analysis.idle import LAUNCH_LATENCY_NS
from overlapscope.analysis.pieces import CommOps, Exposed, cut_at, first_part
from overlapscope.base.columns import locate, mask_of, pick
from overlapscope.base.grouping import among, distinct, first_of_each, rows_by
from overlapscope.base.intervals import I64, Bool, covered, total, union
from overlapscope.base.kept import kept
from overlapscope.catalog.causes import COMM_RANK as RANK
from overlapscope.catalog.causes import CommCause
from overlapscope.trace.host import around
from overlapscope.trace.model import GpuOps, Kind, RuntimeCalls

# -- Order that a communicator keeps -----------------------------------------------------------------


@kept()
def by_communicator(recording: DeviceRecording) -> Bool:
    """Select edges between collectives of one group whose wait was made by the launch of the later one.

    NCCL runs the collectives of a communicator one after the other. If they are on different streams, it makes the
    later one's stream wait while the program launches it. The program itself did not request such a wait.

    Returns:
        Mask of `recording.edges`.
    """
    trace, ops, edges = recording.trace, recording.timeline.ops, recording.edges
    source = edges.source
    both = (pick(ops.kind, source) == Kind.COMM) & (ops.kind[edges.held] == Kind.COMM)
    result: Bool = both & (ops.stream[source] != ops.stream[edges.held])
    rows = np.flatnonzero(result)
    if len(rows):
        comm = np.flatnonzero(ops.kind == Kind.COMM)
        group = np.full(len(ops), -1, np.int64)
        group[comm] = pick(trace.collectives.group, comm_kinds(trace, ops.take(comm)).row)
        held, calls, notes = edges.held[rows], trace.runtime_calls, trace.annotations
        # PyTorch launches collectives in such ranges (`nccl:all_reduce`, `nccl:coalesced`).
        launching = notes.take(notes.named(lambda name: name.startswith("nccl:")))
        inside = [
            around(launching, pick(calls.thread, call), pick(calls.start_ns, call))
            for call in (edges.wait[rows], ops.launch[held])
        ]
        result[rows] = (group[source[rows]] == group[held]) & (group[held] >= 0)
        result[rows] &= (inside[0] == inside[1]) & (inside[0] >= 0)
    return result


# -- What lets collectives begin ---------------------------------------------------------------------

_LONGEST_CHAIN = 16
_MAX_STREAMS = 64
"""Maximum streams of compute to follow, because each takes time and memory in proportion to all ops; likewise of
communication."""
NOT_AWAITED, UNFOLLOWED = -(1 << 62), -(1 << 62) - 1
"""Numbers, in place of a stream's, of those that no other stream waits for, and of those whose order stays unknown."""

_ALWAYS = np.iinfo(np.int64).min


ComputeStreams = Mapping[int, I64]
"""Compute that can hide communication, as rows of `Timeline.ops`, by stream, ascending."""

NO_LEAD = -1


@kept(most=_MAX_STREAMS)
def awaited(recording: DeviceRecording, stream: int) -> I64:
    """Return how many of a stream's ops must have ended before each op begins, by streams and event waits."""
    ops, edges = recording.timeline.ops, recording.edges
    place = np.full(len(ops), -1, np.int64)
    on_stream = np.flatnonzero(ops.stream == stream)
    place[on_stream] = np.arange(len(on_stream))
    count = np.maximum(place, 0)
    known = edges.take(edges.source >= 0)
    by_stream, level = _levels(recording)
    for _ in range(_LONGEST_CHAIN):
        passed_on = np.where(place[known.source] >= 0, place[known.source] + 1, count[known.source])
        following = count.copy()
        np.maximum.at(following, known.held, passed_on)
        following[by_stream] = np.maximum.accumulate(following[by_stream] + level) - level
        following[on_stream] = place[on_stream]
        if (following == count).all():
            break
        count = following
    return count


@kept()
def _levels(recording: DeviceRecording) -> tuple[I64, I64]:
    """Return the rows by stream, and a level for each, with which all streams can be accumulated at once.

    Levels of two streams differ by more than any count.
    """
    stream = recording.timeline.ops.stream
    by_stream = np.argsort(stream, kind="stable")
    return by_stream, (len(stream) + 1) * np.cumsum(np.diff(stream[by_stream], prepend=stream[by_stream[:1]]) != 0)


def followed(recording: DeviceRecording, work: ComputeStreams, op: I64) -> I64:
    """Return the stream of each communication op whose order is followed, else `NOT_AWAITED` or `UNFOLLOWED`.

    Each stream takes time in proportion to all ops, so at most `_MAX_STREAMS` are followed besides those of compute.
    """
    ops, edges = recording.timeline.ops, recording.edges
    stream = ops.stream.astype(np.int64)
    passed_on = edges.source[edges.source >= 0]
    passed_on = passed_on[stream[passed_on] != stream[edges.held[edges.source >= 0]]]
    computing = np.array([*work], np.int64)
    awaited_ones = distinct(np.concatenate([stream[passed_on], computing]))
    number = locate(awaited_ones, stream)
    ns = np.bincount(number[number >= 0], weights=((ops.end_ns - ops.start_ns) * (ops.kind == Kind.COMM))[number >= 0])
    busiest = awaited_ones[np.argsort(-ns, kind="stable")[:_MAX_STREAMS]]
    result = np.where(number[op] >= 0, UNFOLLOWED, NOT_AWAITED)
    return np.where(among(stream[op], np.concatenate([busiest, computing])), stream[op], result)


def find_compute(ops: GpuOps) -> ComputeStreams:
    """Return the compute of a device that can hide communication: of streams with half as much as any other, or more.

    A program may make a stream for each kernel; then these are the busiest streams.
    """
    computes = (ops.kind == Kind.COMPUTE) & (ops.end_ns > ops.start_ns)
    rows_of = {stream: rows[computes[rows]] for stream, rows in rows_by(ops.stream)}
    ns = {stream: total(union(ops.start_ns[rows], ops.end_ns[rows])) for stream, rows in rows_of.items()}
    busiest = sorted(ns, key=ns.__getitem__, reverse=True)[:_MAX_STREAMS]
    return {stream: rows_of[stream] for stream in sorted(busiest) if ns[stream] and 2 * ns[stream] >= ns[busiest[0]]}


def _is_work(ops: GpuOps, work: ComputeStreams) -> Bool:
    """Return a mask of the compute that can hide communication."""
    return mask_of(np.concatenate([np.empty(0, np.int64), *work.values()]), len(ops))


def lead_ns(ops: GpuOps, comm: CommOps) -> I64:
    """Return the time from the end of each to the first compute that waits for it; `NO_LEAD` where none does.

    It is 0 if they overlap a little, as ops of a stream may.
    """
    lead = np.maximum(ops.start_ns[comm.consumer] - ops.end_ns[comm.op], 0)
    return np.where(comm.consumer >= 0, lead, NO_LEAD)


class CommBegins(Struct, frozen=True, eq=False):
    """What let each op of a device begin, one row each. Times without anything are long before the recording."""

    issued_ns: I64
    queue_ns: I64
    """End of the collective before it on its stream or communicator."""
    input_ns: I64
    """End of the op that it waits for otherwise: the last one by event waits, or the one before it on its stream."""
    source: I64
    """Row of that op; -1 without one, or if it is on another device."""
    before: I64
    """Row of that collective; -1 without one."""


@kept()
def find_begins(recording: DeviceRecording) -> CommBegins:
    """Return what let each op of a device begin."""
    ops, in_order = recording.timeline.ops, by_communicator(recording)
    edges, queued = recording.edges.take(~in_order), recording.edges.take(in_order)
    issued = np.where(recording.issued == NEVER, _ALWAYS, np.minimum(recording.issued, ops.start_ns))
    before = np.full(len(ops), -1, np.int64)
    for _, rows in rows_by(ops.stream):
        end = ops.end_ns[rows]
        latest = np.where(end == np.maximum.accumulate(end), np.arange(len(rows)), 0)
        before[rows[1:]] = rows[np.maximum.accumulate(latest)][:-1]
    last = edges.last_to_end(len(ops))
    source, input_ns = pick(edges.source, last), pick(edges.source_end_ns, last, _ALWAYS)
    ended = pick(ops.end_ns, before, _ALWAYS)
    behind = pick(ops.kind, before) == Kind.COMM
    feeds = ~behind & (ended > input_ns)
    input_ns, source = np.where(feeds, ended, input_ns), np.where(feeds, before, source)
    queue_ns, before = np.where(behind, ended, _ALWAYS), np.where(behind, before, -1)
    queued = queued.take(np.argsort(queued.source_end_ns, kind="stable"))
    queued = queued.take(queued.source_end_ns > queue_ns[queued.held])
    queue_ns[queued.held], before[queued.held] = queued.source_end_ns, queued.source
    return CommBegins(issued_ns=issued, queue_ns=queue_ns, input_ns=input_ns, source=source, before=before)


def _fed_by(ops: GpuOps, work: ComputeStreams, begin: CommBegins, collectives: I64) -> I64:
    """Return the op whose begin let each collective begin: itself, or the first of the short ops that feed it."""
    op, length = collectives, ops.end_ns - ops.start_ns
    passes = (ops.kind != Kind.COMM) & ~_is_work(ops, work)
    for _ in range(_LONGEST_CHAIN):
        source, input_ns = begin.source[op], begin.input_ns[op]
        fed = (input_ns > np.maximum(begin.issued_ns[op], begin.queue_ns[op])) & pick(passes, source, False)
        fed &= ops.start_ns[op] - input_ns <= SURE_HANDOVER_NS
        fed &= 2 * pick(length, source, 0) <= length[collectives]
        op = np.where(fed, source, op)
    return op


def find_comm(recording: DeviceRecording, work: ComputeStreams) -> CommOps:
    """Return what let each collective begin, what would have been gained without it, and what waits for it.

    If it waited for an op that feeds it in less than half its own time, such as a copy into its buffer, what let that
    op begin counts.
    """
    timeline, bounds = recording.timeline, recording.bounds
    ops, begins = timeline.ops, find_begins(recording)
    collectives = np.flatnonzero((ops.kind == Kind.COMM) & (ops.end_ns > ops.start_ns))
    op = _fed_by(ops, work, begins, collectives)

    issued = begins.issued_ns[op]
    each = np.stack([issued, begins.queue_ns[op], begins.input_ns[op]])
    last, latest = each.argmax(axis=0), each.max(axis=0)
    start = ops.start_ns[op]
    period = bounds[np.searchsorted(bounds, ops.start_ns[collectives], side="right") - 1]
    least = np.maximum(period, _work_awaited_until(recording, work, op))
    within = np.array([PROMPT_NS, QUEUE_NS, SURE_HANDOVER_NS])[last]
    unexplained = start - np.maximum(latest, least) > within
    others = np.where(np.arange(3)[:, None] == last, _ALWAYS, each).max(axis=0)
    earliest = np.maximum(least, np.where(unexplained, latest, others))
    # Latency between an op and the next one is no gain.
    earlier = np.where(unexplained | (earliest < latest), np.maximum(start - earliest, 0), 0)
    begin, end = ops.start_ns[collectives], ops.end_ns[collectives]
    gain = covered(timeline.compute, begin - earlier, end - earlier) - covered(timeline.compute, begin, end)

    launch = ops.launch[op]
    by_host = (last == 0) & ~unexplained
    blocked = by_host & (earliest < issued)
    blocked &= host_was_blocked(recording, recording.blocking.row, launch, earliest, issued)
    causes = (CommCause.LATE_ISSUE, CommCause.BLOCKED_BEHIND, CommCause.WAITING_FOR_INPUT)
    cause = np.array([RANK[each] for each in causes])[last]
    cause[blocked] = RANK[CommCause.HOST_SYNC]
    cause[unexplained] = RANK[CommCause.UNKNOWN]
    held_by = np.where(last == 1, begins.before[op], np.where(last == 2, begins.source[op], -1))
    call = np.where(by_host, launch, ops.launch[collectives])
    call[blocked] = last_blocking(recording, launch[blocked], issued[blocked])
    return CommOps(
        op=collectives,
        cause=cause.astype(np.int8),
        gain_ns=np.maximum(gain, 0),
        held_by=np.where(unexplained, -1, held_by),
        call=call,
        consumer=_find_consumers(recording, work, collectives),
    )


def _find_consumers(recording: DeviceRecording, work: ComputeStreams, collectives: I64) -> I64:
    """Return the first compute that waits for each collective, by streams and event waits; -1 if none does."""
    ops = recording.timeline.ops
    consumer = np.full(len(collectives), -1, np.int64)
    for stream, which in rows_by(followed(recording, work, collectives)):
        if stream in (NOT_AWAITED, UNFOLLOWED):
            continue
        place = np.searchsorted(np.flatnonzero(ops.stream == stream), collectives[which])
        counts = awaited(recording, stream)
        for rows in work.values():
            first = pick(rows, np.searchsorted(np.maximum.accumulate(counts[rows]), place, side="right"))
            sooner = pick(ops.start_ns, first, NEVER) < pick(ops.start_ns, consumer[which], NEVER)
            consumer[which] = np.where(sooner, first, consumer[which])
    return consumer


def _work_awaited_until(recording: DeviceRecording, work: ComputeStreams, op: I64) -> I64:
    """Return when the compute that each op waits for had ended, by streams and event waits."""
    ops = recording.timeline.ops
    until, is_work = np.full(len(op), _ALWAYS), _is_work(ops, work)
    for stream in work:
        on_stream = np.flatnonzero(ops.stream == stream)
        count = awaited(recording, stream)[op]
        ends = np.maximum.accumulate(np.where(is_work[on_stream], ops.end_ns[on_stream], _ALWAYS))
        until = np.maximum(until, pick(ends, count - 1, _ALWAYS))
    return until


# -- Prefetch depth ----------------------------------------------------------------------------------

NO_DEPTH = -1
GATHERS = re.compile(r"all_?gather", re.IGNORECASE)
"""Collectives that may gather weights."""


def prefetch_depths(ops: GpuOps, calls: RuntimeCalls, comm: CommOps) -> I64:
    """Return how many parts of the program's compute the host launches between each collective and its use.

    FSDP gathers the weights of a layer by a collective. Without prefetching, the next thing launched is the layer's own
    compute, and the depth is 0. With prefetching for the next layer, the compute of the current one is launched in
    between, and the depth is 1. It follows from the order of launches alone, so it doesn't depend on the speed of the
    GPU or of the network.

    The first compute that waits for a collective begins a part of the program, which ends where the next one begins. A
    part counts if any other compute is launched in it, after the collective and before the compute that waits for it.
    So a layer of a single kernel, which waits for its weights itself, does not count.

    Args:
        ops: The device's ops.
        calls: Calls that launched them.
        comm: Collectives of one kind.

    Returns:
        The depths; `NO_DEPTH` if no compute waits for a collective, a launch is unknown, or one call launched both.
    """
    launched_ns = pick(calls.start_ns, ops.launch, -1)
    issued_ns, used_ns = launched_ns[comm.op], pick(launched_ns, comm.consumer, -1)
    is_use = np.zeros(len(ops), np.bool_)
    is_use[comm.consumer[comm.consumer >= 0]] = True
    computes_ns = np.sort(launched_ns[_is_work(ops, find_compute(ops)) & ~is_use & (launched_ns >= 0)])
    begins_ns = distinct(used_ns[used_ns >= 0])
    # Numbers of the parts that have other compute.
    filled = distinct(np.searchsorted(begins_ns, computes_ns, side="right"))
    first, last = np.searchsorted(begins_ns, issued_ns, side="right"), np.searchsorted(begins_ns, used_ns)
    whole = np.searchsorted(filled, last, side="right") - np.searchsorted(filled, first, side="right")
    # The part in which it is launched counts if compute follows in it.
    until_ns = pick(begins_ns, first, 0)
    follows = np.searchsorted(computes_ns, until_ns) > np.searchsorted(computes_ns, issued_ns, side="right")
    known = (issued_ns >= 0) & (used_ns > issued_ns)
    return np.where(known, whole + follows, NO_DEPTH)


# -- Causes ------------------------------------------------------------------------------------------


def attribute(recording: DeviceRecording) -> tuple[Exposed, CommOps]:
    """Return the causes of a device's exposed communication, and what let its collectives begin."""
    timeline = recording.timeline
    ops = timeline.ops
    work = find_compute(ops)
    comm = find_comm(recording, work)
    if not len(timeline.exposed_comm.starts):
        return Exposed.empty(), comm
    pieces, free, blocks = _cut(recording, work, comm)
    op, start, end = pieces.op, pieces.start_ns, pieces.end_ns
    begun = comm.take(np.searchsorted(comm.op, op))
    beside = covered(timeline.compute, ops.start_ns[op], start) > 0
    cause = np.where(beside, RANK[CommCause.WAITING_OR_TRANSFER], RANK[CommCause.NO_COMPUTE])

    could_run, launch = free >= 0, pick(ops.launch, free)
    late = could_run & (start < _late_until(recording, free))
    blocked = late & host_was_blocked(recording, recording.blocking.row, launch, start, end)
    soon = pick(ops.start_ns, free, NEVER) - start <= LAUNCH_LATENCY_NS
    cause[could_run] = np.where(soon, RANK[CommCause.LAUNCH_LATENCY], RANK[CommCause.UNKNOWN])[could_run]
    cause[late] = RANK[CommCause.LATE_COMPUTE]
    cause[blocked] = RANK[CommCause.HOST_SYNC]
    call = np.where(late, launch, ops.launch[op])
    call[blocked] = last_blocking(recording, launch[blocked], end[blocked])

    in_order = ~could_run & among(ops.stream[op], [*work])
    cause[in_order] = RANK[CommCause.SAME_STREAM]
    blocks &= ~could_run & ~in_order
    cause[blocks] = RANK[CommCause.BLOCKED_BEHIND]
    lead_in = end <= timeline.judged_from_ns
    cause[lead_in] = RANK[CommCause.LEAD_IN]
    settled = could_run | in_order | blocks | lead_in
    gained = start + first_part(begun.gain_ns, op, np.where(settled, 0, end - start))
    return Exposed.in_order(
        [
            replace(pieces, end_ns=gained, cause=begun.cause, held_by=begun.held_by, call=begun.call),
            replace(
                pieces,
                start_ns=gained,
                cause=cause.astype(np.int8),
                held_by=np.where(settled, -1, begun.held_by),
                call=call,
            ),
        ]
    ), comm


def _cut(recording: DeviceRecording, work: ComputeStreams, comm: CommOps) -> tuple[Exposed, I64, Bool]:
    """Return the exposed communication in pieces, each with the collective that it belongs to, and no cause yet.

    Returns:
        The pieces; for each, the row of the next compute, perhaps of the next step, that doesn't wait for the
            collective, -1 if there is none; and whether the next compute only waits for a collective behind it, which
            could have begun.
    """
    timeline, bounds = recording.timeline, recording.bounds
    ops, exposed = timeline.ops, timeline.exposed_comm
    following = [pick(rows, np.searchsorted(ops.start_ns[rows], exposed.starts, side="left")) for rows in work.values()]
    launched = [_late_until(recording, row) for row in following]
    queued = recording.edges.take(by_communicator(recording))
    begins = find_begins(recording)
    able_ns = np.maximum(begins.issued_ns, begins.input_ns)[queued.held]
    cuts = [bounds, ops.start_ns[comm.op], ops.end_ns[comm.op], able_ns, *launched]
    _, start, end = cut_at(*exposed, cuts)
    which, piece = running_in(start, ops.start_ns[comm.op], ops.end_ns[comm.op])
    op = comm.op[which]
    stretch = np.searchsorted(exposed.starts, start[piece], side="right") - 1

    free = np.full(len(op), -1, np.int64)
    sure, held = np.ones(len(op), np.bool_), np.zeros(len(op), np.bool_)
    # Whether a collective that could begin by the start of the piece is queued behind it.
    earliest = np.full(len(ops), NEVER)
    np.minimum.at(earliest, queued.source, able_ns)
    blocks = earliest[op] <= start[piece]
    of_program = replace(recording, edges=recording.edges.take(~by_communicator(recording)))
    stated = replace(recording, edges=recording.edges.take(recording.edges.confidence == EXACT))
    for stream, pairs in rows_by(followed(recording, work, op)):
        if stream == UNFOLLOWED:
            # The next compute may wait for any of these.
            sure[pairs] = blocks[pairs] = False
            continue
        place = np.searchsorted(np.flatnonzero(ops.stream == stream), op[pairs])
        by_any, by_stated, by_program = (awaited(which, stream) for which in (recording, stated, of_program))
        for rows in following:
            row = rows[stretch[pairs]]
            waits = pick(by_any, row, 0) > place
            sure[pairs] &= (row < 0) | ~waits | (pick(by_stated, row, 0) > place)
            blocks[pairs] &= ~waits | (pick(by_program, row, 0) <= place)
            held[pairs] |= waits
            able = (row >= 0) & ~waits
            sooner = pick(ops.start_ns, row, NEVER) < pick(ops.start_ns, free[pairs], NEVER)
            free[pairs] = np.where(able & sooner, row, free[pairs])
    # The collective that the next compute waits for decides, and among several the last to end.
    chosen = first_of_each(piece, free >= 0, -ops.end_ns[op])
    confidence = np.where(sure | (free >= 0), EXACT, LOW)[chosen]
    pieces = Exposed.filled(
        start_ns=start, end_ns=end, cause=0, confidence=confidence, op=op[chosen], call=-1, held_by=-1
    )
    return pieces, free[chosen], (blocks & held)[chosen]


def _late_until(recording: DeviceRecording, compute: I64) -> I64:
    """Return the time until which each compute op could not run since the host had not launched it; `_ALWAYS` for none.

    If it began promptly after its launch, that is its start.
    """
    start, issued = (pick(ns, compute, _ALWAYS) for ns in (recording.timeline.ops.start_ns, recording.issued))
    return np.where(issued == NEVER, _ALWAYS, np.where(start - issued <= PROMPT_NS, start, issued))
