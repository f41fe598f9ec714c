"""Analysis of one device of one trace: the device's part of the report, and the underlying data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, pairwise

import numpy as np
from msgspec import UNSET, Struct
from msgspec.structs import asdict, replace

from overlapscope.analysis import exposed
from overlapscope.analysis import idle as idle_time
from overlapscope.analysis.average import average, comparable, describe_served, judged_steps
from overlapscope.analysis.exposed import recorded
from overlapscope.analysis.facts import Facts, period, periods_of, select, together
from overlapscope.analysis.figures import Period, figures_in, hidden_ns
from overlapscope.analysis.groups import find_evidence, find_stalls, group_copies, group_kernels
from overlapscope.analysis.holds import Edges, find_edges
from overlapscope.analysis.host_work import host_times
from overlapscope.analysis.missing_ops import find_unanswered
from overlapscope.analysis.periods import Periods, after_warm_up, find_ranges, find_steps, without_request_waits
from overlapscope.analysis.pieces import CommOps, Exposed, IdleTime
from overlapscope.analysis.plain_step import step_interval
from overlapscope.analysis.results import Device, Outside, StepRange
from overlapscope.analysis.timeline import Timeline, build, lengths, stream_use
from overlapscope.base.grouping import distinct
from overlapscope.base.intervals import Bool, Intervals, clip, covered, union
from overlapscope.catalog.causes import FOUND, Subject
from overlapscope.trace.host import Blocking, launches_graphs
from overlapscope.trace.model import Kind, PlainSteps, Trace


class Causes(Struct, frozen=True, eq=False, kw_only=True):
    """Causes on one device, found on the whole recording."""

    timeline: Timeline
    exposed: Exposed
    exposed_comm: Exposed
    comm: CommOps
    exposed_other: Exposed
    idle: IdleTime
    steps: Periods
    ranges: Periods
    edges: Edges

    @property
    def by_subject(self) -> Mapping[Subject, Exposed | IdleTime]:
        """The pieces of each kind of time that has causes."""
        return {
            "exposed-copy": self.exposed,
            "exposed-comm": self.exposed_comm,
            "exposed-other": self.exposed_other,
            "idle": self.idle,
        }


class DeviceAnalysis(Causes, frozen=True, kw_only=True):
    """Result for one device, with the timeline it was measured on."""

    result: Device
    windows: Intervals
    """Windows of the result: the whole window, or the occurrences of one step or range."""
    facts: Facts
    """Figures of `Device.steps`."""


def analyze_device(
    trace: Trace,
    comparable: Trace,
    device: int,
    blocking: Blocking,
    *,
    step: str | None = None,
    range: str | None = None,
    settled: bool = False,
) -> DeviceAnalysis | None:
    """Analyze one device.

    With `step` or `range`, figures cover only those windows. Causes are always found on the whole recording, using
    `comparable`: the trace itself, or one without launches if its clocks disagree.

    Returns:
        The device's results; None if it has no such step or range.
    """
    causes = _find_causes(trace, comparable, device, blocking)
    windows = Intervals(np.array([causes.timeline.start_ns]), np.array([causes.timeline.end_ns]))
    for name, periods in ((step, causes.steps), (range, causes.ranges)):
        if name is not None:
            named = [i for i, row in enumerate(periods.row.tolist()) if trace.annotations.name(row) == name]
            windows = union(periods.start_ns[named], periods.end_ns[named])
    if not len(windows.starts):
        return None
    result, facts = _figures(trace, causes, windows, narrowed=step is not None or range is not None, settled=settled)
    return DeviceAnalysis(result=result, windows=windows, facts=facts, **asdict(causes))


def describe(trace: Trace, analysis: DeviceAnalysis, blocking: Blocking, *, settled: bool) -> DeviceAnalysis:
    """Return the analysis with what only a report on the device shows, and no comparison of ranks.

    These are streams, groups of ops and of calls, evidence, and what overlap and the profiler cost.
    """
    timeline, result, windows = analysis.timeline, analysis.result, analysis.windows
    steps = analysis.steps.inside(*windows)
    evidence = (
        find_evidence(trace, timeline, subject, pieces, steps, windows)
        for subject, pieces in analysis.by_subject.items()
    )
    result = replace(
        result,
        streams=stream_use(timeline, *windows),
        copies=group_copies(timeline, steps, windows),
        evidence=tuple(chain.from_iterable(evidence)),
        host_stalls=find_stalls(trace, timeline, blocking, analysis.idle, steps, windows),
        kernels=group_kernels(trace, timeline, steps, windows),
    )
    if launches_graphs(trace):
        from overlapscope.analysis.graphs import graph_use

        result = replace(result, graphs=graph_use(trace, timeline.ops) or UNSET)
    frame = result.per_step or result.judged
    if trace.predicted_by is None and not settled and frame is not None:
        # A prediction keeps the lengths of kernels, whatever runs beside them there.
        result = replace(result, alone=_alone(trace, analysis, result, windows))
        if any(hidden_ns(frame).values()):
            from overlapscope.analysis.net_overlap import net_overlap

            result = replace(result, net_overlap=net_overlap(timeline, judged_windows(analysis), frame))
    return replace(analysis, result=result)


def _alone(trace: Trace, causes: Causes, result: Device, windows: Intervals) -> StepRange | None:
    """Return the interval of a step without the profiler; None if the recorder timed steps."""
    if trace.plain_steps != PlainSteps():
        return None
    ops, notes = causes.timeline.ops, trace.annotations
    launches = distinct(ops.launch[(ops.kind == Kind.COMPUTE) & (ops.launch >= 0)])
    host = Intervals(windows.starts[:1], windows.ends[-1:])
    if result.per_step is not None:
        # What the host does before the next mark belongs to a step, except to the last one.
        numbers, begins = np.array(judged_steps(result)), notes.start_ns[causes.steps.row]
        following = np.append(begins[1:], notes.end_ns[causes.steps.row[-1]])[numbers]
        following[-1] = notes.end_ns[causes.steps.row[numbers[-1]]]
        host = union(begins[numbers], np.maximum(following, begins[numbers]))
    return step_interval(trace, result, launches, host)


def judged_windows(analysis: DeviceAnalysis) -> Intervals:
    """Return the windows that findings are about: the judged steps, or else the windows after the lead-in."""
    result = analysis.result
    if result.per_step is None:
        return _after_lead_in(analysis.timeline, analysis.windows)
    each = [result.steps[number].window for number in judged_steps(result)]
    return union(np.array([window.start_ns for window in each]), np.array([window.end_ns for window in each]))


def _after_lead_in(timeline: Timeline, windows: Intervals) -> Intervals:
    return clip(windows, timeline.judged_from_ns, timeline.end_ns)


def _find_causes(trace: Trace, comparable: Trace, device: int, blocking: Blocking) -> Causes:
    timeline = after_warm_up(trace, build(trace, device))
    steps, ranges = find_steps(trace, timeline), find_ranges(trace, timeline)
    # The last step ends with the window, so it is never judged, and stands for those that the end cut off.
    before_last = np.arange(len(steps)) < len(steps) - 1
    steps = replace(steps, partial=steps.partial | (_cut_off(trace, steps) & before_last))
    for_causes = (
        timeline if comparable is trace else replace(build(comparable, device), lead_in_end_ns=timeline.lead_in_end_ns)
    )
    edges = find_edges(comparable, for_causes)
    recording = recorded(comparable, for_causes, edges, blocking, steps.start_ns)
    exposed_communication, comm = Exposed.empty(), CommOps.empty()
    if len(timeline.comm.starts):
        from overlapscope.analysis import exposed_comm

        exposed_communication, comm = exposed_comm.attribute(recording)
    idle = idle_time.attribute(comparable, for_causes, edges, blocking)
    if trace.host_activity:
        from overlapscope.analysis.host_sampled import with_sampled

        idle = with_sampled(comparable, idle, steps, device)
    steps = without_request_waits(steps, idle)
    copies = exposed.attribute(recording)
    return Causes(
        timeline=timeline,
        # The call that launched a copy is known even if its times can't be compared with the device's.
        exposed=replace(copies, call=timeline.ops.launch[copies.op]),
        exposed_comm=exposed_communication,
        comm=comm,
        exposed_other=exposed.attribute_other(timeline),
        idle=idle,
        steps=steps,
        ranges=replace(ranges, partial=ranges.partial | _cut_off(trace, ranges)),
        edges=edges,
    )


def _cut_off(trace: Trace, periods: Periods) -> Bool:
    """Select the periods that may have made launches whose ops the end of the recording cut off."""
    late = trace.runtime_calls.start_ns[find_unanswered(trace).cut_off[:1]]
    cut_off: Bool = trace.annotations.end_ns[periods.row] > late.min(initial=np.iinfo(np.int64).max)
    return cut_off


def _figures(
    trace: Trace, causes: Causes, windows: Intervals, *, narrowed: bool, settled: bool
) -> tuple[Device, Facts]:
    """Return the figures of a device inside the windows, and those of its steps as columns.

    `narrowed` is whether the windows are some steps or ranges only.

    Streams, groups and evidence are left to `describe`.
    """
    timeline, starts, ends = causes.timeline, windows.starts, windows.ends
    steps, ranges = causes.steps.inside(starts, ends), causes.ranges.inside(starts, ends)
    lead_in = None if timeline.lead_in_end_ns is None else timeline.lead_in_end_ns - timeline.start_ns
    judged = _after_lead_in(timeline, windows)
    in_whole, in_judged, in_steps, in_ranges = measure(
        causes, [windows, judged, *(Intervals(periods.start_ns, periods.end_ns) for periods in (steps, ranges))]
    )
    figures = _together(in_whole, windows)
    host_before_ns, host_after_ns = (0, 0) if narrowed else _host_outside(trace)
    notes = trace.annotations
    in_steps = {**in_steps, **host_times(trace, timeline.device, notes.start_ns[steps.row], notes.end_ns[steps.row])}
    each_step = _each(in_steps, trace, steps)
    whole, spans_ns = np.flatnonzero(~steps.partial).tolist(), (steps.end_ns - steps.start_ns).tolist()
    names = [step.name for step in each_step]
    judged_numbers = comparable(whole, names, spans_ns, settled=settled)
    result = Device(
        device=timeline.device,
        name=trace.device_names.get(timeline.device),
        lead_in_ns=0 if narrowed else lead_in,
        window=figures.window,
        main_stream=timeline.main_stream,
        judged=_together(in_judged, judged) if len(judged.starts) else None,
        per_step=None if narrowed else average(in_steps, judged_numbers, names),
        outside=None if narrowed or not len(steps) else _outside(trace, timeline, steps, each_step),
        host_before_ns=host_before_ns,
        host_after_ns=host_after_ns,
        streams=(),
        copies=(),
        evidence=(),
        host_stalls=(),
        steps=each_step,
        ranges=_each(in_ranges, trace, ranges),
        kernels=(),
        served=(None if narrowed else describe_served(in_steps, each_step, figures)) or UNSET,
        **asdict(figures_in(figures)),
    )
    return result, in_steps


def _outside(trace: Trace, timeline: Timeline, steps: Periods, periods: Sequence[Period]) -> Outside:
    ops, first, last = timeline.ops, int(steps.start_ns[0]), int(steps.end_ns[-1])
    rows = (ops.start_ns >= timeline.judged_from_ns) & ((ops.end_ns <= first) | (ops.start_ns >= last))
    copied = {kind: ops.bytes[rows & (ops.kind == kind)] for kind in (Kind.H2D, Kind.D2H)}
    moved = {kind: None if (sizes < 0).any() else int(sizes.sum()) for kind, sizes in copied.items()}
    # The device's time before a step's first op belongs to the step before it, except for the only one.
    unmeasured_ns = 0
    launch = int(ops.launch[ops.start_ns == first].max(initial=-1))
    # An op that began long after its launch waited for work that was not recorded.
    soon = launch < 0 or first - int(trace.runtime_calls.end_ns[launch]) <= idle_time.MAX_LATENCY_NS
    if soon and len(periods) == 1 and first == timeline.start_ns == timeline.judged_from_ns:
        unmeasured_ns = max(0, first - int(trace.annotations.start_ns[steps.row[0]]))
    return Outside(
        unmeasured_ns=unmeasured_ns,
        before_ns=first - timeline.judged_from_ns,
        after_ns=timeline.end_ns - last,
        between_ns=int((steps.start_ns[1:] - steps.end_ns[:-1]).sum()) or UNSET,
        h2d_bytes=moved[Kind.H2D],
        d2h_bytes=moved[Kind.D2H],
    )


def _host_outside(trace: Trace) -> tuple[int, int]:
    """Return for how long ops run on the host before any device's first op, and after the last."""
    begin, end = int(trace.gpu_ops.start_ns.min()), int(trace.gpu_ops.end_ns.max())
    first, last = int(trace.cpu_ops.start_ns.min(initial=begin)), int(trace.cpu_ops.end_ns.max(initial=end))
    return begin - first, last - end


def measure(causes: Causes, windows: Sequence[Intervals]) -> list[Facts]:
    """Return the figures in several lists of windows, all measured at once."""
    starts, ends = (np.concatenate(side) for side in zip(*windows, strict=True))
    facts = lengths(causes.timeline, starts, ends)
    for subject, pieces in causes.by_subject.items():
        for rank, cause in enumerate(FOUND[subject]):
            facts[f"{subject}:{cause}"] = covered(pieces.of_cause(rank), starts, ends)
    bounds = np.cumsum([0, *(len(begin) for begin, _ in windows)]).tolist()
    return [select(facts, slice(low, high)) for low, high in pairwise(bounds)]


def _together(facts: Facts, windows: Intervals) -> Period:
    """Return the figures of all windows together."""
    return period("", int(windows.starts[0]), int(windows.ends[-1]), together(facts))


def _each(facts: Facts, trace: Trace, periods: Periods) -> tuple[Period, ...]:
    """Return the figures of each window."""
    names = [trace.annotations.name(row) for row in periods.row.tolist()]
    return periods_of(facts, names, periods.start_ns, periods.end_ns, periods.partial)
