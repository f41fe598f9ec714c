"""What is known of an event on a host thread."""

from __future__ import annotations

from typing import Any

import numpy as np

from overlapscope.base.words import clean, plural
from overlapscope.timeline import arrows, places, waits
from overlapscope.timeline.categories import ID
from overlapscope.timeline.facts import Facts, code, duration, instant
from overlapscope.timeline.lane import Lane, Lanes, idle_caused
from overlapscope.trace.model import I64

_CALLS = (ID["blocking-call"], ID["runtime-call"])
_ANNOTATIONS = (ID["step"], ID["range"])


def of_event(lanes: Lanes, lane: Lane, row: int) -> dict[str, Any]:
    """A runtime call, CPU op, annotation, or the profiler's own time."""
    trace, category = lanes.analysis.trace, int(lane.category[row])
    start, end = int(lane.start_ns[row]), int(lane.end_ns[row])
    thread = -1 if lane.thread is None else lane.thread
    facts: Facts = [["start", instant(start)], ["duration", duration(end - start)], ["thread", lane.group]]
    events: list[waits.EventWait] = []
    if category in _CALLS:
        calls = np.array([lane.source[row]], np.int64)
        caused = int(idle_caused(lanes)[calls[0]])
        if category == ID["blocking-call"]:
            facts += [["host waited", duration(end - start)], ["idle caused", duration(caused)]]
        facts += code(trace, thread, start + lanes.origin_ns)
        events = waits.of_call(lanes, int(calls[0]))
        facts += waits.facts(lanes, events) or waits.facts_of_idle_wait(lanes, int(calls[0]))
    else:
        # What belongs to a step or range may be launched by any thread, as autograd does.
        own = None if category in _ANNOTATIONS else thread
        calls = _calls_inside(lanes, own, start + lanes.origin_ns, end + lanes.origin_ns)
        if category == ID["cpu-op"]:
            facts += [fact for fact in code(trace, thread, start + lanes.origin_ns) if fact[0] == "line"]
    launched = [places.launched_by(one.timeline.ops, calls) for one in lanes.analysis.devices]
    count = sum(len(rows) for rows in launched)
    if count:
        facts.append(["launched", _what(lanes, launched, count)])
    # A range launches thousands; their arrows would say nothing.
    drawn = category in _CALLS or category == ID["cpu-op"]
    found = arrows.of_calls(lanes, calls) if drawn else []
    return {"facts": facts, "arrows": found + arrows.of_waits(lanes, events)}


def _calls_inside(lanes: Lanes, thread: int | None, start_ns: int, end_ns: int) -> I64:
    """Runtime calls that a thread, or any, began in a span."""
    calls = lanes.analysis.trace.runtime_calls
    first, last = (int(calls.start_ns.searchsorted(at)) for at in (start_ns, end_ns))
    if thread is None:
        return np.arange(first, last)
    return first + np.flatnonzero(calls.thread[first:last] == thread)


def _what(lanes: Lanes, launched: list[I64], count: int) -> str:
    """The ops launched, on whatever device: the name of one, the time of many."""
    parts = [(one.timeline.ops, rows) for one, rows in zip(lanes.analysis.devices, launched, strict=True) if len(rows)]
    took = sum(int((ops.end_ns[rows] - ops.start_ns[rows]).sum()) for ops, rows in parts)
    if count > 1:
        return f"{plural(count, 'GPU op')}, {duration(took)} of GPU time"
    ops, rows = parts[0]
    return f"{clean(ops.name(int(rows[0])))}, {duration(took)}"
