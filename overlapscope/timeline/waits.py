"""The event waits behind an op or a runtime call: what recorded the event, what waited for it, whom that held back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from overlapscope.analysis.edges import EXACT, HIGH
from overlapscope.timeline import places
from overlapscope.timeline.facts import Facts
from overlapscope.timeline.lane import Lanes
from overlapscope.trace.model import Sync

_TOLD = 3
"""Waits of one op told one by one."""


class EventWait(NamedTuple):
    """One edge of `analysis.edges.Edges`."""

    device: int
    """Of the held op."""
    held: int
    """Row of that device's `Timeline.ops`."""
    source_op: int
    """Row of `Trace.gpu_ops`, of whatever device."""
    wait: int
    """Row of `Trace.runtime_calls`."""
    record: int
    """Likewise; -1 where it is not known."""
    confidence: int


def of_gpu_op(lanes: Lanes, device: int, row: int) -> list[EventWait]:
    """Those that held back an op, row of the device's `Timeline.ops`, and those for which others waited for it."""
    return _found(lanes, held=(device, row), source_op=places.trace_row(lanes, device, row))


def of_call(lanes: Lanes, call: int) -> list[EventWait]:
    """Those that a runtime call recorded or asked for."""
    return _found(lanes, call=call)


def _found(
    lanes: Lanes, *, held: tuple[int, int] | None = None, source_op: int = -1, call: int = -1
) -> list[EventWait]:
    """The edges with any of these, surest first."""
    found = []
    for one in lanes.analysis.devices:
        edges, device = one.edges, one.result.device
        if held is None:
            mine = (edges.wait == call) | (edges.record == call)
        else:
            mine = edges.source_op == source_op
            if held[0] == device:
                mine |= edges.held == held[1]
        rows = np.flatnonzero(mine)
        columns = (edges.held, edges.source_op, edges.wait, edges.record, edges.confidence)
        found += [EventWait(device, *edge) for edge in zip(*(column[rows].tolist() for column in columns), strict=True)]
    return sorted(found, key=lambda one: -one.confidence)


def facts(lanes: Lanes, waits: list[EventWait]) -> Facts:
    """Of each which event it is, which streams it orders, and whether the trace states that."""
    told = [["event", _told(lanes, one)] for one in waits[:_TOLD]]
    if len(waits) > _TOLD:
        told.append(["more events", f"{len(waits) - _TOLD:,}"])
    return told


def facts_of_idle_wait(lanes: Lanes, call: int) -> Facts:
    """The same of a call that made a stream wait without holding back any op that is known."""
    sync = _sync_of(lanes, call)
    if sync < 0:
        return []
    stream, event = int(lanes.analysis.trace.syncs.stream[sync]), _event(lanes, sync)
    return [["event", f"{event}stream {stream} waits, but no op is known to have been held back"]]


def _told(lanes: Lanes, one: EventWait) -> str:
    ops = lanes.analysis.trace.gpu_ops
    source = int(ops.device[one.source_op])
    streams = [int(lanes.device(one.device).timeline.ops.stream[one.held]), int(ops.stream[one.source_op])]
    waiting, waited_for = (f"stream {stream}" for stream in streams)
    if source != one.device:
        waiting, waited_for = f"{waiting} of device {one.device}", f"{waited_for} of device {source}"
    parts = [f"{_event(lanes, _sync_of(lanes, one.wait))}{waiting} waits for {waited_for}"]
    if one.confidence == EXACT:
        parts.append("exact")
    else:
        parts.append(f"rebuilt, {'high' if one.confidence == HIGH else 'low'} confidence")
    if one.record < 0:
        parts.append("its record call is not known")
    return "; ".join(parts)


def _event(lanes: Lanes, sync: int) -> str:
    """The event's number, to begin a sentence with."""
    event = int(lanes.analysis.trace.syncs.event[sync]) if sync >= 0 else -1
    return f"{event}: " if event >= 0 else ""


def _sync_of(lanes: Lanes, call: int) -> int:
    """Row of the sync record of a wait call; -1 where there is none."""
    trace = lanes.analysis.trace
    correlation = int(trace.runtime_calls.correlation[call])
    if correlation <= 0:
        return -1
    found = np.flatnonzero((trace.syncs.correlation == correlation) & (trace.syncs.kind == Sync.STREAM_WAIT_EVENT))
    return int(found[0]) if len(found) else -1
