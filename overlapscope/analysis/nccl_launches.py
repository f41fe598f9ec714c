"""NCCL's own events around the launch of a collective, as far as a recording shows that they are its.

Each communicator has a stream of its own, on which nothing runs. A launch makes the launching stream wait for it, and
it for the launching stream, so that the collectives of a communicator run one after another on any streams (NCCL,
src/enqueue.cc: `ncclLaunchPrepare`, `ncclLaunchFinish`; src/misc/strongstream.cc: `ncclStreamWaitStream`). The first
wait is for the communicator's own event, whose number the recording states. Kineto leaves out the second, since its
stream runs nothing.

NCCL replaces a communicator's event now and then, and a process group may have several communicators. So the first wait
is known only if all launches of its group have the same event. Communicators of several groups have the same stream
only if the user had them share it (NCCL_COMM_SPLIT_SHARE_RESOURCES).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from overlapscope.analysis import calls as call_kinds
from overlapscope.analysis.host import around
from overlapscope.base.columns import I64, Bool, locate, mask_of, pick
from overlapscope.base.grouping import distinct, rows_by
from overlapscope.trace.model import Kind, Trace, stream_keys

_OP = "record_param_comms"
"""CPU op in which ProcessGroupNCCL launches a collective (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp)."""
_RECORD = "cudaEventRecord"
"""NCCL's call. PyTorch records events of its own by `cudaEventRecordWithFlags`."""
_FIRST_STREAM = 1 << 30
"""Number of the first communicator's stream, larger than those of recorded streams."""


class NcclWaits(NamedTuple):
    """Waits of NCCL's launches."""

    row: I64
    """Row among the waits."""
    stream: I64
    """Waiting stream, one of `stream_keys`; a communicator's has a number that no recorded stream has."""
    source: I64
    """Stream on which the event was recorded."""
    record: I64
    """Call that recorded it."""


def find_nccl_waits(trace: Trace, records: I64, waits: I64, stream: I64, event: I64) -> NcclWaits:
    """Return the waits of NCCL's launches.

    Args:
        trace: The recording.
        records: Calls that record events.
        waits: Calls that make a stream wait for an event.
        stream: Stream of each wait; -1 where unknown.
        event: Number of the event of each wait; -1 where unknown.
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
    recording = mask_of(records, len(calls)) & calls.named(_RECORD.__eq__)
    found = [
        _sequences(trace, rows[of_thread], recording, number, launched_on)
        for _, of_thread in (rows_by(calls.thread[rows]) if len(collectives) else ())
    ]
    five = np.concatenate([np.empty((0, 5), np.int64), *found])
    before, after, launching = number[five[:, 1]], number[five[:, 4]], launched_on[five[:, 2]]
    sure = (stream[before] == launching) & (stream[after] < 0) & (event[before] > 0)
    five, before, after, launching = five[sure], before[sure], after[sure], launching[sure]
    events, communicator = np.unique(event[before], return_inverse=True)
    own = stream_keys(launching >> 32, _FIRST_STREAM + communicator)
    groups, number_of_group = np.unique(group[five[:, 2]], return_inverse=True)
    pairs = distinct(number_of_group * len(events) + communicator)
    one_event = np.bincount(pairs // max(len(events), 1), minlength=len(groups)) == 1
    known = np.flatnonzero(one_event[number_of_group] & (group[five[:, 2]] >= 0))
    return NcclWaits(
        row=np.concatenate([before[known], after]),
        stream=np.concatenate([launching[known], own]),
        source=np.concatenate([own[known], launching]),
        record=np.concatenate([five[known, 0], five[:, 3]]),
    )


def _sequences(trace: Trace, rows: I64, recording: Bool, wait: I64, launched_on: I64) -> I64:
    """Return a thread's calls that record, wait, launch, record and wait in a collective's op, five in each row."""
    if len(rows) < 5:
        return np.empty((0, 5), np.int64)
    five = np.lib.stride_tricks.sliding_window_view(rows, 5)
    waits, records = wait[five] >= 0, recording[five]
    five = five[records[:, 0] & waits[:, 1] & (launched_on[five[:, 2]] >= 0) & records[:, 3] & waits[:, 4]]
    calls = trace.runtime_calls
    op = around(trace.cpu_ops, calls.thread[five].ravel(), calls.start_ns[five].ravel()).reshape(five.shape)
    found: I64 = five[(op == op[:, :1]).all(axis=1) & pick(trace.cpu_ops.named(_OP.__eq__), op[:, 0], False)]
    return found
