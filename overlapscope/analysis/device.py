"""One device of one trace, analysed: everything the report says of it, and the pieces behind that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from overlapscope.analysis import exposed as exposed_copies
from overlapscope.analysis import idle as idle_time
from overlapscope.analysis.copies import group_copies
from overlapscope.analysis.edges import Edges, find_edges
from overlapscope.analysis.evidence import copy_evidence, idle_evidence
from overlapscope.analysis.exposed import ExposedCopies
from overlapscope.analysis.host import Blocking
from overlapscope.analysis.kernels import group_kernels
from overlapscope.analysis.late_launch import IdleTime
from overlapscope.analysis.periods import Periods, behind_warm_up, find_ranges, find_steps
from overlapscope.analysis.results import Device, Period, Window
from overlapscope.analysis.stalls import find_stalls
from overlapscope.analysis.timeline import Timeline, build, lengths, measured, stream_use
from overlapscope.base.intervals import I64, Intervals, covered, union
from overlapscope.catalog.causes import COPY_CAUSES, IDLE_CAUSES
from overlapscope.trace.model import Trace


@dataclass(frozen=True, slots=True, eq=False)
class DeviceAnalysis:
    """The result, and the timeline it was measured on, for those who draw it or look closer."""

    result: Device
    windows: Intervals
    """What the result is of: the whole window, or the occurrences of one step or range."""
    timeline: Timeline
    exposed: ExposedCopies
    idle: IdleTime
    steps: Periods
    """All steps, also where the result is narrowed."""
    ranges: Periods
    """Likewise."""
    edges: Edges


def analyze_device(
    trace: Trace,
    comparable: Trace,
    device: int,
    blocking: Blocking,
    *,
    step: str | None = None,
    range: str | None = None,
) -> DeviceAnalysis | None:
    """Analyse one device; with `step` or `range`, its figures are of those windows alone.

    Causes are always found on the whole recording, from `comparable`: the trace itself, or one without
    launches where its clocks disagree. None where the device has no such step or range.
    """
    timeline = behind_warm_up(trace, build(trace, device))
    steps, ranges = find_steps(trace, timeline), find_ranges(trace, timeline)
    for_causes = (
        timeline if comparable is trace else replace(build(comparable, device), lead_in_end_ns=timeline.lead_in_end_ns)
    )
    edges = find_edges(comparable, for_causes)
    exposed = exposed_copies.attribute(comparable, for_causes, edges, blocking, steps.start_ns)
    idle = idle_time.attribute(comparable, for_causes, edges, blocking)

    starts, ends = np.array([timeline.start_ns]), np.array([timeline.end_ns])
    for name, periods in ((step, steps), (range, ranges)):
        if name is not None:
            mine = [i for i, row in enumerate(periods.row.tolist()) if trace.annotations.name(row) == name]
            starts, ends = union(periods.start_ns[mine], periods.end_ns[mine])
    if not len(starts):
        return None

    windows = Intervals(starts, ends)
    narrowed = step is not None or range is not None
    shown = (steps.inside(starts, ends), ranges.inside(starts, ends)) if narrowed else (steps, ranges)
    lead_in = None if timeline.lead_in_end_ns is None else timeline.lead_in_end_ns - timeline.start_ns
    judged = np.maximum(starts, timeline.judged_from_ns)
    behind = judged < ends
    in_whole, in_judged, in_steps, in_ranges = _measure(
        timeline,
        exposed,
        idle,
        [(starts, ends), (judged[behind], ends[behind]), *((one.start_ns, one.end_ns) for one in shown)],
    )
    whole = _together(in_whole, starts, ends)
    return DeviceAnalysis(
        result=Device(
            device=device,
            name=trace.device_names.get(device),
            span_ns=int((ends - starts).sum()),
            lead_in_ns=0 if narrowed else lead_in,
            window=Window(start_ns=int(starts[0]), end_ns=int(ends[-1])),
            main_stream=timeline.main_stream,
            buckets=whole.buckets,
            engines=whole.engines,
            overlap=whole.overlap,
            judged=_together(in_judged, judged[behind], ends[behind]) if behind.any() else None,
            streams=stream_use(timeline, starts, ends),
            copies=group_copies(timeline, shown[0], windows),
            exposed_copy_by_cause=whole.exposed_copy_by_cause,
            idle_by_cause=whole.idle_by_cause,
            evidence=(
                *copy_evidence(trace, timeline, exposed, windows),
                *idle_evidence(trace, idle, windows),
            ),
            host_stalls=find_stalls(trace, timeline, blocking, idle, shown[0], windows),
            steps=_each(in_steps, trace, shown[0]),
            ranges=_each(in_ranges, trace, shown[1]),
            kernels=group_kernels(trace, timeline, shown[0], windows),
        ),
        windows=windows,
        timeline=timeline,
        exposed=exposed,
        idle=idle,
        steps=steps,
        ranges=ranges,
        edges=edges,
    )


_Lengths = tuple[dict[str, I64], dict[str, I64], dict[str, I64]]
"""In each of some windows: how long each set of `timeline.lengths`, each cause of exposed copies and each cause of idle
time is."""


def _measure(
    timeline: Timeline, exposed: ExposedCopies, idle: IdleTime, windows: Sequence[tuple[I64, I64]]
) -> list[_Lengths]:
    """The lengths in several lists of windows, all measured at once."""
    starts, ends = (np.concatenate(side) for side in zip(*windows, strict=True))
    measured = (
        lengths(timeline, starts, ends),
        {str(c): covered(_where(exposed, number), starts, ends) for number, c in enumerate(COPY_CAUSES)},
        {str(c): covered(_where(idle, number), starts, ends) for number, c in enumerate(IDLE_CAUSES)},
    )
    bounds = np.cumsum([0, *(len(begin) for begin, _ in windows)]).tolist()
    return [
        (
            {name: ns[low:high] for name, ns in measured[0].items()},
            {name: ns[low:high] for name, ns in measured[1].items()},
            {name: ns[low:high] for name, ns in measured[2].items()},
        )
        for low, high in pairwise(bounds)
    ]


def _together(parts: _Lengths, starts: I64, ends: I64) -> Period:
    """The figures of all the windows added up."""
    summed = [{name: int(values.sum()) for name, values in part.items()} for part in parts]
    return period("", int(starts[0]), int(ends[-1]), *summed, partial=False)


def _each(parts: _Lengths, trace: Trace, periods: Periods) -> tuple[Period, ...]:
    """The figures of each window by itself."""
    listed = [{name: values.tolist() for name, values in part.items()} for part in parts]
    windows = zip(
        periods.row.tolist(), periods.start_ns.tolist(), periods.end_ns.tolist(), periods.partial.tolist(), strict=True
    )
    return tuple(
        period(
            trace.annotations.name(row),
            start,
            end,
            *({name: values[number] for name, values in part.items()} for part in listed),
            partial=partial,
        )
        for number, (row, start, end, partial) in enumerate(windows)
    )


def _where(pieces: ExposedCopies | IdleTime, cause: int) -> Intervals:
    mine = pieces.cause == cause
    return union(pieces.start_ns[mine], pieces.end_ns[mine])


def period(
    name: str,
    start: int,
    end: int,
    ns: dict[str, int],
    copy_causes: dict[str, int],
    idle_causes: dict[str, int],
    *,
    partial: bool,
) -> Period:
    """The figures of one window from the lengths that `timeline.lengths` names, and those of its causes."""
    buckets, engines, overlap = measured(ns)
    return Period(
        name=name,
        window=Window(start_ns=start, end_ns=end),
        span_ns=end - start,
        buckets=buckets,
        engines=engines,
        overlap=overlap,
        exposed_copy_by_cause=copy_causes,
        idle_by_cause=idle_causes,
        partial=partial,
    )
