"""From an analysed trace to its lanes."""

from __future__ import annotations

from dataclasses import replace

from overlapscope.analysis import TraceAnalysis
from overlapscope.timeline.build_gpu import device_lanes
from overlapscope.timeline.build_host import host_lanes
from overlapscope.timeline.lane import Lane, Lanes


def build(analysis: TraceAnalysis) -> Lanes:
    """The lanes of every device, then those of every thread of the host."""
    trace = analysis.trace
    tables = (trace.gpu_ops, trace.runtime_calls, trace.cpu_ops, trace.annotations, trace.overheads)
    drawn = [table for table in tables if len(table)]
    # Tables are sorted by start.
    origin = min((int(table.start_ns[0]) for table in drawn), default=0)
    end = max((int(table.end_ns.max()) for table in drawn), default=origin)
    made: list[Lane] = []
    for device in analysis.devices:
        made += device_lanes(trace, device, origin)
    made += host_lanes(trace, origin)
    return Lanes(
        origin_ns=origin,
        start_ns=0,
        end_ns=end - origin,
        lanes=tuple(replace(lane, id=number) for number, lane in enumerate(made)),
        analysis=analysis,
    )
