"""Where in the lanes a row of the trace is drawn."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from overlapscope.timeline.categories import ID
from overlapscope.timeline.lane import Lanes
from overlapscope.trace.model import I64, GpuOps

_CALLS = (ID["blocking-call"], ID["runtime-call"])


class Place(NamedTuple):
    """An op of a lane."""

    lane: int
    row: int


def of_gpu_op(lanes: Lanes, device: int, row: int) -> Place:
    """Where an op of a device (row of its `Timeline.ops`) is drawn."""
    stream = int(lanes.device(device).timeline.ops.stream[row])
    for lane in lanes.lanes:
        if lane.kind == "stream" and lane.device == device and lane.stream == stream:
            return Place(lane.id, int(np.searchsorted(lane.source, np.asarray(row, lane.source.dtype))))
    raise KeyError(f"stream {stream} of device {device}")


def trace_row(lanes: Lanes, device: int, row: int) -> int:
    """The row in `Trace.gpu_ops` of an op of a device."""
    ops = lanes.analysis.trace.gpu_ops
    if len(ops) == len(lanes.device(device).timeline.ops):
        return row
    return int(np.flatnonzero(ops.device == device)[row])


def of_trace_op(lanes: Lanes, row: int) -> Place | None:
    """Where an op of `Trace.gpu_ops` is drawn; None where its device is not."""
    ops = lanes.analysis.trace.gpu_ops
    device = int(ops.device[row])
    if all(one.result.device != device for one in lanes.analysis.devices):
        return None
    return of_gpu_op(lanes, device, int(np.count_nonzero(ops.device[:row] == device)))


def of_call(lanes: Lanes, row: int) -> Place:
    """Where a runtime call (row of `Trace.runtime_calls`) is drawn."""
    calls = lanes.analysis.trace.runtime_calls
    thread, at = int(calls.thread[row]), int(calls.start_ns[row]) - lanes.origin_ns
    for lane in lanes.lanes:
        if lane.kind == "host" and lane.thread == thread:
            first, last = (int(lane.start_ns.searchsorted(at, side=side)) for side in ("left", "right"))
            same = (lane.source[first:last] == row) & np.isin(lane.category[first:last], _CALLS)
            if same.any():
                return Place(lane.id, first + int(np.argmax(same)))
    raise KeyError(f"call {row}")


def piece_at(lanes: Lanes, device: int, at_ns: int) -> Place:
    """The piece of a device's overlap lane around an instant inside its window, relative to the origin."""
    for lane in lanes.lanes:
        if lane.kind == "overlap" and lane.device == device and len(lane):
            return Place(lane.id, max(int(lane.start_ns.searchsorted(at_ns, side="right")) - 1, 0))
    raise KeyError(f"device {device}")


def launched_by(ops: GpuOps, calls: I64) -> I64:
    """The GPU ops that the given runtime calls (sorted rows) launched, by start."""
    if not len(calls):
        return np.empty(0, np.int64)
    found = np.flatnonzero((ops.launch >= calls[0]) & (ops.launch <= calls[-1]))
    return found[np.isin(ops.launch[found], calls)]
