"""Causes of idle time: each nanosecond of each gap has exactly one cause.

A gap ends when an op begins. If the op began as soon after its launch call's end as ops do on a drained device, the
host was late. Then the gap is the image of the host's activity until that call returned, shifted by the latency
(`late_launch`). If the op was launched earlier, the device held it back, by an event wait or by its own latency. If the
host waited for ops that are not in the trace, the cause is unknown.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.event_waits import EXACT, handover_ns
from overlapscope.analysis.holds import Edges
from overlapscope.analysis.host import Blocking
from overlapscope.analysis.late_launch import Late, attribute_host
from overlapscope.analysis.missing_ops import find_missing
from overlapscope.analysis.periods import phases_of
from overlapscope.analysis.pieces import IdleTime
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import Columns, quantile
from overlapscope.base.intervals import I64, Bool, complement, cut, union
from overlapscope.catalog.causes import IDLE_RANK as RANK
from overlapscope.catalog.causes import IdleCause
from overlapscope.trace.model import Trace
from overlapscope.trace.op_names import is_migration_to_host

LAUNCH_LATENCY_NS = 10_000
"""Maximum time from a launch call's end to its op's start on a drained device, unless the trace shows longer ones."""

MOST_LATENCY_NS = 100_000
"""Maximum time from a launch call's end to its op's start on a drained device, whatever the trace shows."""
_ENOUGH = 3


class _Gaps(Columns, frozen=True):
    """Idle gaps after the lead-in that ended with an op whose launch was recorded, one row each."""

    start_ns: I64
    end_ns: I64
    launch: I64
    """Row in `Trace.runtime_calls`."""
    called_ns: I64
    returned_ns: I64
    thread: I64
    held_until_ns: I64
    """End of the last op that it waited for by event; -1 if there was none, or if it was launched too late to wait."""
    confidence: I64
    """Confidence in `held_until_ns`."""

    @property
    def held(self) -> Bool:
        """True if an event held the op back."""
        return self.held_until_ns >= 0

    @property
    def drained(self) -> Bool:
        """True if the op was launched onto an idle device, and nothing held it."""
        drained: Bool = ~self.held & (self.called_ns >= self.start_ns)
        return drained

    @property
    def latency_ns(self) -> I64:
        """Time from the launch call's end to the op's start."""
        latency: I64 = np.maximum(self.end_ns - self.returned_ns, 0)
        return latency


def attribute(trace: Trace, timeline: Timeline, edges: Edges, blocking: Blocking) -> IdleTime:
    """Return the causes of a device's idle time."""
    start, end = timeline.idle
    judged = np.clip(timeline.judged_from_ns, start, end)
    op = _ops_ending(timeline)
    nameless = timeline.ops.launch[op] < 0
    # Between two pages that the host touches it does work of its own, which no call shows.
    touched = nameless & timeline.ops.named(is_migration_to_host)[op]
    called = union(trace.runtime_calls.start_ns, trace.runtime_calls.end_ns)
    touching = cut(judged[touched], end[touched], complement(called, timeline.start_ns, timeline.end_ns))
    calling = cut(judged[touched], end[touched], called)
    nameless &= ~touched
    inside = _inside_graphs(trace, timeline, op)
    gaps = _gaps(trace, timeline, edges, op, judged, ~inside & (timeline.ops.launch[op] >= 0))
    limit = _latency_limit(gaps)
    in_time = (gaps.latency_ns <= limit) & ~(gaps.held & (gaps.held_until_ns > gaps.start_ns))
    # Before the op was issued, the host was responsible, and after that the device.
    issued = np.where(in_time, gaps.end_ns, np.clip(gaps.returned_ns, gaps.start_ns, gaps.end_ns))
    shift = np.where(in_time, gaps.latency_ns, 0)
    late = Late(gaps.start_ns - shift, issued - shift, shift, gaps.launch).take(issued > gaps.start_ns)

    def with_cause(cause: IdleCause, start: I64, end: I64) -> IdleTime:
        """Return idle time with a cause that doesn't depend on the host."""
        return IdleTime.filled(
            start_ns=start, end_ns=end, cause=RANK[cause], confidence=EXACT, call=-1, host_ns=start, thread=-1
        )

    idle = IdleTime.in_order(
        [
            with_cause(IdleCause.LEAD_IN, start, judged),
            with_cause(IdleCause.UNKNOWN, judged[nameless], end[nameless]),
            with_cause(IdleCause.GRAPH_GAP, judged[inside], end[inside]),
            with_cause(IdleCause.UNKNOWN, *calling[1:]),
            with_cause(IdleCause.NOT_RECORDED, *touching[1:]),
            *_held_back(gaps, issued, limit),
            attribute_host(trace, timeline, blocking, late),
        ]
    )
    return _without_ops(trace, timeline, blocking, idle)


def _inside_graphs(trace: Trace, timeline: Timeline, op: I64) -> Bool:
    """Select the gaps between two ops of a server's graph, given the op that ends each gap."""
    launch, start = timeline.ops.launch, timeline.ops.start_ns
    first = np.full(len(trace.runtime_calls) + 1, np.iinfo(np.int64).max)
    if phases_of(trace):
        np.minimum.at(first, launch[launch >= 0], start[launch >= 0])
    # The last place stands for ops without a launch.
    inside: Bool = first[launch[op]] < start[op]
    return inside


def _gaps(trace: Trace, timeline: Timeline, edges: Edges, op: I64, judged: I64, launched: Bool) -> _Gaps:
    """Return the gaps that end with launched ops.

    Args:
        trace: The trace.
        timeline: Timeline of the device.
        edges: Event waits of the device's ops.
        op: Op that ends each gap.
        judged: Start of each gap after the lead-in.
        launched: Gaps to return.
    """
    op, start, end = op[launched], judged[launched], timeline.idle.ends[launched]
    launch, calls = timeline.ops.launch[op], trace.runtime_calls
    returned = calls.end_ns[launch]
    until, confidence = _held_until(timeline, edges)
    held = (until[op] >= 0) & (returned < end)
    return _Gaps(
        start_ns=start,
        end_ns=end,
        launch=launch,
        called_ns=calls.start_ns[launch],
        returned_ns=returned,
        thread=calls.thread[launch],
        held_until_ns=np.where(held, until[op], -1),
        confidence=np.where(held, confidence[op], EXACT),
    )


def _held_back(gaps: _Gaps, issued: I64, limit: int) -> tuple[IdleTime, IdleTime]:
    """Return the part of each gap after its op's launch: the wait for an event, and the rest.

    The op could not begin before the op that it waited for had ended; the rest is handover or latency.
    """
    free = np.where(gaps.held, np.clip(gaps.held_until_ns, issued, gaps.end_ns), issued)
    bound = gaps.held & (gaps.end_ns - free <= handover_ns(gaps.confidence))
    quick = gaps.end_ns - free < np.where(gaps.drained, limit, LAUNCH_LATENCY_NS)
    rest = np.where(quick, RANK[IdleCause.LAUNCH_LATENCY], RANK[IdleCause.UNKNOWN])
    waiting = IdleTime.filled(
        start_ns=issued,
        end_ns=free,
        cause=RANK[IdleCause.EVENT_WAIT],
        confidence=gaps.confidence,
        call=gaps.launch,
        host_ns=gaps.called_ns,
        thread=gaps.thread,
    )
    behind = IdleTime.filled(
        start_ns=free,
        end_ns=gaps.end_ns,
        cause=np.where(bound, RANK[IdleCause.EVENT_WAIT], rest),
        confidence=np.where(bound, gaps.confidence, EXACT),
        call=gaps.launch,
        host_ns=gaps.called_ns,
        thread=gaps.thread,
    )
    return waiting, behind


def _without_ops(trace: Trace, timeline: Timeline, blocking: Blocking, idle: IdleTime) -> IdleTime:
    """Return the idle time with missing-ops as the cause of time in which ops are missing."""
    missing = find_missing(trace, timeline, blocking)
    if not len(missing):
        return idle
    when = union(missing.start_ns, missing.end_ns)
    row, start, end = cut(idle.start_ns, idle.end_ns, complement(when, timeline.start_ns, timeline.end_ns))
    rest = idle.take(row)
    rest = replace(rest, start_ns=start, end_ns=end, host_ns=rest.host_ns + start - rest.start_ns)
    return IdleTime.in_order([rest, missing])


def _latency_limit(gaps: _Gaps) -> int:
    """Return the maximum latency of an op that found the device drained.

    It is `LAUNCH_LATENCY_NS`, unless the trace shows longer latencies: clocks agree to some 10 us only (kineto.md), and
    some drivers and graphs take longer. Ops launched after the device had become idle show it reliably. If there are
    too few of them, a latency that most gaps share shows it, because the latency of a queue would vary.
    """
    latency = gaps.latency_ns
    if int(gaps.drained.sum()) >= _ENOUGH:
        typical = int(np.median(latency[gaps.drained]))
    else:
        quick, middle = (0, 0) if gaps.held.all() else (quantile(latency[~gaps.held], share) for share in (0.1, 0.5))
        typical = int(middle) if middle - quick <= LAUNCH_LATENCY_NS else 0
    return LAUNCH_LATENCY_NS + min(max(typical - LAUNCH_LATENCY_NS // 2, 0), MOST_LATENCY_NS)


def _held_until(timeline: Timeline, edges: Edges) -> tuple[I64, I64]:
    """Return the end of the last op that each op waited for by event, -1 if there is none, and its confidence."""
    until = np.full(len(timeline.ops), -1, np.int64)
    confidence = np.full(len(timeline.ops), EXACT, np.int64)
    last = edges.take(np.argsort(edges.source_end_ns, kind="stable"))
    until[last.held] = last.source_end_ns
    confidence[last.held] = last.confidence
    return until, confidence


def _ops_ending(timeline: Timeline) -> I64:
    """Return the op with which each gap ends; among several that begin at once, the one launched first."""
    ops = timeline.ops
    order = np.lexsort((np.where(ops.launch >= 0, ops.launch, np.iinfo(np.int64).max), ops.start_ns))
    return order[np.searchsorted(ops.start_ns[order], timeline.idle.ends, side="left")]
