"""Edges between ops: event waits, joined to the op that was waited for and the op that was held.

A wait holds back ops enqueued on its stream after it until the ops before the event's record have finished. If the
trace states the recorded stream and call, the edge is exact. CUDA 13 states neither (kineto PR #1552), and without sync
events not even the waiting stream is known. Then the edge is rebuilt:

- The event was recorded by the nearest `cudaEventRecord*` call before the wait on the same thread, or on any thread if
  that one has none.
- It was recorded on a stream whose last op enqueued before had ended when the held op began, so that an edge never
  contradicts the timeline. Among several such streams, the last to finish before the held op is chosen, because
  it explains the start best.

The confidence is `exact` if everything is stated. It is `high` if the record call directly precedes the wait (as in
`wait_stream` and `record(); wait_event()`) and the held op began right when the source ended, or if only one stream is
possible. Otherwise it is `low`. If the stream is stated and the record call lies before the recording, it counts as
adjacent.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from overlapscope.analysis import calls as call_kinds
from overlapscope.analysis.grouping import rows_by
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import Columns, pick
from overlapscope.base.intervals import I64, Bool
from overlapscope.base.kept import kept
from overlapscope.trace.model import I8, Kind, Sync, Trace, stream_keys

EXACT, HIGH, LOW = 2, 1, 0

HANDOVER_NS = 20_000
"""Maximum time from the end of an op to the start of the op held by it: event and queue latency.

On an H200 it is 1 to 9 us. A certain edge may take `SURE_HANDOVER_NS`, for other devices and links.
"""
SURE_HANDOVER_NS = 100_000


def handover_ns(confidence: NDArray[Any]) -> I64:
    """Return the maximum time from an op's end to the start of an op that it held."""
    return np.where(confidence >= HIGH, SURE_HANDOVER_NS, HANDOVER_NS)


class Edges(Columns, frozen=True):
    """Edges between ops: `held[i]` could not begin before `source[i]`, perhaps of another device, had ended."""

    held: I64
    """Row of `Timeline.ops`."""
    source: I64
    """Row of `Timeline.ops`; -1 for an op of another device."""
    source_end_ns: I64
    confidence: I8
    source_op: I64
    """Row of `Trace.gpu_ops`, whatever its device."""
    wait: I64
    """Row of `Trace.runtime_calls` of the call that made the stream wait."""
    record: I64
    """Row of `Trace.runtime_calls` of the call that recorded the event; -1 if unknown or before the recording."""


class _Enqueued(Struct, frozen=True, eq=False):
    """GPU ops of a trace in the order of their launches."""

    order: I64
    """Rows of `Trace.gpu_ops` with a recorded launch, in launch order."""
    stream: I64
    """Stream of every GPU op, one of `stream_keys`."""
    launch_ns: I64
    """Time of every GPU op's launch; 0 where unknown."""
    by_stream: dict[int, I64]
    """`order` of each stream."""


class _EventWaits(Columns, frozen=True):
    """Calls that made a stream wait for an event, one row each."""

    call: I64
    """Row of `Trace.runtime_calls`."""
    at_ns: I64
    stream: I64
    """Waiting stream, one of `stream_keys`; -1 where unknown."""
    source: I64
    """Stream on which the event was recorded; -1 where the trace doesn't state it."""
    recorded_ns: I64
    """Host time at which the event was recorded; for a rebuilt edge, that of the nearest record call."""
    record: I64
    """Record call that the trace names, or else the nearest; -1 where there is none."""
    stated: Bool
    """True if the trace states the stream and the call that recorded the event."""
    adjacent: Bool
    """True if nothing was enqueued between the record and the wait."""


class _Sources(Columns, frozen=True):
    """Op that each wait waited for, one row each."""

    op: I64
    """Row of `Trace.gpu_ops`; -1 where no op is possible."""
    end_ns: I64
    record: I64
    """Call that recorded the event; -1 where unknown."""
    possible: I64
    """Number of streams with a possible op."""


@kept()
def find_edges(trace: Trace, timeline: Timeline) -> Edges:
    """Return all event-wait edges that hold ops of the device, by held op."""
    ops = trace.gpu_ops
    enqueued = _enqueue(trace)
    waits = _find_waits(trace, enqueued)
    if not len(waits) or len(enqueued.by_stream) < 2:
        return Edges.empty()
    # A stream that ran nothing here (or on another device) is as good as unknown.
    source = np.where(np.isin(waits.source, list(enqueued.by_stream)), waits.source, -1)
    waits = replace(waits, source=source, stated=waits.stated & (source >= 0))
    held = _held_ops(enqueued, waits)
    sources = _find_sources(trace, enqueued, waits, held)
    directly = ops.start_ns[held] - sources.end_ns <= HANDOVER_NS
    sure = (waits.adjacent | (source >= 0)) & (directly | (sources.possible == 1))
    confidence = np.where(waits.stated, EXACT, np.where(sure, HIGH, LOW)).astype(np.int8)
    edges = np.flatnonzero((sources.op >= 0) & (ops.device[held] == timeline.device))
    edges = edges[np.argsort(held[edges], kind="stable")]
    row_on_device = np.full(len(ops), -1, np.int64)
    here = np.flatnonzero(ops.device == timeline.device)
    row_on_device[here] = np.arange(len(here))
    return Edges(
        held=row_on_device[held[edges]],
        source=row_on_device[sources.op[edges]],
        source_end_ns=sources.end_ns[edges],
        confidence=confidence[edges],
        source_op=sources.op[edges],
        wait=waits.call[edges],
        record=sources.record[edges],
    )


def _held_ops(enqueued: _Enqueued, waits: _EventWaits) -> I64:
    """Return the first op enqueued on the waiting stream after each wait, a row of `Trace.gpu_ops`; -1 for none."""
    held = np.full(len(waits), -1, np.int64)
    for stream, rows in enqueued.by_stream.items():
        on_stream = np.flatnonzero(waits.stream == stream)
        held[on_stream] = pick(rows, np.searchsorted(enqueued.launch_ns[rows], waits.at_ns[on_stream], side="left"))
    return held


def _find_sources(trace: Trace, enqueued: _Enqueued, waits: _EventWaits, held: I64) -> _Sources:
    """Return the op that each wait's event recorded.

    Among all streams on which the event can have been recorded, it is the op that ended last.
    """
    ops, held_start = trace.gpu_ops, trace.gpu_ops.start_ns[held]
    op, end, record = np.full((3, len(waits)), -1, np.int64)
    possible = np.zeros(len(waits), np.int64)
    for stream, rows in enqueued.by_stream.items():
        recorded = np.searchsorted(enqueued.launch_ns[rows], waits.recorded_ns, side="left") - 1
        # An event that is created once and recorded in every step has older records than the nearest one.
        over = np.searchsorted(np.maximum.accumulate(ops.end_ns[rows]), held_start, side="right") - 1
        before = np.where(waits.stated | waits.adjacent, recorded, np.minimum(recorded, over))
        candidate = rows[np.maximum(before, 0)]
        ended = ops.end_ns[candidate]
        valid = (before >= 0) & (held >= 0) & (waits.stream != stream) & (ended <= held_start)
        valid &= (waits.source < 0) | (waits.source == stream)
        possible += valid
        better = valid & (ended > end)
        op[better], end[better] = candidate[better], ended[better]
        # An op before an older record was not recorded by the nearest record call.
        record[better] = np.where(before == recorded, waits.record, -1)[better]
    return _Sources(op, end, record, possible)


def own_stream_waits(trace: Trace) -> tuple[I64, I64]:
    """Return waits of a stream for an event of its own: the op before the event, and the op after the wait.

    Such waits hold nothing back, but show which copies and kernels belong together. The op before is the last one
    before the event was recorded; the op after is the first of another sort (upload, download, other) after the wait.
    Both are rows of `Trace.gpu_ops`. Only waits are used for which the trace states the stream and the call that
    recorded the event.
    """
    enqueued = _enqueue(trace)
    waits = _find_waits(trace, enqueued)
    launch_ns, by_stream = enqueued.launch_ns, enqueued.by_stream
    sort = np.where(trace.gpu_ops.is_copy, trace.gpu_ops.kind, -1)
    others = {(key, of): rows[sort[rows] != of] for key, rows in by_stream.items() for of in (-1, Kind.H2D, Kind.D2H)}
    source, held = [], []
    for row in np.flatnonzero(waits.stated & (waits.stream == waits.source)).tolist():
        stream = int(waits.stream[row])
        rows = by_stream.get(stream, enqueued.order[:0])
        before = int(np.searchsorted(launch_ns[rows], waits.recorded_ns[row])) - 1
        if before < 0:
            continue
        possible = others[stream, int(sort[rows[before]])]
        behind = int(np.searchsorted(launch_ns[possible], waits.at_ns[row]))
        if behind < len(possible):
            source.append(int(rows[before]))
            held.append(int(possible[behind]))
    return np.array(source, np.int64), np.array(held, np.int64)


def _enqueue(trace: Trace) -> _Enqueued:
    ops = trace.gpu_ops
    stream = stream_keys(ops.device, ops.stream)
    launch_ns = pick(trace.runtime_calls.start_ns, ops.launch, 0)
    launched = np.flatnonzero(ops.launch >= 0)
    order = launched[np.lexsort((ops.start_ns[launched], launch_ns[launched]))]
    return _Enqueued(order, stream, launch_ns, {key: order[rows] for key, rows in rows_by(stream[order])})


def _find_waits(trace: Trace, enqueued: _Enqueued) -> _EventWaits:
    calls, syncs = trace.runtime_calls, trace.syncs
    rows = np.flatnonzero(call_kinds.waits_event(calls))
    at, thread = calls.start_ns[rows], calls.thread[rows]
    # Sync records belong to wait calls by correlation. Kineto leaves out those of streams that run nothing.
    of_waits = np.flatnonzero((syncs.kind == Sync.STREAM_WAIT_EVENT) & (syncs.correlation > 0))
    sync = _by_correlation(syncs.correlation, of_waits, calls.correlation[rows])
    source = _stream(pick(syncs.source_device, sync), pick(syncs.source_stream, sync))
    launched_at = enqueued.launch_ns[enqueued.order]
    if len(syncs):
        stream = _stream(pick(syncs.device, sync), pick(syncs.stream, sync))
    else:
        # Without sync events, the stream is that of the next op which the same thread enqueues.
        launched_by = calls.thread[trace.gpu_ops.launch[enqueued.order]]
        stream = pick(enqueued.stream[enqueued.order], _around_on_thread(launched_at, launched_by, at, thread)[1])

    records = np.flatnonzero(call_kinds.records_event(calls))
    same_thread = _around_on_thread(calls.start_ns[records], calls.thread[records], at, thread)[0]
    any_thread = np.searchsorted(calls.start_ns[records], at, side="left") - 1
    nearest = pick(records, np.where(same_thread >= 0, same_thread, any_thread))
    nearest_ns = np.where(nearest >= 0, pick(calls.start_ns, nearest), at)
    enqueued_since = np.searchsorted(launched_at, at, "left") - np.searchsorted(launched_at, nearest_ns, "left")
    # The trace may name a record call from before the recording.
    named = pick(syncs.record_correlation, sync)
    record = _by_correlation(calls.correlation, records, named)
    stated = (record >= 0) & (source >= 0)
    return _EventWaits(
        call=rows,
        at_ns=at,
        stream=stream,
        source=source,
        recorded_ns=np.where(stated, pick(calls.start_ns, record), nearest_ns),
        record=np.where(named > 0, record, nearest),
        stated=stated,
        adjacent=(nearest >= 0) & (enqueued_since == 0),
    )


def _stream(device: I64, stream: I64) -> I64:
    """Return the keys of streams; -1 where there is none."""
    return np.where(stream >= 0, stream_keys(device, stream), -1)


def _by_correlation(correlations: I64, rows: I64, wanted: I64) -> I64:
    """Return for each wanted correlation a row (of `rows`) that has it; -1 where there is none."""
    rows = rows[np.argsort(correlations[rows], kind="stable")]
    match = pick(rows, np.searchsorted(correlations[rows], wanted))
    return np.where((wanted > 0) & (pick(correlations, match, 0) == wanted), match, -1)


def _around_on_thread(times: I64, threads: I64, at: I64, thread: I64) -> tuple[I64, I64]:
    """Find the times around each instant on the same thread.

    Returns:
        Places in `times` (sorted) of the last one before each instant, and of the first one at or after it; -1 for
            none.
    """
    last, following = np.full((2, len(at)), -1, np.int64)
    by_thread = dict(rows_by(threads))
    for thread_id, of_thread in rows_by(thread):
        theirs = by_thread.get(thread_id, of_thread[:0])
        place = np.searchsorted(times[theirs], at[of_thread], side="left")
        last[of_thread], following[of_thread] = pick(theirs, place - 1), pick(theirs, place)
    return last, following
