"""Causes of exposed communication: each nanosecond has exactly one cause.

If several collectives run at once, the piece belongs to the collective that the next compute waits for. If the next
compute waits for several or for none, it belongs to the last to end. Then two questions are asked:

- Does the next compute wait for it? If not, the compute could have run beside it, and the cause is what kept it.
- If so, could the collective have begun earlier, beside compute? It began when its launch, the collective before it on
  its stream, and the event that it waited for had all come. If the last of these had come first, the others would have
  let it begin earlier, and more compute would have run beside it. The cause gets as much of the exposed time. The rest
  outlasted the compute beside it, or there was none.

Waits follow from streams and event waits, as far as these are known or rebuilt (`holds.py`).
`docs/how-it-works/causes.md` has the causes.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.blockers import (
    NEVER,
    PROMPT_NS,
    DeviceRecording,
    host_was_blocked,
    last_blocking,
    running_in,
)
from overlapscope.analysis.comm_order import (
    UNFOLLOWED,
    ComputeStreams,
    awaited,
    by_communicator,
    find_begins,
    find_comm,
    find_compute,
    followed,
)
from overlapscope.analysis.event_waits import EXACT, LOW
from overlapscope.analysis.idle import LAUNCH_LATENCY_NS
from overlapscope.analysis.pieces import CommOps, Exposed, cut_at, first_part
from overlapscope.base.columns import pick
from overlapscope.base.grouping import among, first_of_each, rows_by
from overlapscope.base.intervals import I64, Bool, covered
from overlapscope.catalog.causes import COMM_RANK as RANK
from overlapscope.catalog.causes import CommCause


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
    """Return the time until which each compute op could not run since the host had not launched it; 0 for no op.

    If it began promptly after its launch, that is its start.
    """
    start, issued = pick(recording.timeline.ops.start_ns, compute, 0), pick(recording.issued, compute, 0)
    return np.where(issued == NEVER, 0, np.where(start - issued <= PROMPT_NS, start, issued))
