"""Links between ops in the lanes: launches and event waits."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from overlapscope.analysis.event_waits import EXACT
from overlapscope.timeline.lane import CALLS, Lanes
from overlapscope.trace.model import I64

MOST = 50
"""Maximum number of arrows of an op; a graph launch has thousands."""


class LaneRow(NamedTuple):
    """An op of a lane."""

    lane: int
    row: int


def rows_on(lanes: Lanes, device: int) -> I64:
    """Return the rows of `Trace.gpu_ops` that are the rows of a device's `Timeline.ops`."""
    return np.flatnonzero(lanes.analysis.trace.gpu_ops.device == device)


def row_of_gpu_op(lanes: Lanes, row: int) -> LaneRow:
    """Return the place of a row of `Trace.gpu_ops`. Raises KeyError if its device is not drawn."""
    ops = lanes.analysis.trace.gpu_ops
    device, stream = int(ops.device[row]), int(ops.stream[row])
    for lane in lanes.lanes:
        if lane.kind == "stream" and lane.device == device and lane.stream == stream:
            return LaneRow(lane.id, int(np.searchsorted(lane.source, np.asarray(row, lane.source.dtype))))
    raise KeyError(f"stream {stream} of device {device}")


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


def launched_by(lanes: Lanes, calls: I64) -> I64:
    """Return the rows of `Trace.gpu_ops` that the given runtime calls (sorted rows) launched, device by device."""
    if not len(calls):
        return np.empty(0, np.int64)
    ops = lanes.analysis.trace.gpu_ops
    rows = np.flatnonzero((ops.launch >= calls[0]) & (ops.launch <= calls[-1]))
    rows = rows[np.isin(ops.launch[rows], calls) & np.isin(ops.device[rows], _drawn(lanes))]
    return rows[np.argsort(ops.device[rows], kind="stable")]


def _drawn(lanes: Lanes) -> list[int]:
    return [analysis.result.device for analysis in lanes.analysis.devices]


# -- Event waits -----------------------------------------------------------------------------------


class EventWait(NamedTuple):
    """An edge of `analysis.holds.Edges`: a recorded event, the wait for it, and the op that it delayed.

    Ops are rows of `Trace.gpu_ops`, calls of `Trace.runtime_calls`.
    """

    held: int
    """Delayed op."""
    source_op: int
    """Op that was waited for, on any device."""
    wait: int
    """Call that asked for the wait."""
    record: int
    """Call that recorded the event; -1 if unknown."""
    confidence: int


def waits_of(lanes: Lanes, *, op: int | None = None, call: int | None = None) -> list[EventWait]:
    """Return the waits that delayed an op or were for it, or those whose event a call recorded or waited for.

    The surest come first.
    """
    waits = []
    for analysis in lanes.analysis.devices:
        edges = analysis.edges
        held = rows_on(lanes, analysis.result.device)[edges.held]
        ends, row = ((edges.wait, edges.record), call) if op is None else ((held, edges.source_op), op)
        rows = np.flatnonzero((ends[0] == row) | (ends[1] == row))
        columns = (held, edges.source_op, edges.wait, edges.record, edges.confidence)
        waits += [EventWait(*edge) for edge in zip(*(column[rows].tolist() for column in columns), strict=True)]
    return sorted(waits, key=lambda wait: -wait.confidence)


# -- Arrows ----------------------------------------------------------------------------------------

Arrow = dict[str, Any]
End = tuple[LaneRow, int]
"""End of an arrow: an op of a lane, and an instant."""


def arrows_of_gpu_op(lanes: Lanes, row: int, waits: list[EventWait]) -> list[Arrow]:
    """Return the launch and the event waits of an op, a row of `Trace.gpu_ops`."""
    launched = [_launch(lanes, row)] if lanes.analysis.trace.gpu_ops.launch[row] >= 0 else []
    return launched + arrows_of_waits(lanes, waits)


def arrows_of_waits(lanes: Lanes, waits: list[EventWait]) -> list[Arrow]:
    """Return arrows from the awaited to the delayed op, and from recording an event to waiting for it.

    Each arrow is drawn once. If several waits give the same arrow, the first counts, since its confidence is the
    highest.
    """
    arrows: dict[tuple[LaneRow, LaneRow], Arrow] = {}
    ops, drawn = lanes.analysis.trace.gpu_ops, _drawn(lanes)
    for wait in waits[: MOST // 2]:
        pairs: list[tuple[End, End]] = []
        if ops.device[wait.source_op] in drawn:
            ended = int(ops.end_ns[wait.source_op]) - lanes.origin_ns
            pairs.append(((row_of_gpu_op(lanes, wait.source_op), ended), _begin(lanes, wait.held)))
        if wait.record >= 0:
            pairs.append((_called(lanes, wait.record), _called(lanes, wait.wait)))
        confidence = "exact" if wait.confidence == EXACT else "rebuilt"
        for begin, end in pairs:
            arrows.setdefault((begin[0], end[0]), _arrow("wait", confidence, begin, end))
    return list(arrows.values())


def arrows_of_calls(lanes: Lanes, calls: I64) -> list[Arrow]:
    """Return arrows from runtime calls (sorted rows) to the GPU ops that they launched."""
    return [_launch(lanes, row) for row in launched_by(lanes, calls)[:MOST].tolist()]


def _launch(lanes: Lanes, row: int) -> Arrow:
    call = int(lanes.analysis.trace.gpu_ops.launch[row])
    return _arrow("launch", "exact", _called(lanes, call), _begin(lanes, row))


def _called(lanes: Lanes, call: int) -> End:
    return row_of_call(lanes, call), int(lanes.analysis.trace.runtime_calls.start_ns[call]) - lanes.origin_ns


def _begin(lanes: Lanes, row: int) -> End:
    return row_of_gpu_op(lanes, row), int(lanes.analysis.trace.gpu_ops.start_ns[row]) - lanes.origin_ns


def _arrow(kind: str, confidence: str, begin: End, end: End) -> Arrow:
    ends = {side: row._asdict() | {"at": at} for side, (row, at) in (("from", begin), ("to", end))}
    return {"kind": kind, "confidence": confidence, **ends}
