"""Which op had to wait for which: event waits joined to the ops on both sides.

A wait holds back the ops enqueued on its stream after it until what its event recorded has finished. Where the
trace states the recorded stream and call, the edge is exact. CUDA 13 states neither (kineto PR #1552), and
without sync events not even the waiting stream is known; then the edge is rebuilt:

- the event was recorded by the nearest `cudaEventRecord*` call before the wait on the same thread, or on any
  thread where there is none;
- it was recorded on a stream whose last op enqueued before had ended when the held op began: an edge that the
  timeline contradicts is never drawn. Of several such streams the one that finished last before the held op
  is taken: no other explains its start better.

Confidence: `exact` if stated; `high` if the record call directly precedes the wait (what `wait_stream` and
`record(); wait_event()` do) and the held op began right when the source ended, or only one stream is possible;
`low` otherwise. Where the stream is stated and the record call lies before the recording, it counts as adjacent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapscope.analysis import calls as call_kinds
from overlapscope.analysis.grouping import rows_by
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import Columns, pick
from overlapscope.base.intervals import I64, Bool
from overlapscope.trace.model import I8, Kind, Sync, Trace, stream_keys

EXACT, HIGH, LOW = 2, 1, 0

HANDOVER_NS = 20_000
"""A held op begins at most this long after the op it waited for: event and queue latency. Seen on an H200:
1 to 9 us. An edge that is not in doubt may take `SURE_HANDOVER_NS`, for other devices and links."""
SURE_HANDOVER_NS = 100_000


def handover_ns(confidence: NDArray[Any]) -> I64:
    """How long after its source's end an op may begin and still have been held by it."""
    return np.where(confidence >= HIGH, SURE_HANDOVER_NS, HANDOVER_NS)


@dataclass(frozen=True, slots=True, eq=False)
class Edges(Columns):
    """`held[i]` could not begin before `source[i]` had ended, which may be an op of another device."""

    held: I64
    """Row of `Timeline.ops`."""
    source: I64
    """Row of `Timeline.ops`; -1 for an op of another device."""
    source_end_ns: I64
    confidence: I8
    source_op: I64
    """Row of `Trace.gpu_ops`, whatever its device."""
    wait: I64
    """The call that made the stream wait: row of `Trace.runtime_calls`."""
    record: I64
    """The call that recorded the event, likewise; -1 where it lies before the recording or is not known."""


@dataclass(frozen=True, slots=True, eq=False)
class _Waits:
    call: I64
    """Row of `Trace.runtime_calls`."""
    at_ns: I64
    lane: I64
    source_lane: I64
    """-1 where the trace does not say on which stream the event was recorded."""
    recorded_ns: I64
    """When the event was recorded on the host; for a rebuilt edge the nearest record call's time."""
    record: I64
    """The call that the trace names, else the nearest; -1 where there is none."""
    stated: Bool
    """The trace says on which stream and by which of its calls the event was recorded."""
    adjacent: Bool
    """Nothing was enqueued between the record and the wait."""


def find_edges(trace: Trace, timeline: Timeline) -> Edges:
    """All event-wait edges that hold ops of the device, by held op."""
    ops = trace.gpu_ops
    lane, in_order, by_lane = _lanes(trace)
    waits = _find_waits(trace, lane, in_order)
    if not len(waits.at_ns) or len(by_lane) < 2:
        return Edges.empty()

    launch_ns = _launch_ns(trace)
    held = np.full(len(waits.at_ns), -1, np.int64)
    for one, rows in by_lane.items():
        mine = np.flatnonzero(waits.lane == one)
        following = np.searchsorted(launch_ns[rows], waits.at_ns[mine], side="left")
        held[mine] = pick(rows, following)

    # A stream that ran nothing here (or on another device) is as good as not stated.
    source_lane = np.where(np.isin(waits.source_lane, list(by_lane)), waits.source_lane, -1)
    stated = waits.stated & (source_lane >= 0)
    held_start = ops.start_ns[held]
    source = np.full(len(held), -1, np.int64)
    source_end = np.full(len(held), -1, np.int64)
    record = np.full(len(held), -1, np.int64)
    possible = np.zeros(len(held), np.int64)
    for one, rows in by_lane.items():
        recorded = np.searchsorted(launch_ns[rows], waits.recorded_ns, side="left") - 1
        # An event that is made once and recorded every step has an older record than the nearest one.
        over = np.searchsorted(np.maximum.accumulate(ops.end_ns[rows]), held_start, side="right") - 1
        before = np.where(stated | waits.adjacent, recorded, np.minimum(recorded, over))
        candidate = rows[np.maximum(before, 0)]
        ended = ops.end_ns[candidate]
        valid = (before >= 0) & (held >= 0) & (waits.lane != one)
        valid &= (source_lane < 0) | (source_lane == one)
        valid &= ended <= held_start
        possible += valid
        better = valid & (ended > source_end)
        source[better] = candidate[better]
        source_end[better] = ended[better]
        # What ran before an older record was not recorded by the nearest.
        record[better] = np.where(before == recorded, waits.record, -1)[better]

    directly = held_start - source_end <= HANDOVER_NS
    sure = (waits.adjacent | (source_lane >= 0)) & (directly | (possible == 1))
    confidence = np.where(stated, EXACT, np.where(sure, HIGH, LOW)).astype(np.int8)
    found = np.flatnonzero((source >= 0) & (ops.device[held] == timeline.device))
    found = found[np.argsort(held[found], kind="stable")]
    place = np.full(len(ops), -1, np.int64)
    here = np.flatnonzero(ops.device == timeline.device)
    place[here] = np.arange(len(here))
    return Edges(
        held=place[held[found]],
        source=place[source[found]],
        source_end_ns=source_end[found],
        confidence=confidence[found],
        source_op=source[found],
        wait=waits.call[found],
        record=record[found],
    )


def own_stream_waits(trace: Trace) -> tuple[I64, I64]:
    """Waits of a stream for an event of its own: they hold nothing back, but say which copies and kernels need which.

    The last op before the event was recorded, and the first behind the wait that is of another sort (upload, download,
    all else): rows of `Trace.gpu_ops`. Only where the trace states on which stream and by which call the event was
    recorded.
    """
    lane, in_order, by_lane = _lanes(trace)
    waits = _find_waits(trace, lane, in_order)
    launch_ns, kind = _launch_ns(trace), trace.gpu_ops.kind
    sort = np.where(trace.gpu_ops.is_copy, kind, -1)
    others = {(one, of): rows[sort[rows] != of] for one, rows in by_lane.items() for of in (-1, Kind.H2D, Kind.D2H)}
    source, held = [], []
    for row in np.flatnonzero(waits.stated & (waits.lane == waits.source_lane)).tolist():
        rows = by_lane.get(int(waits.lane[row]), in_order[:0])
        before = int(np.searchsorted(launch_ns[rows], waits.recorded_ns[row])) - 1
        if before < 0:
            continue
        possible = others[int(waits.lane[row]), int(sort[rows[before]])]
        behind = int(np.searchsorted(launch_ns[possible], waits.at_ns[row]))
        if behind < len(possible):
            source.append(int(rows[before]))
            held.append(int(possible[behind]))
    return np.array(source, np.int64), np.array(held, np.int64)


def _lanes(trace: Trace) -> tuple[I64, I64, dict[int, I64]]:
    """The stream of each op, told from streams of other devices; launched ops in launch order; and those by stream."""
    ops = trace.gpu_ops
    lane = stream_keys(ops.device, ops.stream)
    launched = np.flatnonzero(ops.launch >= 0)
    in_order = launched[np.lexsort((ops.start_ns[launched], trace.runtime_calls.start_ns[ops.launch[launched]]))]
    return lane, in_order, {one: in_order[rows] for one, rows in rows_by(lane[in_order])}


def _launch_ns(trace: Trace) -> I64:
    """When each op was launched; 0 where that is not known."""
    ops = trace.gpu_ops
    return pick(trace.runtime_calls.start_ns, ops.launch, 0)


def _find_waits(trace: Trace, lane: I64, in_order: I64) -> _Waits:
    calls, syncs, ops = trace.runtime_calls, trace.syncs, trace.gpu_ops
    rows = np.flatnonzero(call_kinds.waits_event(calls))
    at, thread = calls.start_ns[rows], calls.thread[rows]
    launched_at = calls.start_ns[ops.launch[in_order]]

    if len(syncs):
        # The sync record of a wait call, by correlation. Kineto leaves out those of streams that run nothing.
        recorded = np.flatnonzero((syncs.kind == Sync.STREAM_WAIT_EVENT) & (syncs.correlation > 0))
        match, joined = _by_correlation(syncs.correlation, recorded, calls.correlation[rows])
        device = np.where(joined, pick(syncs.device, match), -1).astype(np.int64)
        source_stream = np.where(joined, pick(syncs.source_stream, match), -1).astype(np.int64)
        source_device = np.where(joined, pick(syncs.source_device, match), -1).astype(np.int64)
        named = np.where(joined, pick(syncs.record_correlation, match), -1)
        stream = np.where(joined, pick(syncs.stream, match), -1).astype(np.int64)
        waiting = np.where(stream >= 0, stream_keys(device, stream), -1)
        source_lane = np.where(source_stream >= 0, stream_keys(source_device, source_stream), -1)
    else:
        # Without sync events: the stream of what the same thread enqueues next.
        following = _next_of_thread(launched_at, calls.thread[ops.launch[in_order]], at, thread)
        waiting = pick(lane[in_order], following)
        source_lane = named = np.full(len(rows), -1, np.int64)

    records = np.flatnonzero(call_kinds.records_event(calls))
    recorded_ns = at.copy()
    record = np.full(len(rows), -1, np.int64)
    adjacent = np.zeros(len(rows), np.bool_)
    stated = np.zeros(len(rows), np.bool_)
    if len(records):
        same = _last_of_thread(calls.start_ns[records], calls.thread[records], at, thread)
        nearest = np.where(same >= 0, same, np.searchsorted(calls.start_ns[records], at, side="left") - 1)
        known = nearest >= 0
        recorded_ns = np.where(known, calls.start_ns[records][np.maximum(nearest, 0)], at)
        enqueued = np.searchsorted(launched_at, at, "left") - np.searchsorted(launched_at, recorded_ns, "left")
        adjacent = known & (enqueued == 0)
        match, joined = _by_correlation(calls.correlation, records, named)
        stated = joined & (source_lane >= 0)
        recorded_ns = np.where(stated, pick(calls.start_ns, match, 0), recorded_ns)
        close = np.where(known, records[np.maximum(nearest, 0)], -1)
        record = np.where(joined, match, np.where(named > 0, -1, close))
    return _Waits(rows, at, waiting, source_lane, recorded_ns, record, stated, adjacent)


def _by_correlation(correlations: I64, rows: I64, wanted: I64) -> tuple[I64, Bool]:
    """For each wanted correlation a row (of `rows`) that has it, and whether there is one."""
    rows = rows[np.argsort(correlations[rows], kind="stable")]
    found = np.searchsorted(correlations[rows], wanted)
    match = pick(rows, found)
    joined: Bool = (wanted > 0) & (match >= 0) & (pick(correlations, match, 0) == wanted)
    return match, joined


def _next_of_thread(times: I64, threads: I64, at: I64, thread: I64) -> I64:
    """Index of the first of `times` (sorted) at or after each instant on the same thread; len(times) if none."""
    result = np.full(len(at), len(times), np.int64)
    by_thread = dict(rows_by(threads))
    for one, mine in rows_by(thread):
        theirs = by_thread.get(one, mine[:0])
        found = np.searchsorted(times[theirs], at[mine], side="left")
        result[mine] = pick(theirs, found, len(times))
    return result


def _last_of_thread(times: I64, threads: I64, at: I64, thread: I64) -> I64:
    """Index of the last of `times` (sorted) before each instant on the same thread; -1 if none."""
    result = np.full(len(at), -1, np.int64)
    by_thread = dict(rows_by(threads))
    for one, mine in rows_by(thread):
        theirs = by_thread.get(one, mine[:0])
        found = np.searchsorted(times[theirs], at[mine], side="left") - 1
        result[mine] = np.where(found >= 0, theirs[np.maximum(found, 0)], -1) if len(theirs) else -1
    return result
