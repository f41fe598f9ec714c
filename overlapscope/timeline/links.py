"""Links between ops in the lanes: launches and event waits."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from overlapscope.analysis.event_waits import EXACT
from overlapscope.timeline.lane import CALLS, Lanes
from overlapscope.trace.model import I64, GpuOps

MOST = 50
"""Maximum number of arrows of an op; a graph launch has thousands."""


class LaneRow(NamedTuple):
    """An op of a lane."""

    lane: int
    row: int


def row_of_gpu_op(lanes: Lanes, device: int, row: int) -> LaneRow:
    """Return the place of a device's op, a row of its `Timeline.ops`."""
    stream = int(lanes.device(device).timeline.ops.stream[row])
    for lane in lanes.lanes:
        if lane.kind == "stream" and lane.device == device and lane.stream == stream:
            return LaneRow(lane.id, int(np.searchsorted(lane.source, np.asarray(row, lane.source.dtype))))
    raise KeyError(f"stream {stream} of device {device}")


def row_of_trace_op(lanes: Lanes, row: int) -> LaneRow | None:
    """Return the place of a row of `Trace.gpu_ops`; None if its device is not drawn."""
    ops = lanes.analysis.trace.gpu_ops
    device = int(ops.device[row])
    if all(analysis.result.device != device for analysis in lanes.analysis.devices):
        return None
    return row_of_gpu_op(lanes, device, int(np.count_nonzero(ops.device[:row] == device)))


def row_of_call(lanes: Lanes, call: int) -> LaneRow:
    """Return the place of a runtime call, a row of `Trace.runtime_calls`."""
    calls = lanes.analysis.trace.runtime_calls
    thread, at = int(calls.thread[call]), int(calls.start_ns[call]) - lanes.origin_ns
    for lane in lanes.lanes:
        if lane.kind == "host" and lane.thread == thread:
            first, last = (int(lane.start_ns.searchsorted(at, side=side)) for side in ("left", "right"))
            same = (lane.source[first:last] == call) & np.isin(lane.category[first:last], CALLS)
            if same.any():
                return LaneRow(lane.id, first + int(np.argmax(same)))
    raise KeyError(f"call {call}")


def row_of_piece(lanes: Lanes, device: int, at_ns: int) -> LaneRow:
    """Return the piece of a device's overlap lane at an instant in its window, relative to the origin."""
    for lane in lanes.lanes:
        if lane.kind == "overlap" and lane.device == device and len(lane):
            return LaneRow(lane.id, max(int(lane.start_ns.searchsorted(at_ns, side="right")) - 1, 0))
    raise KeyError(f"device {device}")


def launched_by(ops: GpuOps, calls: I64) -> I64:
    """Return the GPU ops that the given runtime calls (sorted rows) launched, by start."""
    if not len(calls):
        return np.empty(0, np.int64)
    between = np.flatnonzero((ops.launch >= calls[0]) & (ops.launch <= calls[-1]))
    return between[np.isin(ops.launch[between], calls)]


# -- Event waits -----------------------------------------------------------------------------------


class EventWait(NamedTuple):
    """An edge of `analysis.holds.Edges`: a recorded event, the wait for it, and the op that it delayed."""

    device: int
    """Device of the delayed op."""
    held: int
    """Delayed op, a row of that device's `Timeline.ops`."""
    source_op: int
    """Op that was waited for, a row of `Trace.gpu_ops` on any device."""
    wait: int
    """Call that asked for the wait, a row of `Trace.runtime_calls`."""
    record: int
    """Call that recorded the event, a row of `Trace.runtime_calls`; -1 if unknown."""
    confidence: int


def waits_of_gpu_op(lanes: Lanes, device: int, row: int) -> list[EventWait]:
    """Return the waits that delayed an op, a row of the device's `Timeline.ops`, and the waits for that op."""
    ops = lanes.analysis.trace.gpu_ops
    source = int(np.flatnonzero(ops.device == device)[row])
    waits = []
    for analysis in lanes.analysis.devices:
        concerned = analysis.edges.source_op == source
        if analysis.result.device == device:
            concerned |= analysis.edges.held == row
        waits += _waits(lanes, analysis.result.device, np.flatnonzero(concerned))
    return _surest_first(waits)


def waits_of_call(lanes: Lanes, call: int) -> list[EventWait]:
    """Return the waits whose event a runtime call recorded, or which it asked for."""
    waits = []
    for analysis in lanes.analysis.devices:
        concerned = (analysis.edges.wait == call) | (analysis.edges.record == call)
        waits += _waits(lanes, analysis.result.device, np.flatnonzero(concerned))
    return _surest_first(waits)


def _waits(lanes: Lanes, device: int, rows: I64) -> list[EventWait]:
    edges = lanes.device(device).edges.take(rows)
    columns = (edges.held, edges.source_op, edges.wait, edges.record, edges.confidence)
    return [EventWait(device, *edge) for edge in zip(*(column.tolist() for column in columns), strict=True)]


def _surest_first(waits: list[EventWait]) -> list[EventWait]:
    return sorted(waits, key=lambda wait: -wait.confidence)


# -- Arrows ----------------------------------------------------------------------------------------

Arrow = dict[str, Any]
End = tuple[LaneRow, int]
"""End of an arrow: an op of a lane, and an instant."""


def arrows_of_gpu_op(lanes: Lanes, device: int, row: int, waits: list[EventWait]) -> list[Arrow]:
    """Return the launch and the event waits of an op, a row of the device's `Timeline.ops`."""
    call = int(lanes.device(device).timeline.ops.launch[row])
    launched = [_launch(lanes, call, device, row)] if call >= 0 else []
    return launched + arrows_of_waits(lanes, waits)


def arrows_of_waits(lanes: Lanes, waits: list[EventWait]) -> list[Arrow]:
    """Return arrows from the awaited to the delayed op, and from recording an event to waiting for it.

    Each arrow is drawn once. If several waits give the same arrow, the first counts, since its confidence is the
    highest.
    """
    arrows: dict[tuple[LaneRow, LaneRow], Arrow] = {}
    for wait in waits[: MOST // 2]:
        pairs: list[tuple[End, End]] = []
        source = row_of_trace_op(lanes, wait.source_op)
        if source is not None:
            ended = int(lanes.analysis.trace.gpu_ops.end_ns[wait.source_op]) - lanes.origin_ns
            pairs.append(((source, ended), _begin(lanes, wait.device, wait.held)))
        if wait.record >= 0:
            pairs.append((_called(lanes, wait.record), _called(lanes, wait.wait)))
        confidence = "exact" if wait.confidence == EXACT else "rebuilt"
        for begin, end in pairs:
            arrows.setdefault((begin[0], end[0]), _arrow("wait", confidence, begin, end))
    return list(arrows.values())


def arrows_of_calls(lanes: Lanes, calls: I64) -> list[Arrow]:
    """Return arrows from runtime calls (sorted rows) to the GPU ops that they launched."""
    arrows: list[Arrow] = []
    for analysis in lanes.analysis.devices:
        ops, device = analysis.timeline.ops, analysis.result.device
        rows = launched_by(ops, calls)[: MOST - len(arrows)]
        arrows += [_launch(lanes, int(ops.launch[row]), device, row) for row in rows.tolist()]
    return arrows


def _launch(lanes: Lanes, call: int, device: int, row: int) -> Arrow:
    return _arrow("launch", "exact", _called(lanes, call), _begin(lanes, device, row))


def _called(lanes: Lanes, call: int) -> End:
    return row_of_call(lanes, call), int(lanes.analysis.trace.runtime_calls.start_ns[call]) - lanes.origin_ns


def _begin(lanes: Lanes, device: int, row: int) -> End:
    began = int(lanes.device(device).timeline.ops.start_ns[row])
    return row_of_gpu_op(lanes, device, row), began - lanes.origin_ns


def _arrow(kind: str, confidence: str, begin: End, end: End) -> Arrow:
    ends = {side: row._asdict() | {"at": at} for side, (row, at) in (("from", begin), ("to", end))}
    return {"kind": kind, "confidence": confidence, **ends}
