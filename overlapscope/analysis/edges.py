"""Edges between ops: event waits, joined to the op that was waited for and the op that was held.

The waits come from the order that the program demands (`holds`). If the recording doesn't state the event of a wait,
the edge is rebuilt from the times of ops (`guessed_sources`). An edge that the timeline contradicts is left out.
"""

from __future__ import annotations

import numpy as np

from overlapscope.analysis.event_waits import event_waits
from overlapscope.analysis.holds import Reading, find_holds
from overlapscope.analysis.lane_items import find_lanes
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import Columns
from overlapscope.base.intervals import I64
from overlapscope.base.kept import kept
from overlapscope.trace.model import I8, Kind, Trace


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


@kept()
def find_edges(trace: Trace, timeline: Timeline) -> Edges:
    """Return all event-wait edges that hold ops of the device, by held op."""
    ops = trace.gpu_ops
    if not len(event_waits(trace)) or not (ops.launch >= 0).any():
        return Edges.empty()
    items, holds = find_lanes(trace).items, find_holds(trace, Reading.LIKELY).streams
    holds = holds.take(holds.first >= 0)
    held, source = items.op[holds.then], items.last_op[holds.first]
    edges = np.flatnonzero((ops.device[held] == timeline.device) & (ops.end_ns[source] <= ops.start_ns[held]))
    edges = edges[np.argsort(held[edges], kind="stable")]
    held, source, holds = held[edges], source[edges], holds.take(edges)
    row_on_device = np.full(len(ops), -1, np.int64)
    here = np.flatnonzero(ops.device == timeline.device)
    row_on_device[here] = np.arange(len(here))
    return Edges(
        held=row_on_device[held],
        source=row_on_device[source],
        source_end_ns=ops.end_ns[source],
        confidence=holds.confidence,
        source_op=source,
        wait=holds.wait,
        record=holds.record,
    )


def own_stream_waits(trace: Trace) -> tuple[I64, I64]:
    """Return waits of a stream for an event of its own: the op before the event, and the op after the wait.

    Such waits hold nothing back, but show which copies and kernels belong together. The op before is the last one
    before the event was recorded; the op after is the first of another sort (upload, download, other) after the wait.
    Both are rows of `Trace.gpu_ops`. Only waits are used for which the trace states the stream and the call that
    recorded the event.
    """
    waits = event_waits(trace)
    waits = waits.take(waits.stated & (waits.stream == waits.source))
    if not len(waits):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    lanes, ops = find_lanes(trace), trace.gpu_ops
    op = lanes.items.op
    sort = np.where(ops.is_copy, ops.kind, -1)[op]
    source, held = [], []
    for lane, key in enumerate(lanes.keys):
        of_lane = np.arange(lanes.first[lane], lanes.first[lane + 1])
        others = {of: of_lane[sort[of_lane] != of] for of in (-1, Kind.H2D, Kind.D2H)}
        theirs = waits.take(waits.stream == key)
        for record, wait in zip(theirs.record.tolist(), theirs.call.tolist(), strict=True):
            before = lanes.last(lane, record)
            if before < 0 or lanes.items.call[before] < 0:
                continue
            possible = others[int(sort[before])]
            behind = int(np.searchsorted(lanes.items.call[possible], wait))
            if behind < len(possible):
                source.append(int(op[before]))
                held.append(int(op[possible[behind]]))
    return np.array(source, np.int64), np.array(held, np.int64)
