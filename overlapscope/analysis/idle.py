"""Why the GPU was idle: every nanosecond of every gap to exactly one cause.

A gap ends when an op begins. If that op began as soon after its launch call's end as ops do on a drained device, the
host was late, and the gap is the image of what the host did until that call returned, shifted by the latency
(`late_launch`). If the op had been launched earlier, the device held it back: by an event wait, or by its own latency.
Where the host waited for ops that are not in the trace, neither is known.
"""

from __future__ import annotations

import numpy as np

from overlapscope.analysis.calls import launching
from overlapscope.analysis.edges import EXACT, Edges, handover_ns
from overlapscope.analysis.host import Blocking
from overlapscope.analysis.late_launch import IdleTime, Late, attribute_host, joined, table
from overlapscope.analysis.missing_ops import find_missing
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import pick
from overlapscope.base.intervals import I64, Bool, complement, cut
from overlapscope.catalog.causes import IDLE_RANK as RANK
from overlapscope.catalog.causes import IdleCause
from overlapscope.trace.model import Trace

LAUNCH_LATENCY_NS = 10_000
"""From a launch call's end to its op's start on a drained device, at most, unless the trace shows longer ones."""

_MOST_LATENCY_NS = 100_000
_ENOUGH = 3


def attribute(trace: Trace, timeline: Timeline, edges: Edges, blocking: Blocking) -> IdleTime:
    """The causes of a device's idle time."""
    ops, calls, judged = timeline.ops, trace.runtime_calls, timeline.judged_from_ns
    gap_start, end = timeline.idle
    start = np.minimum(np.maximum(judged, gap_start), end)
    op = _ops_ending(timeline)
    launch = ops.launch[op]
    known = launch >= 0
    called = np.where(known, pick(calls.start_ns, launch, 0), end)
    returned = np.where(known, pick(calls.end_ns, launch, 0), end)
    thread = pick(calls.thread, launch)
    until, confidence = _held_until(timeline, edges)
    held = known & (until[op] >= 0) & (returned < end)

    drained = known & ~held & (called >= start)
    latency = np.maximum(end - returned, 0)
    limit = _latency_limit(latency, drained, known & ~held)
    in_time = known & (latency <= limit) & ~(held & (until[op] > start))
    # The part before the op was issued is the host's, the part after it the device's.
    issued = np.where(in_time, end, np.clip(returned, start, end))
    launches = launching(trace)
    shift = np.where(in_time, latency, 0)
    late = np.flatnonzero(known & (issued > start))
    host = attribute_host(
        trace,
        timeline,
        blocking,
        launches,
        Late((start - shift)[late], (issued - shift)[late], shift[late], launch[late]),
    )

    # Until what it waited for had ended the op could not begin; the rest is handover or latency.
    free = np.where(held, np.clip(until[op], issued, end), issued)
    bound = held & (end - free <= handover_ns(confidence[op]))
    quick = end - free < np.where(drained, limit, LAUNCH_LATENCY_NS)
    after = np.where(
        bound,
        RANK[IdleCause.EVENT_WAIT],
        np.where(quick, RANK[IdleCause.LAUNCH_LATENCY], RANK[IdleCause.UNKNOWN]),
    )
    none = np.full(len(op), -1, np.int64)
    exact = np.full(len(op), EXACT, np.int64)
    sure = np.where(held, confidence[op], EXACT)
    waiting = np.full(len(op), RANK[IdleCause.EVENT_WAIT])
    lead_in = np.full(len(op), RANK[IdleCause.LEAD_IN])
    unknown = np.full(len(op), RANK[IdleCause.UNKNOWN])
    found = joined(
        [
            table(gap_start, start, lead_in, none, gap_start, none, exact),
            table(start, np.where(known, start, end), unknown, none, start, none, exact),
            table(issued, np.where(known, free, issued), waiting, launch, called, thread, sure),
            table(free, np.where(known, end, free), after, launch, called, thread, np.where(bound, sure, EXACT)),
            host,
        ]
    )
    return _without_ops(trace, timeline, blocking, found)


def _without_ops(trace: Trace, timeline: Timeline, blocking: Blocking, idle: IdleTime) -> IdleTime:
    """The idle time with that in which ops are missing taken from whatever it was put down to."""
    missing = find_missing(trace, timeline, blocking)
    if not len(missing.call):
        return idle
    row, start, end = cut(idle.start_ns, idle.end_ns, complement(missing.when, timeline.start_ns, timeline.end_ns))
    host = idle.host_ns[row] + start - idle.start_ns[row]
    begin, stop = missing.when
    cause, exact = np.full(len(begin), RANK[IdleCause.MISSING_OPS]), np.full(len(begin), EXACT, np.int64)
    known, sure = idle.cause[row].astype(np.int64), idle.confidence[row].astype(np.int64)
    return joined(
        [
            table(start, end, known, idle.call[row], host, idle.thread[row], sure),
            table(begin, stop, cause, missing.call, begin, trace.runtime_calls.thread[missing.call], exact),
        ]
    )


def _latency_limit(latency: I64, drained: Bool, candidates: Bool) -> int:
    """How long after its call's end an op may begin and still have found the device drained.

    `LAUNCH_LATENCY_NS`, unless the trace shows longer ones: clocks are matched to some 10 us only (kineto.md), and
    some drivers and graphs take longer. Ops that were called after the device had become idle show it for certain;
    where there are too few of those, a latency that most gaps share shows it: a queue's would vary.
    """
    if int(drained.sum()) >= _ENOUGH:
        typical = int(np.median(latency[drained]))
    else:
        quick, middle = np.quantile(latency[candidates], (0.1, 0.5)) if candidates.any() else (0, 0)
        typical = int(middle) if middle - quick <= LAUNCH_LATENCY_NS else 0
    return LAUNCH_LATENCY_NS + min(max(typical - LAUNCH_LATENCY_NS // 2, 0), _MOST_LATENCY_NS)


def _held_until(timeline: Timeline, edges: Edges) -> tuple[I64, I64]:
    """For each op when the last op it waited for by event had ended, -1 if it waited for none; and how sure that is."""
    until = np.full(len(timeline.ops), -1, np.int64)
    confidence = np.full(len(timeline.ops), EXACT, np.int64)
    last = edges.take(np.argsort(edges.source_end_ns, kind="stable"))
    until[last.held] = last.source_end_ns
    confidence[last.held] = last.confidence
    return until, confidence


def _ops_ending(timeline: Timeline) -> I64:
    """The op with which each gap ends: of several that begin at once, the first launched."""
    ops = timeline.ops
    order = np.lexsort((np.where(ops.launch >= 0, ops.launch, np.iinfo(np.int64).max), ops.start_ns))
    return order[np.searchsorted(ops.start_ns[order], timeline.idle.ends, side="left")]
