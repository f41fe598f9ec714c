"""The lanes of one device: what it overlapped, its steps and ranges, its streams."""

from __future__ import annotations

import numpy as np

from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.periods import Periods
from overlapscope.base.intervals import I64, subtract
from overlapscope.timeline.categories import FIRST_EXPOSED_COPY, FIRST_IDLE, ID, LABELS, U8, of_gpu_ops
from overlapscope.timeline.lane import Lane, prepared
from overlapscope.timeline.rows import first_free, groups
from overlapscope.trace.model import I8, Trace


def device_lanes(trace: Trace, analysis: DeviceAnalysis, origin_ns: int) -> list[Lane]:
    """In the order in which they are drawn: overlap, steps, ranges by depth, streams with the main one first."""
    steps, ranges = analysis.steps, analysis.ranges
    depth = first_free(ranges.start_ns, ranges.end_ns)
    return [
        _overlap(analysis, origin_ns),
        *_periods(trace, analysis, origin_ns, steps, np.zeros(len(steps.row), np.int8)),
        *_periods(trace, analysis, origin_ns, ranges, depth),
        *_streams(analysis, origin_ns),
    ]


def _group(analysis: DeviceAnalysis) -> str:
    return f"device {analysis.result.device}" if analysis.result.device >= 0 else "device"


def _overlap(analysis: DeviceAnalysis, origin_ns: int) -> Lane:
    """The device's window, cut into pieces that say of every instant what was overlapped.

    Compute beside which no copy ran is `compute`, a copy beside a kernel `hidden-copy`; communication with neither
    compute nor copy beside it is `exposed-comm`. So with each word for the length of its pieces

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


def _periods(trace: Trace, analysis: DeviceAnalysis, origin_ns: int, periods: Periods, depth: I8) -> list[Lane]:
    """Steps or ranges, a lane for each depth."""
    steps = periods is analysis.steps
    lanes = []
    for level, rows in groups(depth):
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


def _streams(analysis: DeviceAnalysis, origin_ns: int) -> list[Lane]:
    ops, main = analysis.timeline.ops, analysis.result.main_stream
    category = of_gpu_ops(ops)
    lanes = []
    for stream, rows in groups(ops.stream):
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
                category=category[rows],
                source=rows.astype(np.int32),
                names=ops.names,
                name_id=ops.name_id[rows],
            )
        )
    return sorted(lanes, key=lambda lane: (lane.stream != main, -lane.busy_ns, lane.stream))
