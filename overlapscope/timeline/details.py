"""Details of an op, event or piece of a lane, and figures of any span of a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from overlapscope.analysis.device import DeviceAnalysis, measure
from overlapscope.analysis.event_waits import EXACT, HIGH
from overlapscope.analysis.facts import period, sums
from overlapscope.analysis.figures import Period
from overlapscope.analysis.groups import sites_of_ops
from overlapscope.analysis.pieces import Pieces
from overlapscope.base.intervals import I64, Intervals
from overlapscope.base.words import bandwidth, clean, plural, share, size, unit_for
from overlapscope.catalog.causes import COMM_CAUSES, COPY_CAUSES, IDLE_CAUSES
from overlapscope.report.tables import overlap_lines
from overlapscope.timeline.lane import (
    CALLS,
    CATEGORIES,
    FIRST_EXPOSED_COPY,
    FIRST_IDLE,
    ID,
    Arrow,
    EventWait,
    Lanes,
    TimelineLane,
    arrows_of_calls,
    arrows_of_gpu_op,
    arrows_of_waits,
    idle_caused,
    launched_by,
    rows_on,
    waits_of,
)
from overlapscope.trace.host import Where, sites
from overlapscope.trace.model import GpuOps, Kind, Memory, Sync, Trace

DetailRows = list[list[str]]
"""Pairs of a name and a value, both safe as plain text."""
Details = dict[str, Any]
"""`facts`, `arrows` and, for an exposed copy or collective, `causes` with their nanoseconds."""

REBUILT = "rests on an event edge that the trace does not state"
_ANNOTATIONS = (ID["step"], ID["range"])
_WAITS_LISTED = 3
"""Maximum number of an op's waits that are listed."""


def op(lanes: Lanes, lane_id: int, row: int) -> dict[str, Any]:
    """Return a row of a lane as JSON: `{"lane", "row", "start", "end", "title", "category"}` and its `Details`.

    Raises:
        KeyError: There is no such lane or row.
    """
    lane = lanes.lane(lane_id)
    if not 0 <= row < len(lane):
        raise KeyError(f"row {row} of lane {lane_id}")
    about = {"stream": _gpu_op, "overlap": _piece, "steps": _period, "ranges": _period, "host": _host_event}[lane.kind]
    return {"lane": lane.id, "row": row} | outline(lane, row) | about(lanes, lane, row)


def outline(lane: TimelineLane, row: int, most: int | None = None) -> dict[str, Any]:
    """Return start, end, category and title of a row as JSON; `most` limits the title's length."""
    return {
        "start": int(lane.start_ns[row]),
        "end": int(lane.end_ns[row]),
        "title": clean(lane.name(row), most),
        "category": CATEGORIES[lane.category[row]],
    }


# -- Device ----------------------------------------------------------------------------------------


def _gpu_op(lanes: Lanes, lane: TimelineLane, row: int) -> Details:
    """Return the details of a kernel, copy or memset."""
    analysis, ops, op = lanes.device(lane.device), lanes.analysis.trace.gpu_ops, int(lane.source[row])
    start, end, kind = int(ops.start_ns[op]), int(ops.end_ns[op]), ops.kind[op]
    facts: DetailRows = [
        ["start", instant(start - lanes.origin_ns)],
        ["duration", duration(end - start)],
        ["stream", f"{lane.label} of {lane.group}"],
        *_moved(ops, op),
        *_launch_facts(lanes, op),
    ]
    details: Details = {}
    if kind in (Kind.H2D, Kind.D2H, Kind.COMM):
        comm = kind == Kind.COMM
        pieces, named = (analysis.exposed_comm, COMM_CAUSES) if comm else (analysis.exposed, COPY_CAUSES)
        causes, confidence = _exposed_inside(pieces, named, start, end)
        facts += _hidden_and_exposed(sum(causes.values()), end - start)
        if causes:
            facts.append(["cause", by_cause(causes)])
            details["causes"] = causes
        if confidence < EXACT:
            facts.append(["confidence", REBUILT])
    elif kind == Kind.P2P:
        facts += _hidden_and_exposed(_inside(analysis.timeline.exposed_p2p, start, end), end - start)
    elif kind == Kind.COMPUTE:
        facts.append(["copies beside it", part_of(_inside(analysis.timeline.copy, start, end), end - start)])
    waits = waits_of(lanes, op=op)
    facts += _wait_facts(lanes, waits)
    return {"facts": facts, "arrows": arrows_of_gpu_op(lanes, op, waits)} | details


def _hidden_and_exposed(exposed: int, length: int) -> DetailRows:
    return [["hidden", part_of(length - exposed, length)], ["exposed", part_of(exposed, length)]]


def _moved(ops: GpuOps, row: int) -> DetailRows:
    """Return bytes, bandwidth and memory kinds of a memory operation."""
    facts: DetailRows = []
    moved, took = int(ops.bytes[row]), int(ops.end_ns[row] - ops.start_ns[row])
    if moved >= 0:
        facts.append(["bytes", f"{size(moved)} ({moved:,} B)" if moved >= 1_000 else size(moved)])
        if took:
            facts.append(["bandwidth", f"{bandwidth(moved / took)} GB/s"])
    source, target = Memory(int(ops.source_kind[row])), Memory(int(ops.target_kind[row]))
    if ops.kind[row] in (Kind.H2D, Kind.D2H):
        facts.append(["memory", f"{source.name.lower()} to {target.name.lower()}"])
    reads, writes = int(ops.source_device[row]), int(ops.target_device[row])
    if ops.kind[row] == Kind.P2P and min(reads, writes) >= 0:
        facts.append(["devices", f"{reads} to {writes}"])
    return facts


def _launch_facts(lanes: Lanes, row: int) -> DetailRows:
    """Return the call that launched an op, its time, and its place in the code."""
    trace, ops = lanes.analysis.trace, lanes.analysis.trace.gpu_ops
    calls, call = trace.runtime_calls, int(ops.launch[row])
    if call < 0:
        return [["launched by", "not recorded"]]
    called, thread = int(calls.start_ns[call]), int(calls.thread[call])
    delay = int(ops.start_ns[row]) - called
    when = f"{duration(abs(delay))} {'before it began' if delay >= 0 else 'after it began: the clocks disagree'}"
    return [
        ["launched by", f"{clean(calls.name(call))} on thread {thread}"],
        ["called", f"{when}, at {instant(called - lanes.origin_ns)}"],
        ["call took", duration(int(calls.end_ns[call]) - called)],
        *_site_facts(sites_of_ops(trace, ops.take(slice(row, row + 1))).site_at(trace, 0)),
    ]


def _piece(lanes: Lanes, lane: TimelineLane, row: int) -> Details:
    """Return the details of a piece of the device's window: its overlap, or why it is idle."""
    start, end, category = int(lane.start_ns[row]), int(lane.end_ns[row]), int(lane.category[row])
    facts: DetailRows = [["start", instant(start)], ["duration", duration(end - start)]]
    if category < FIRST_EXPOSED_COPY:
        return {"facts": facts, "arrows": []}
    about = _idle_piece if category >= FIRST_IDLE else _exposed_piece
    more, arrows, confidence = about(lanes, lanes.device(lane.device), start + lanes.origin_ns)
    doubt = [["confidence", REBUILT]] if confidence < EXACT else []
    return {"facts": facts + more + doubt, "arrows": arrows}


def _idle_piece(lanes: Lanes, analysis: DeviceAnalysis, at: int) -> tuple[DetailRows, list[Arrow], int]:
    """Return facts, arrows and confidence of the piece of idle time that starts at an instant."""
    trace, idle, gaps = lanes.analysis.trace, analysis.idle, analysis.timeline.idle
    calls = trace.runtime_calls
    piece = int(idle.start_ns.searchsorted(at))
    call, thread = int(idle.call[piece]), int(idle.thread[piece])
    facts: DetailRows = [["cause", str(IDLE_CAUSES[idle.cause[piece]])]]
    arrows: list[Arrow] = []
    if call >= 0:
        facts.append(["call", f"{clean(calls.name(call))} on thread {thread}"])
        facts.append(["call took", duration(int(calls.end_ns[call] - calls.start_ns[call]))])
        arrows = arrows_of_calls(lanes, np.array([call]))
    if thread >= 0:
        facts += _code(trace, thread, int(idle.host_ns[piece]))
    gap = int(gaps.ends.searchsorted(at, side="right"))
    facts.append(["gap", f"{duration(int(gaps.ends[gap] - gaps.starts[gap]))} without any GPU op"])
    return facts, arrows, int(idle.confidence[piece])


def _exposed_piece(lanes: Lanes, analysis: DeviceAnalysis, at: int) -> tuple[DetailRows, list[Arrow], int]:
    """Return facts, arrows and confidence of the piece of exposed copy time that starts at an instant."""
    exposed, ops = analysis.exposed, lanes.analysis.trace.gpu_ops
    piece = int(exposed.start_ns.searchsorted(at))
    copy = int(rows_on(lanes, analysis.result.device)[exposed.op[piece]])
    waits = waits_of(lanes, op=copy)
    facts: DetailRows = [
        ["cause", str(COPY_CAUSES[exposed.cause[piece]])],
        ["copy", f"{clean(ops.name(copy))} on stream {int(ops.stream[copy])}"],
        *_moved(ops, copy),
        *_launch_facts(lanes, copy),
        *_wait_facts(lanes, waits),
    ]
    return facts, arrows_of_gpu_op(lanes, copy, waits), int(exposed.confidence[piece])


def _period(lanes: Lanes, lane: TimelineLane, row: int) -> Details:
    """Return a step or range on the device, with its figures."""
    start, end = int(lane.start_ns[row]), int(lane.end_ns[row])
    figures = span(lanes, lane.device, start, end)
    facts: DetailRows = [
        ["start", instant(start)],
        ["duration", duration(end - start)],
        *map(list, overlap_lines(figures, unit_for(end - start))),
        *([word, part_of(ns, figures.span_ns)] for word, ns in figures.partition.items() if ns),
    ]
    for word, causes in (
        ("exposed by cause", figures.exposed_copy_by_cause),
        ("exposed comm by cause", figures.exposed_comm_by_cause),
        ("other memory work by kind", figures.exposed_other_by_cause),
        ("idle by cause", figures.idle_by_cause),
    ):
        if any(causes.values()):
            facts.append([word, by_cause({cause: ns for cause, ns in causes.items() if ns})])
    return {"facts": facts, "arrows": []}


# -- Host ------------------------------------------------------------------------------------------


def _host_event(lanes: Lanes, lane: TimelineLane, row: int) -> Details:
    """Return the details of a runtime call, CPU op, annotation, or of the profiler's own time."""
    trace, category = lanes.analysis.trace, int(lane.category[row])
    start, end = int(lane.start_ns[row]), int(lane.end_ns[row])
    thread = -1 if lane.thread is None else lane.thread
    facts: DetailRows = [["start", instant(start)], ["duration", duration(end - start)], ["thread", lane.group]]
    waits: list[EventWait] = []
    if category in CALLS:
        call = int(lane.source[row])
        calls = np.array([call], np.int64)
        if category == ID["blocking-call"]:
            facts += [["host waited", duration(end - start)], ["idle caused", duration(int(idle_caused(lanes)[call]))]]
        facts += _code(trace, thread, start + lanes.origin_ns)
        waits = waits_of(lanes, call=call)
        facts += _wait_facts(lanes, waits)
        sync = _sync_of(trace, call)
        if not waits and sync >= 0:
            held = f"stream {int(trace.syncs.stream[sync])} waits, but no op is known to have been held back"
            facts.append(["event", f"{_event(trace, sync)}{held}"])
    else:
        called_ns = trace.runtime_calls.start_ns
        calls = np.arange(*(int(called_ns.searchsorted(at + lanes.origin_ns)) for at in (start, end)))
        if category not in _ANNOTATIONS:
            # Any thread may launch ops of a step or range, as autograd's threads do, but not those of another event.
            calls = calls[trace.runtime_calls.thread[calls] == thread]
        if category == ID["cpu-op"]:
            facts += [fact for fact in _code(trace, thread, start + lanes.origin_ns) if fact[0] == "line"]
    facts += _launched(lanes, calls)
    # A range launches thousands of ops, too many for arrows.
    launches = arrows_of_calls(lanes, calls) if category in CALLS or category == ID["cpu-op"] else []
    return {"facts": facts, "arrows": launches + arrows_of_waits(lanes, waits)}


def _launched(lanes: Lanes, calls: I64) -> DetailRows:
    """Return the ops that calls launched on any device: a single op by name, several by their time."""
    ops, rows = lanes.analysis.trace.gpu_ops, launched_by(lanes, calls)
    if not len(rows):
        return []
    took = duration(int((ops.end_ns[rows] - ops.start_ns[rows]).sum()))
    many = f"{plural(len(rows), 'GPU op')}, {took} of GPU time"
    return [["launched", many if len(rows) > 1 else f"{clean(ops.name(int(rows[0])))}, {took}"]]


# -- Event waits -----------------------------------------------------------------------------------


def _wait_facts(lanes: Lanes, waits: list[EventWait]) -> DetailRows:
    """Return, for each wait, the event, the streams it orders, and whether the trace states the order."""
    facts = [["event", _wait_text(lanes, wait)] for wait in waits[:_WAITS_LISTED]]
    if len(waits) > _WAITS_LISTED:
        facts.append(["more events", f"{len(waits) - _WAITS_LISTED:,}"])
    return facts


def _wait_text(lanes: Lanes, wait: EventWait) -> str:
    trace, ops = lanes.analysis.trace, lanes.analysis.trace.gpu_ops
    waiting, waited_for = (f"stream {ops.stream[op]}" for op in (wait.held, wait.source_op))
    if ops.device[wait.held] != ops.device[wait.source_op]:
        waiting += f" of device {ops.device[wait.held]}"
        waited_for += f" of device {ops.device[wait.source_op]}"
    rebuilt = f"rebuilt, {'high' if wait.confidence == HIGH else 'low'} confidence"
    parts = [
        f"{_event(trace, _sync_of(trace, wait.wait))}{waiting} waits for {waited_for}",
        "exact" if wait.confidence == EXACT else rebuilt,
        *(["its record call is not known"] if wait.record < 0 else []),
    ]
    return "; ".join(parts)


def _event(trace: Trace, sync: int) -> str:
    """Return the event's number for the start of a sentence."""
    event = int(trace.syncs.event[sync]) if sync >= 0 else -1
    return f"{event}: " if event >= 0 else ""


def _sync_of(trace: Trace, call: int) -> int:
    """Return the row of a wait call's sync record, -1 without a record."""
    correlation = int(trace.runtime_calls.correlation[call])
    records = (trace.syncs.correlation == correlation) & (trace.syncs.kind == Sync.STREAM_WAIT_EVENT)
    return int(np.argmax(records)) if correlation > 0 and records.any() else -1


# -- Helpers ---------------------------------------------------------------------------------------


def duration(ns: int) -> str:
    """Return a length with three digits."""
    return f"{ns:,} ns" if abs(ns) < 1_000 else unit_for(abs(ns)).text(ns)


def instant(ns: int) -> str:
    """Return a time from the origin, exact to the nanosecond."""
    return f"{ns / 1e6:,.6f} ms" if abs(ns) < 1 << 52 else f"{ns:,} ns"


def part_of(part: int, whole: int) -> str:
    """Return a length and its share of the whole."""
    return f"{duration(part)} ({share(part, whole)})"


def by_cause(causes: dict[str, int]) -> str:
    """Return `same-stream 1.2 ms, no-compute 0.3 ms`, longest first."""
    return ", ".join(f"{cause} {duration(ns)}" for cause, ns in sorted(causes.items(), key=lambda pair: -pair[1]))


def _code(trace: Trace, thread: int, at_ns: int) -> DetailRows:
    """Return the innermost CPU op and the Python line around an instant of a thread."""
    found = sites(trace, np.array([-1]), np.array([thread], np.int64), np.array([at_ns], np.int64))
    return _site_facts(found.site_at(trace, 0))


def _site_facts(site: Where) -> DetailRows:
    return [[word, clean(text)] for word, text in (("CPU op", site.op), ("line", site.line)) if text is not None]


def _touching(starts: I64, ends: I64, start_ns: int, end_ns: int) -> slice:
    """Return those of some sorted, disjoint intervals that reach into a span."""
    return slice(int(ends.searchsorted(start_ns, side="right")), int(starts.searchsorted(end_ns, side="left")))


def _inside(a: Intervals, start_ns: int, end_ns: int) -> int:
    """Return the length of a set within a span, in time proportional to the intervals there."""
    rows = _touching(a.starts, a.ends, start_ns, end_ns)
    return int((np.minimum(a.ends[rows], end_ns) - np.maximum(a.starts[rows], start_ns)).sum())


def _exposed_inside(
    exposed: Pieces, all_causes: Sequence[str], start_ns: int, end_ns: int
) -> tuple[dict[str, int], int]:
    """Return the exposed time of a span by cause, and the lowest confidence."""
    rows = _touching(exposed.start_ns, exposed.end_ns, start_ns, end_ns)
    ns = np.zeros(len(all_causes), np.int64)
    lengths = np.minimum(exposed.end_ns[rows], end_ns) - np.maximum(exposed.start_ns[rows], start_ns)
    np.add.at(ns, exposed.cause[rows], lengths)
    causes = {str(cause): int(length) for cause, length in zip(all_causes, ns, strict=True) if length}
    return causes, int(exposed.confidence[rows].min(initial=np.iinfo(np.int8).max))


# -- Figures of any span ---------------------------------------------------------------------------


def span(lanes: Lanes, device: int | None, start_ns: int, end_ns: int) -> Period:
    """Return exact buckets, engines, overlap and causes of a span, cut off at the device's window.

    The given times are relative to the origin of the lanes. The window of the result is absolute, as in a report.

    Raises:
        KeyError: The trace has no such device.
    """
    analysis = lanes.device(device)
    first, last = analysis.timeline.start_ns, analysis.timeline.end_ns
    start = min(max(start_ns + lanes.origin_ns, first), last)
    end = min(max(end_ns + lanes.origin_ns, start), last)
    (facts,) = measure(analysis, [Intervals(np.array([start]), np.array([end]))])
    return period("", start, end, sums(facts))
