"""What is known of a GPU op, of a piece of an overlap lane, of a step or range on the device."""

from __future__ import annotations

from typing import Any

import numpy as np

from overlapscope.analysis.edges import EXACT
from overlapscope.analysis.results import efficiency_shown, hidden_copy_shown, partition
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.words import bandwidth, clean, percent, size
from overlapscope.catalog.causes import COPY_CAUSES, IDLE_CAUSES
from overlapscope.timeline import arrows, waits
from overlapscope.timeline.categories import FIRST_EXPOSED_COPY, FIRST_IDLE
from overlapscope.timeline.facts import Facts, by_cause, code, duration, exposed_inside, inside, instant, part_of
from overlapscope.timeline.lane import Lane, Lanes
from overlapscope.timeline.span import span
from overlapscope.trace.model import Kind, Memory

Details = dict[str, Any]

REBUILT = "rests on an event edge that the trace does not state"


def of_op(lanes: Lanes, lane: Lane, row: int) -> Details:
    """A kernel, copy or memset."""
    device = _device(lane)
    analysis = lanes.device(device)
    timeline, mine = analysis.timeline, int(lane.source[row])
    ops = timeline.ops
    start, end = int(ops.start_ns[mine]), int(ops.end_ns[mine])
    facts: Facts = [
        ["start", instant(start - lanes.origin_ns)],
        ["duration", duration(end - start)],
        ["stream", f"{lane.label} of {lane.group}"],
        *_moved(timeline, mine),
        *launch_facts(lanes, device, mine),
    ]
    details: Details = {}
    if ops.kind[mine] in (Kind.H2D, Kind.D2H):
        causes, confidence = exposed_inside(analysis.exposed, start, end)
        exposed = sum(causes.values())
        facts += [["hidden", part_of(end - start - exposed, end - start)], ["exposed", part_of(exposed, end - start)]]
        if causes:
            facts.append(["cause", by_cause(causes)])
            details["causes"] = causes
        if confidence < EXACT:
            facts.append(["confidence", REBUILT])
    elif ops.kind[mine] == Kind.COMM:
        exposed = inside(timeline.exposed_comm, start, end)
        facts += [["hidden", part_of(end - start - exposed, end - start)], ["exposed", part_of(exposed, end - start)]]
    elif ops.kind[mine] == Kind.COMPUTE:
        facts.append(["copies beside it", part_of(inside(timeline.copy, start, end), end - start)])
    events = waits.of_gpu_op(lanes, device, mine)
    facts += waits.facts(lanes, events)
    return {"facts": facts, "arrows": arrows.of_gpu_op(lanes, device, mine, events)} | details


def _moved(timeline: Timeline, row: int) -> Facts:
    """Bytes, bandwidth and kinds of memory of a memory operation."""
    ops = timeline.ops
    facts: Facts = []
    moved, took = int(ops.bytes[row]), int(ops.end_ns[row] - ops.start_ns[row])
    if moved >= 0:
        facts.append(["bytes", f"{size(moved)} ({moved:,} B)" if moved >= 1_000 else size(moved)])
        if took:
            facts.append(["bandwidth", f"{bandwidth(moved / took)} GB/s"])
    source, target = Memory(int(ops.source_kind[row])), Memory(int(ops.target_kind[row]))
    if ops.kind[row] in (Kind.H2D, Kind.D2H):
        facts.append(["memory", f"{source.name.lower()} to {target.name.lower()}"])
    return facts


def launch_facts(lanes: Lanes, device: int, row: int) -> Facts:
    """Which call launched an op, when, and from where in the code."""
    trace, ops = lanes.analysis.trace, lanes.device(device).timeline.ops
    calls, call = trace.runtime_calls, int(ops.launch[row])
    if call < 0:
        return [["launched by", "not recorded"]]
    called, returned = int(calls.start_ns[call]), int(calls.end_ns[call])
    delay = int(ops.start_ns[row]) - called
    when = f"{duration(abs(delay))} {'before it began' if delay >= 0 else 'after it began: the clocks disagree'}"
    thread = int(calls.thread[call])
    return [
        ["launched by", f"{clean(calls.name(call))} on thread {thread}"],
        ["called", f"{when}, at {instant(called - lanes.origin_ns)}"],
        ["call took", duration(returned - called)],
        *code(trace, thread, called),
    ]


def of_piece(lanes: Lanes, lane: Lane, row: int) -> Details:
    """A piece of the device's window: what was overlapped in it, or why nothing was."""
    device, trace = _device(lane), lanes.analysis.trace
    analysis, category = lanes.device(device), int(lane.category[row])
    start, end = int(lane.start_ns[row]), int(lane.end_ns[row])
    at = start + lanes.origin_ns
    facts: Facts = [["start", instant(start)], ["duration", duration(end - start)]]
    found: list[arrows.Arrow] = []
    if category >= FIRST_IDLE:
        idle = analysis.idle
        piece = int(idle.start_ns.searchsorted(at))
        facts.append(["cause", str(IDLE_CAUSES[idle.cause[piece]])])
        call, thread = int(idle.call[piece]), int(idle.thread[piece])
        if call >= 0:
            facts.append(["call", f"{clean(trace.runtime_calls.name(call))} on thread {thread}"])
            facts.append(
                ["call took", duration(int(trace.runtime_calls.end_ns[call] - trace.runtime_calls.start_ns[call]))]
            )
            found = arrows.of_calls(lanes, np.array([call]))
        if thread >= 0:
            facts += code(trace, thread, int(idle.host_ns[piece]))
        sure = int(idle.confidence[piece])
        gap = int(analysis.timeline.idle.ends.searchsorted(at, side="right"))
        whole = analysis.timeline.idle
        facts.append(["gap", f"{duration(int(whole.ends[gap] - whole.starts[gap]))} without any GPU op"])
    elif category >= FIRST_EXPOSED_COPY:
        exposed = analysis.exposed
        piece = int(exposed.start_ns.searchsorted(at))
        copy = int(exposed.copy[piece])
        facts += [
            ["cause", str(COPY_CAUSES[exposed.cause[piece]])],
            ["copy", f"{clean(analysis.timeline.ops.name(copy))} on stream {int(analysis.timeline.ops.stream[copy])}"],
            *_moved(analysis.timeline, copy),
            *launch_facts(lanes, device, copy),
        ]
        events = waits.of_gpu_op(lanes, device, copy)
        facts += waits.facts(lanes, events)
        found = arrows.of_gpu_op(lanes, device, copy, events)
        sure = int(exposed.confidence[piece])
    else:
        return {"facts": facts, "arrows": []}
    if sure < EXACT:
        facts.append(["confidence", REBUILT])
    return {"facts": facts, "arrows": found}


def of_period(lanes: Lanes, lane: Lane, row: int) -> Details:
    """A step or range on the device, with its figures."""
    start, end = int(lane.start_ns[row]), int(lane.end_ns[row])
    figures = span(lanes, _device(lane), start, end)
    facts: Facts = [
        ["start", instant(start)],
        ["duration", duration(end - start)],
        ["overlap efficiency", percent(efficiency_shown(figures))],
        ["hidden copy", percent(hidden_copy_shown(figures))],
        *([word, part_of(ns, figures.span_ns)] for word, ns in partition(figures).items() if ns),
    ]
    for word, causes in (("exposed by cause", figures.exposed_copy_by_cause), ("idle by cause", figures.idle_by_cause)):
        if any(causes.values()):
            facts.append([word, by_cause({cause: ns for cause, ns in causes.items() if ns})])
    return {"facts": facts, "arrows": []}


def _device(lane: Lane) -> int:
    if lane.device is None:
        raise KeyError(f"lane {lane.id} is of no device")
    return lane.device
