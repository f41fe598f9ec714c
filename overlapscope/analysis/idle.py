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
from overlapscope.base.columns import pick, quantile
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


def attribute(trace: Trace, timeline: Timeline, edges: Edges, blocking: Blocking) -> IdleTime:
    """Return the causes of a device's idle time."""
    start, end = timeline.idle
    judged = np.clip(timeline.judged_from_ns, start, end)
    # Among several ops that begin at once, a gap ends with the one launched first.
    ops = timeline.ops
    order = np.lexsort((np.where(ops.launch >= 0, ops.launch, np.iinfo(np.int64).max), ops.start_ns))
    op = order[np.searchsorted(ops.start_ns[order], end, side="left")]
    nameless = ops.launch[op] < 0
    # Between two pages that the host touches it does work of its own, which no call shows.
    touched = nameless & ops.named(is_migration_to_host)[op]
    called = union(trace.runtime_calls.start_ns, trace.runtime_calls.end_ns)
    touching = cut(judged[touched], end[touched], complement(called, timeline.start_ns, timeline.end_ns))
    calling = cut(judged[touched], end[touched], called)
    nameless &= ~touched
    inside = _inside_graphs(trace, timeline, op)
    launched = ~inside & (ops.launch[op] >= 0)

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
            *_after_launches(trace, timeline, edges, blocking, op[launched], judged[launched], end[launched]),
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


def _after_launches(
    trace: Trace, timeline: Timeline, edges: Edges, blocking: Blocking, op: I64, start: I64, end: I64
) -> list[IdleTime]:
    """Return the causes of gaps, given by starts and ends, that end with ops whose launch was recorded.

    Before the op was issued, the host was responsible, and after that the device: the op could not begin before the op
    that it waited for by event had ended, and the rest is handover or latency.
    """
    calls, launch = trace.runtime_calls, timeline.ops.launch[op]
    called, returned = calls.start_ns[launch], calls.end_ns[launch]
    edge = edges.last_to_end(len(timeline.ops))[op]
    # An op that was launched too late did not wait.
    held = (edge >= 0) & (returned < end)
    until, confidence = pick(edges.source_end_ns, edge), np.where(held, pick(edges.confidence, edge), EXACT)
    drained, latency = ~held & (called >= start), np.maximum(end - returned, 0)
    limit = _latency_limit(latency, held, drained)
    in_time = (latency <= limit) & ~(held & (until > start))
    issued = np.where(in_time, end, np.clip(returned, start, end))
    shift = np.where(in_time, latency, 0)
    late = Late(start - shift, issued - shift, shift, launch).take(issued > start)
    free = np.where(held, np.clip(until, issued, end), issued)
    bound = held & (end - free <= handover_ns(confidence))
    quick = end - free < np.where(drained, limit, LAUNCH_LATENCY_NS)
    rest = np.where(quick, RANK[IdleCause.LAUNCH_LATENCY], RANK[IdleCause.UNKNOWN])
    waiting = IdleTime.filled(
        start_ns=issued,
        end_ns=free,
        cause=RANK[IdleCause.EVENT_WAIT],
        confidence=confidence,
        call=launch,
        host_ns=called,
        thread=calls.thread[launch],
    )
    cause = np.where(bound, RANK[IdleCause.EVENT_WAIT], rest).astype(np.int8)
    confidence = np.where(bound, confidence, EXACT).astype(np.int8)
    behind = replace(waiting, start_ns=free, end_ns=end, cause=cause, confidence=confidence)
    return [waiting, behind, attribute_host(trace, timeline, blocking, late)]


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


def _latency_limit(latency: I64, held: Bool, drained: Bool) -> int:
    """Return the maximum latency of an op that found the device drained.

    It is `LAUNCH_LATENCY_NS`, unless the trace shows longer latencies: clocks agree to some 10 us only (kineto.md), and
    some drivers and graphs take longer. Ops launched after the device had become idle show it reliably. If there are
    too few of them, a latency that most gaps share shows it, because the latency of a queue would vary.

    Args:
        latency: Time from the end of each launch to its op's start.
        held: Ops that an event held back.
        drained: Ops that were launched onto an idle device, and that nothing held.
    """
    if int(drained.sum()) >= _ENOUGH:
        typical = int(np.median(latency[drained]))
    else:
        quick, middle = (0, 0) if held.all() else (quantile(latency[~held], share) for share in (0.1, 0.5))
        typical = int(middle) if middle - quick <= LAUNCH_LATENCY_NS else 0
    return LAUNCH_LATENCY_NS + min(max(typical - LAUNCH_LATENCY_NS // 2, 0), MOST_LATENCY_NS)
