"""Lanes of an analyzed trace.

Each device has lanes for its overlap, steps, ranges and streams; each host thread has a row for each depth of nesting.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis import TraceAnalysis
from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.host import find_blocking, own_pieces, rows_of
from overlapscope.analysis.periods import Periods, is_step
from overlapscope.base.columns import U8
from overlapscope.base.grouping import distinct, rows_by
from overlapscope.base.intervals import subtract
from overlapscope.base.memory import release_free_memory
from overlapscope.timeline.lane import (
    FIRST_EXPOSED_COPY,
    FIRST_IDLE,
    ID,
    LABELS,
    Lanes,
    TimelineLane,
    of_gpu_ops,
    prepared,
)
from overlapscope.trace.model import I8, I64, HostEvents, Index, Trace


def build(analysis: TraceAnalysis) -> Lanes:
    """Return the lanes of every device, then those of every host thread."""
    trace = analysis.trace
    origin, end = bounds(trace)
    lanes = [lane for device in analysis.devices for lane in _device_lanes(trace, device, origin)]

    def of_hosts() -> list[TimelineLane]:
        numbered = enumerate(_host_lanes(trace, origin, end), len(lanes))
        made = [replace(lane, id=number) for number, lane in numbered]
        release_free_memory()
        return made

    return Lanes(
        origin_ns=origin,
        start_ns=0,
        end_ns=end - origin,
        of_devices=tuple(replace(lane, id=number) for number, lane in enumerate(lanes)),
        make_others=of_hosts,
        analysis=analysis,
    )


def bounds(trace: Trace) -> tuple[int, int]:
    """Return the start of the first event that is drawn, and the end of the last."""
    tables = (trace.gpu_ops, trace.runtime_calls, trace.cpu_ops, trace.annotations, trace.overheads)
    drawn = [table for table in tables if len(table)]
    # Tables are sorted by start.
    origin = min((int(table.start_ns[0]) for table in drawn), default=0)
    return origin, max((int(table.end_ns.max()) for table in drawn), default=origin)


def _device_lanes(trace: Trace, analysis: DeviceAnalysis, origin_ns: int) -> list[TimelineLane]:
    """Return lanes in drawing order: overlap, steps, ranges by depth, streams with the main stream first."""
    steps, ranges = analysis.steps, analysis.ranges
    depth = first_free(ranges.start_ns, ranges.end_ns)
    return [
        _overlap(analysis, origin_ns),
        *_periods(trace, analysis, origin_ns, steps, np.zeros(len(steps.row), np.int8)),
        *_periods(trace, analysis, origin_ns, ranges, depth),
        *_streams(trace, analysis, origin_ns),
    ]


def _group(analysis: DeviceAnalysis) -> str:
    return f"device {analysis.result.device}" if analysis.result.device >= 0 else "device"


def _overlap(analysis: DeviceAnalysis, origin_ns: int) -> TimelineLane:
    """Return the device's window, cut into pieces that state what overlapped at every instant.

    Compute without a copy beside it is `compute`, a copy beside a kernel `hidden-copy`, communication with neither
    compute nor a copy beside it `exposed-comm`. With each word standing for the length of its pieces:

        compute + hidden-copy + exposed-comm = compute_ns + exposed_comm_ns
        hidden-copy = hidden_copy_ns;  exposed-copy:* = exposed_copy_ns, cause by cause
        exposed-other = exposed_other_ns;  idle:* = idle_ns, cause by cause
        all together = span_ns
    """
    t, exposed, idle = analysis.timeline, analysis.exposed, analysis.idle
    parts: list[tuple[I64, int | U8]] = [
        (subtract(t.compute, t.copy).starts if len(t.copy.starts) else t.compute.starts, ID["compute"]),
        (subtract(t.copy, t.exposed_copy).starts, ID["hidden-copy"]),
        (subtract(t.exposed_comm, t.copy).starts, ID["exposed-comm"]),
        (t.exposed_other.starts, ID["exposed-other"]),
        (exposed.start_ns, (exposed.cause + FIRST_EXPOSED_COPY).astype(np.uint8)),
        (idle.start_ns, (idle.cause + FIRST_IDLE).astype(np.uint8)),
    ]
    starts = np.concatenate([start for start, _ in parts])
    category = np.concatenate([np.broadcast_to(np.asarray(c, np.uint8), start.shape) for start, c in parts])
    order = np.argsort(starts, kind="stable")
    # Each piece ends where the next begins.
    bounds = np.append(starts[order], t.end_ns) - origin_ns
    category = category[order]
    return prepared(
        group=_group(analysis),
        label="overlap",
        kind="overlap",
        device=analysis.result.device,
        start_ns=bounds[:-1],
        end_ns=bounds[1:],
        category=category,
        source=np.broadcast_to(np.int32(-1), order.shape),
        names=LABELS,
        name_id=category,
    )


def _periods(trace: Trace, analysis: DeviceAnalysis, origin_ns: int, periods: Periods, depth: I8) -> list[TimelineLane]:
    """Return a lane for each depth of steps or ranges."""
    steps = periods is analysis.steps
    lanes = []
    for level, rows in rows_by(depth):
        lanes.append(
            prepared(
                group=_group(analysis),
                label="steps" if steps else "ranges",
                kind="steps" if steps else "ranges",
                depth=level,
                device=analysis.result.device,
                start_ns=periods.start_ns[rows] - origin_ns,
                end_ns=periods.end_ns[rows] - origin_ns,
                category=np.full(len(rows), ID["step" if steps else "range"], np.uint8),
                source=rows.astype(np.int32),
                names=trace.names,
                name_id=trace.annotations.name_id[periods.row[rows]],
            )
        )
    return lanes


def _streams(trace: Trace, analysis: DeviceAnalysis, origin_ns: int) -> list[TimelineLane]:
    ops, main = trace.gpu_ops, analysis.result.main_stream
    mine, category = np.flatnonzero(ops.device == analysis.result.device), of_gpu_ops(analysis.timeline.ops)
    lanes = []
    for stream, of_stream in rows_by(ops.stream[mine]):
        rows = mine[of_stream]
        label = f"stream {stream}" if stream >= 0 else "no stream"
        lanes.append(
            prepared(
                group=_group(analysis),
                label=f"{label} (main)" if stream == main else label,
                kind="stream",
                device=analysis.result.device,
                stream=stream,
                start_ns=ops.start_ns[rows] - origin_ns,
                end_ns=ops.end_ns[rows] - origin_ns,
                category=category[of_stream],
                source=rows.astype(np.int32),
                names=ops.names,
                name_id=ops.name_id[rows],
            )
        )
    return sorted(lanes, key=lambda lane: (lane.stream != main, -lane.busy_ns, lane.stream))


def _host_lanes(trace: Trace, origin_ns: int, end_ns: int) -> list[TimelineLane]:
    """Return annotations, CPU ops, runtime calls and the profiler's own time, nested as they ran.

    The thread of the steps comes first, then threads that launch, the busiest first. Below the first, a lane has the
    lines of the user's code if stacks were recorded.
    """
    tables = (trace.annotations, trace.cpu_ops, trace.runtime_calls, trace.overheads)
    threads = distinct(np.concatenate([table.thread for table in tables])).tolist()
    categories = _categories(trace)
    lanes: list[TimelineLane] = []
    for number, (thread, label) in enumerate(_threads(trace, threads)):
        lanes += _thread_lanes(thread, label, tables, categories, origin_ns)
        if number == 0:
            lanes += _python_lines(trace, thread, label, origin_ns, end_ns)
    return lanes


def _python_lines(trace: Trace, thread: int, group: str, origin_ns: int, end_ns: int) -> list[TimelineLane]:
    """Return a lane of the innermost frames of the user's code, cut to what is drawn; none without such frames."""
    start, end, row = own_pieces(trace, thread)
    start, end = np.maximum(start, origin_ns), np.minimum(end, end_ns)
    shown = start < end
    start, end, row = start[shown], end[shown], row[shown]
    if not len(start):
        return []
    return [
        prepared(
            group=group,
            label="Python lines",
            kind="host",
            thread=thread,
            start_ns=start - origin_ns,
            end_ns=end - origin_ns,
            category=np.full(len(start), ID["python-line"], np.uint8),
            source=row.astype(np.int32),
            names=trace.names,
            name_id=trace.python_frames.name_id[row],
        )
    ]


def _categories(trace: Trace) -> tuple[U8, ...]:
    """Return the category of every event of each table."""
    calls = np.full(len(trace.runtime_calls), ID["runtime-call"], np.uint8)
    calls[find_blocking(trace).row] = ID["blocking-call"]
    return (
        np.where(is_step(trace.annotations), ID["step"], ID["range"]).astype(np.uint8),
        np.full(len(trace.cpu_ops), ID["cpu-op"], np.uint8),
        calls,
        np.full(len(trace.overheads), ID["profiler"], np.uint8),
    )


def _threads(trace: Trace, threads: list[int]) -> list[tuple[int, str]]:
    """Return the threads in drawing order, with their names."""
    launch = trace.gpu_ops.launch
    launching = _counted(trace.runtime_calls.thread[launch[launch >= 0]])
    stepping = _counted(trace.annotations.thread[is_step(trace.annotations)])
    calling = _counted(trace.runtime_calls.thread)
    order = sorted(
        threads,
        key=lambda thread: (-stepping.get(thread, 0), -launching.get(thread, 0), -calling.get(thread, 0), thread),
    )
    labels = []
    for place, thread in enumerate(order):
        main = place == 0 and (thread in stepping or thread in launching)
        label = "unknown thread" if thread == -1 else f"thread {thread}"
        labels.append((thread, f"{label} (main)" if main else label))
    return labels


def _counted(threads: I64) -> dict[int, int]:
    return {thread: len(rows) for thread, rows in rows_by(threads)}


def _thread_lanes(
    thread: int,
    group: str,
    tables: tuple[HostEvents, ...],
    categories: tuple[U8, ...],
    origin_ns: int,
) -> list[TimelineLane]:
    rows = [rows_of(table, thread) for table in tables]
    parts = list(zip(tables, categories, rows, strict=True))
    start = np.concatenate([table.start_ns[rows_of_part] for table, _, rows_of_part in parts])
    end = np.concatenate([table.end_ns[rows_of_part] for table, _, rows_of_part in parts])
    order = by_start(start, end)
    start, end = start[order] - origin_ns, end[order] - origin_ns
    category = np.concatenate([category[rows_of_part] for _, category, rows_of_part in parts])[order]
    name_id = np.concatenate([table.name_id[rows_of_part] for table, _, rows_of_part in parts])[order]
    source = np.concatenate(rows)[order]
    return [
        prepared(
            group=group,
            label="",
            kind="host",
            depth=level,
            thread=thread,
            start_ns=start[of_lane],
            end_ns=end[of_lane],
            category=category[of_lane],
            source=source[of_lane],
            names=tables[0].names,
            name_id=name_id[of_lane],
        )
        for level, of_lane in rows_by(depths(start, end))
    ]


DEEPEST = 8
"""Maximum number of rows of a nest. Deeper events are drawn in the last row, on top of their parents."""


def depths(start_ns: I64, end_ns: I64) -> I8:
    """Return how many events are open when each opens, at most `DEEPEST - 1`.

    Events must be sorted by start, then longest first; an event without length counts as 1 ns.
    """
    closed = np.sort(np.maximum(end_ns, start_ns + 1), kind="stable")
    depth = np.arange(len(start_ns)) - np.searchsorted(closed, start_ns, side="right")
    capped: I8 = np.clip(depth, 0, DEEPEST - 1).astype(np.int8)
    return capped


def first_free(start_ns: I64, end_ns: I64) -> I8:
    """Return the first row with room for each event, for events sorted by start that cross each other."""
    rows = np.zeros(len(start_ns), np.int8)
    ends: list[int] = []
    for number, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        row = next((row for row, taken in enumerate(ends) if taken <= start), len(ends))
        if row == len(ends) and row < DEEPEST:
            ends.append(end)
        row = min(row, DEEPEST - 1)
        rows[number], ends[row] = row, max(end, ends[row])
    return rows


def by_start(start_ns: I64, end_ns: I64) -> Index:
    """Return the order by start, then longest first, for times that are sorted in parts.

    A stable sort is followed by a sort of the few events that start at the same time.
    """
    order = np.argsort(start_ns, kind="stable")
    begun = start_ns[order]
    same = np.append(False, begun[1:] == begun[:-1])
    tied = np.flatnonzero(same | np.append(same[1:], False))
    among = order[tied]
    order[tied] = among[np.lexsort((-end_ns[among], start_ns[among]))]
    return order
