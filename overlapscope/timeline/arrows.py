"""What led to an op and what it led to: launches, and waits for events."""

from __future__ import annotations

from typing import Any

from overlapscope.analysis.edges import EXACT
from overlapscope.timeline import places
from overlapscope.timeline.lane import Lanes
from overlapscope.timeline.places import Place
from overlapscope.timeline.waits import EventWait
from overlapscope.trace.model import I64

MOST = 50
"""Arrows of one op; a graph launch has thousands."""

Arrow = dict[str, Any]
End = tuple[Place, int]
"""An op of a lane, and the instant at which an arrow begins or ends there."""


def of_gpu_op(lanes: Lanes, device: int, row: int, waits: list[EventWait]) -> list[Arrow]:
    """Its launch, and the event waits it takes part in. `row` is of the device's `Timeline.ops`."""
    call = int(lanes.device(device).timeline.ops.launch[row])
    launched = [_launch(lanes, call, device, row)] if call >= 0 else []
    return launched + of_waits(lanes, waits)


def of_waits(lanes: Lanes, waits: list[EventWait]) -> list[Arrow]:
    """From the op that was waited for to the one held back, and from the call that recorded the event to the one that
    asked for the wait. Each is drawn once: of several waits that say the same the first counts, which is the surest."""
    found: dict[tuple[Place, Place], Arrow] = {}
    for one in waits[: MOST // 2]:
        pairs = []
        source = places.of_trace_op(lanes, one.source_op)
        if source is not None:
            ended = int(lanes.analysis.trace.gpu_ops.end_ns[one.source_op]) - lanes.origin_ns
            pairs.append(((source, ended), _begin(lanes, one.device, one.held)))
        if one.record >= 0:
            pairs.append((_called(lanes, one.record), _called(lanes, one.wait)))
        for begin, end in pairs:
            confidence = "exact" if one.confidence == EXACT else "rebuilt"
            found.setdefault((begin[0], end[0]), _arrow("wait", confidence, begin, end))
    return list(found.values())


def of_calls(lanes: Lanes, calls: I64) -> list[Arrow]:
    """From runtime calls (sorted rows) to the GPU ops that they launched."""
    found: list[Arrow] = []
    for one in lanes.analysis.devices:
        ops, device = one.timeline.ops, one.result.device
        rows = places.launched_by(ops, calls)[: MOST - len(found)]
        found += [_launch(lanes, int(ops.launch[row]), device, row) for row in rows.tolist()]
    return found


def _launch(lanes: Lanes, call: int, device: int, row: int) -> Arrow:
    return _arrow("launch", "exact", _called(lanes, call), _begin(lanes, device, row))


def _called(lanes: Lanes, call: int) -> End:
    return places.of_call(lanes, call), int(lanes.analysis.trace.runtime_calls.start_ns[call]) - lanes.origin_ns


def _begin(lanes: Lanes, device: int, row: int) -> End:
    began = int(lanes.device(device).timeline.ops.start_ns[row])
    return places.of_gpu_op(lanes, device, row), began - lanes.origin_ns


def _arrow(kind: str, confidence: str, begin: End, end: End) -> Arrow:
    return {
        "kind": kind,
        "confidence": confidence,
        "from": {"lane": begin[0].lane, "row": begin[0].row, "at": begin[1]},
        "to": {"lane": end[0].lane, "row": end[0].row, "at": end[1]},
    }
