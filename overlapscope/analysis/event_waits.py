"""Calls that make a stream wait for an event, as far as a recording states the event.

A recording may state on which stream the event was recorded, and by which call. CUDA 13 states neither (kineto PR
#1552), and without sync events not even the waiting stream is known. The recorder's notes state all of it. The waits of
NCCL's launches are known by their calls (`find_nccl_waits`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapscope.base.columns import I64, Bool, Columns, locate, mask_of, pick
from overlapscope.base.grouping import distinct, rows_by
from overlapscope.base.kept import kept
from overlapscope.trace import calls as call_kinds
from overlapscope.trace.host import last_before, op_of
from overlapscope.trace.model import Kind, Sync, Trace, stream_keys

# -- Waits of NCCL's launches ------------------------------------------------------------------------

_NCCL_OP = "record_param_comms"
"""CPU op in which ProcessGroupNCCL launches a collective (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp)."""
_NCCL_RECORD_CALL = "cudaEventRecord"
"""NCCL's call. PyTorch records events of its own by `cudaEventRecordWithFlags`."""
_FIRST_STREAM = 1 << 30
"""Number of the first communicator's stream, larger than those of recorded streams."""


def find_nccl_waits(trace: Trace, records: I64, waits: I64, stream: I64, event: I64) -> tuple[I64, I64, I64, I64]:
    """Return the waits of NCCL's launches, as far as a recording shows that they are its.

    Each communicator has a stream of its own, on which nothing runs. A launch makes the launching stream wait for it,
    and it for the launching stream, so that the collectives of a communicator run one after another on any streams
    (NCCL, src/enqueue.cc: `ncclLaunchPrepare`, `ncclLaunchFinish`; src/misc/strongstream.cc: `ncclStreamWaitStream`).
    The first wait is for the communicator's own event, whose number the recording states. Kineto leaves out the
    second, since its stream runs nothing.

    NCCL replaces a communicator's event now and then, and a process group may have several communicators. So the first
    wait is known only if all launches of its group have the same event. Communicators of several groups have the same
    stream only if the user had them share it (NCCL_COMM_SPLIT_SHARE_RESOURCES).

    Args:
        trace: The recording.
        records: Calls that record events.
        waits: Calls that make a stream wait for an event.
        stream: Stream of each wait; -1 where unknown.
        event: Number of the event of each wait; -1 where unknown.

    Returns:
        The rows among the waits; the waiting stream of each, one of `stream_keys`, where a communicator's has a number
        that no recorded stream has; the stream on which the event was recorded, and the call that recorded it.
    """
    calls, ops = trace.runtime_calls, trace.gpu_ops
    collectives = np.flatnonzero((ops.kind == Kind.COMM) & (ops.launch >= 0))
    launched_on, group = np.full((2, len(calls)), -1, np.int64)
    launched_on[ops.launch[collectives]] = stream_keys(ops.device, ops.stream)[collectives]
    stated = locate(trace.collectives.correlation, ops.correlation[collectives])
    group[ops.launch[collectives]] = pick(trace.collectives.group, stated)
    rows = distinct(np.concatenate([records, waits, call_kinds.launching(trace)]))
    number = np.full(len(calls), -1, np.int64)
    number[waits] = np.arange(len(waits))
    recording = mask_of(records, len(calls)) & calls.named(_NCCL_RECORD_CALL.__eq__)
    found = [
        _sequences(trace, rows[of_thread], recording, number, launched_on)
        for _, of_thread in (rows_by(calls.thread[rows]) if len(collectives) else ())
    ]
    five = np.concatenate([np.empty((0, 5), np.int64), *found])
    before, after, launching = number[five[:, 1]], number[five[:, 4]], launched_on[five[:, 2]]
    sure = (stream[before] == launching) & (stream[after] < 0) & (event[before] > 0)
    five, before, after, launching = five[sure], before[sure], after[sure], launching[sure]
    events, communicator = np.unique(event[before], return_inverse=True)
    communicator_streams = stream_keys(launching >> 32, _FIRST_STREAM + communicator)
    groups, number_of_group = np.unique(group[five[:, 2]], return_inverse=True)
    pairs = distinct(number_of_group * len(events) + communicator)
    one_event = np.bincount(pairs // max(len(events), 1), minlength=len(groups)) == 1
    known = np.flatnonzero(one_event[number_of_group] & (group[five[:, 2]] >= 0))
    return (
        np.concatenate([before[known], after]),
        np.concatenate([launching[known], communicator_streams]),
        np.concatenate([communicator_streams[known], launching]),
        np.concatenate([five[known, 0], five[:, 3]]),
    )


def _sequences(trace: Trace, rows: I64, recording: Bool, wait: I64, launched_on: I64) -> I64:
    """Return a thread's calls that record, wait, launch, record and wait in a collective's op, five in each row."""
    if len(rows) < 5:
        return np.empty((0, 5), np.int64)
    five = np.lib.stride_tricks.sliding_window_view(rows, 5)
    waits, records = wait[five] >= 0, recording[five]
    five = five[records[:, 0] & waits[:, 1] & (launched_on[five[:, 2]] >= 0) & records[:, 3] & waits[:, 4]]
    op = op_of(trace, five)
    found: I64 = five[(op == op[:, :1]).all(axis=1) & pick(trace.cpu_ops.named(_NCCL_OP.__eq__), op[:, 0], False)]
    return found


# -- Waits for events --------------------------------------------------------------------------------

EXACT, HIGH, LOW = 2, 1, 0
"""Confidence in the event of a wait: stated, or a guess by the times of ops (`holds`)."""
HANDOVER_NS = 20_000
"""Maximum time from the end of an op to the start of the op held by it: event and queue latency.

On an H200 it is 1 to 9 us. A certain wait may take `SURE_HANDOVER_NS`, for other devices and links.
"""
SURE_HANDOVER_NS = 100_000


def handover_ns(confidence: NDArray[Any]) -> I64:
    """Return the maximum time from an op's end to the start of an op that it held."""
    return np.where(confidence >= HIGH, SURE_HANDOVER_NS, HANDOVER_NS)


class EventWaits(Columns, frozen=True):
    """Calls that made a stream wait for an event, one row each."""

    call: I64
    """Row of `Trace.runtime_calls`."""
    stream: I64
    """Waiting stream, one of `stream_keys`; -1 where unknown."""
    source: I64
    """Stream on which the event was recorded; -1 where the trace doesn't state it."""
    record: I64
    """Record call that the trace names, or else the nearest; -1 where there is none."""
    nearest: I64
    """Nearest record call before the wait on the same thread, or on any if that one has none; -1 where there is none.
    """
    stated: Bool
    """True if the trace states the stream and the call that recorded the event, or if they are NCCL's own."""
    adjacent: Bool
    """True if nothing was enqueued between the nearest record and the wait."""


@kept()
def event_waits(trace: Trace) -> EventWaits:
    """Return the calls that made a stream wait for an event."""
    calls, syncs, ops = trace.runtime_calls, trace.syncs, trace.gpu_ops
    rows = np.flatnonzero(call_kinds.waits_event(calls))
    at, thread = calls.start_ns[rows], calls.thread[rows]
    # Sync records belong to wait calls by correlation. Kineto leaves out those of streams that run nothing.
    of_waits = np.flatnonzero((syncs.kind == Sync.STREAM_WAIT_EVENT) & (syncs.correlation > 0))
    sync = _by_correlation(syncs.correlation, of_waits, calls.correlation[rows])
    source = _stream(pick(syncs.source_device, sync), pick(syncs.source_stream, sync))
    launched = np.flatnonzero(ops.launch >= 0)
    launched = launched[np.argsort(calls.start_ns[ops.launch[launched]], kind="stable")]
    launched_at = calls.start_ns[ops.launch[launched]]
    if len(syncs):
        stream = _stream(pick(syncs.device, sync), pick(syncs.stream, sync))
    else:
        # Without sync events, the stream is that of the next op which the same thread enqueues.
        following = _next_on_thread(launched_at, calls.thread[ops.launch[launched]], at, thread)
        stream = pick(stream_keys(ops.device, ops.stream)[launched], following)
    records = np.flatnonzero(call_kinds.records_event(calls))
    nearest = last_before(calls, records, thread, at)
    nearest_at = np.where(nearest >= 0, pick(calls.start_ns, nearest), at)
    enqueued_since = np.searchsorted(launched_at, at, "left") - np.searchsorted(launched_at, nearest_at, "left")
    # The trace may name a record call from before the recording.
    named = pick(syncs.record_correlation, sync)
    record = _by_correlation(calls.correlation, records, named)
    stated = (record >= 0) & (source >= 0)
    record = np.where(named > 0, record, nearest)
    nccl, *of_nccl = find_nccl_waits(trace, records, rows, stream, np.where(source < 0, pick(syncs.event, sync), -1))
    stream[nccl], source[nccl], record[nccl], stated[nccl] = *of_nccl, True
    return EventWaits(
        call=rows,
        stream=stream,
        source=source,
        record=record,
        nearest=nearest,
        stated=stated,
        adjacent=(nearest >= 0) & (enqueued_since == 0),
    )


def _stream(device: I64, stream: I64) -> I64:
    """Return the keys of streams; -1 where there is none."""
    return np.where((device >= 0) & (stream >= 0), stream_keys(device, stream), -1)


def _by_correlation(correlations: I64, rows: I64, wanted: I64) -> I64:
    """Return for each wanted correlation a row (of `rows`) that has it; -1 where there is none."""
    return np.where(wanted > 0, pick(rows, locate(correlations[rows], wanted)), -1)


def _next_on_thread(times: I64, threads: I64, at: I64, thread: I64) -> I64:
    """Return the place in `times`, which are sorted, of the first at or after each instant on its thread; or -1."""
    following, by_thread = np.full(len(at), -1, np.int64), dict(rows_by(threads))
    for thread_id, of_thread in rows_by(thread):
        candidates = by_thread.get(thread_id, of_thread[:0])
        following[of_thread] = pick(candidates, np.searchsorted(times[candidates], at[of_thread]))
    return following
