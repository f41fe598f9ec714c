"""Steps and ranges: begin and end of host annotations on the device."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.figures import Window
from overlapscope.analysis.pieces import IdleTime
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import Columns, pick
from overlapscope.base.grouping import distinct, rows_by
from overlapscope.base.intervals import I64, Bool, contains, union
from overlapscope.base.kept import kept
from overlapscope.base.marks import GC_PAUSE, STEP, is_step_name, step_number
from overlapscope.base.words import check_known, listed, number_runs
from overlapscope.catalog.causes import IDLE_RANK, IdleCause
from overlapscope.errors import NotInTrace
from overlapscope.trace.model import HostEvents, Trace
from overlapscope.trace.servers import WAITS, Phase, phase_in

_MAX_LISTED_RUNS = 8
"""Maximum number of runs of steps in a message."""


class Periods(Columns, frozen=True):
    """Windows on the device, by start: `[start_ns[i], end_ns[i])` belongs to annotation `row[i]`."""

    row: I64
    start_ns: I64
    end_ns: I64
    partial: Bool
    """True if it began in the lead-in, or the recording's end cut off ops, so that a part of it is missing."""

    def at(self, instants: I64) -> I64:
        """Return the period of each instant; -1 if there is none. The periods must be disjoint."""
        number = np.searchsorted(self.start_ns, instants, side="right") - 1
        return np.where((number >= 0) & (pick(self.end_ns, number, 0) > instants), number, -1)

    def inside(self, starts: I64, ends: I64) -> Periods:
        """Return the periods within one of the given disjoint windows, which are sorted by start."""
        window = np.searchsorted(starts, self.start_ns, side="right") - 1
        kept = (window >= 0) & (pick(ends, window, 0) >= self.end_ns)
        return self.take(kept)


def is_step(annotations: HostEvents) -> Bool:
    """Select the annotations that are steps."""
    return annotations.named(is_step_name)


@kept()
def phases_of(trace: Trace) -> tuple[Phase, ...]:
    """Return the phases of the steps that an inference server marked, each once; empty for other programs."""
    phases = map(phase_in, names_of(trace.annotations)[0])
    return tuple(dict.fromkeys(phase for phase in phases if phase is not None))


def is_gc_pause(events: HostEvents) -> Bool:
    """Select the recorder's marks of Python's garbage collector."""
    return events.named(lambda name: name.startswith(GC_PAUSE))


def host_step(trace: Trace, name: str) -> Window | None:
    """Return when the host ran a step; None if no annotation has its name."""
    rows = np.flatnonzero(trace.annotations.named(lambda other: other == name))
    if not len(rows):
        return None
    notes, row = trace.annotations, rows[0]
    return Window(start_ns=int(notes.start_ns[row]), end_ns=int(notes.end_ns[row]))


def names_of(annotations: HostEvents) -> tuple[list[str], list[str]]:
    """Return the names of the steps and of all ranges of the program, each once, in order."""
    names = [annotations.names[name_id] for name_id in dict.fromkeys(annotations.name_id.tolist())]
    steps = [name for name in names if is_step_name(name)]
    return steps, [name for name in names if name not in steps and not name.startswith(GC_PAUSE)]


def step_called(annotations: HostEvents, name_or_number: str) -> str:
    """Return the name of a step that the user names by its name or its number."""
    name = name_or_number if is_step_name(name_or_number) else f"{STEP}{name_or_number}"
    if not is_step_name(name):
        return name_or_number
    steps = names_of(annotations)[0]
    return name if name in steps else next((step for step in steps if step_number(step) == step_number(name)), name)


def check_step(source: str, name: str, annotations: HostEvents) -> None:
    """Check that there is a step of that name.

    Raises:
        NotInTrace: If there is none. The text has the numbers of the steps.
    """
    steps = names_of(annotations)[0]
    if not steps or not is_step_name(name):
        check_known(source, "step", name, steps)
    elif name not in steps:
        numbers = listed(number_runs(map(step_number, steps)), _MAX_LISTED_RUNS)
        raise NotInTrace(f"{source}: there is no step {step_number(name)}; steps: {numbers}.")


def judged_steps(trace: Trace) -> I64:
    """Return the rows in `Trace.annotations` of the steps after the recorder's warm-up, by start."""
    return np.flatnonzero(is_step(trace.annotations))[trace.warm_up_steps :]


def after_warm_up(trace: Trace, timeline: Timeline) -> Timeline:
    """Return the timeline with its lead-in extended over the recorder's warm-up steps, in which the pipeline fills.

    It is not extended if no judged step launched anything, because there is nothing else to judge.
    """
    if not trace.warm_up_steps or timeline.lead_in_end_ns is None:
        return timeline
    rows = judged_steps(trace)
    begins, _, launched_any = _Launches(trace, timeline, timeline.main_stream).span_of(
        trace.annotations.start_ns[rows], trace.annotations.end_ns[rows]
    )
    if not launched_any.any():
        return timeline
    return replace(timeline, lead_in_end_ns=max(timeline.lead_in_end_ns, int(begins[launched_any].min())))


def find_steps(trace: Trace, timeline: Timeline) -> Periods:
    """Return the steps, from the first op launched on the main stream to the first op of the next step.

    A step that launched nothing there has no place on the device and is left out; the part of a step in the lead-in is
    cut off. The host runs ahead and side streams run early, so neither can bound a step. The last step ends with the
    window. If steps are repeats, which end within a recording, it ends before the first op launched after it.
    """
    rows = np.flatnonzero(is_step(trace.annotations))
    launches = _Launches(trace, timeline, timeline.main_stream)
    begins, _, launched_any = launches.span_of(trace.annotations.start_ns[rows], trace.annotations.end_ns[rows])
    if phases_of(trace):
        # The phases of a server may run on different streams.
        on_any, _, launched = _Launches(trace, timeline, None).span_of(
            trace.annotations.start_ns[rows], trace.annotations.end_ns[rows]
        )
        begins, launched_any = np.where(launched_any, begins, on_any), launched_any | launched
    order = np.argsort(begins[launched_any], kind="stable")
    begins = begins[launched_any][order]
    rows, end = rows[launched_any][order], timeline.end_ns
    if trace.period is not None and len(rows):
        end = int(launches.first_after(trace.annotations.end_ns[rows[-1:]], end)[0])
    return _after_lead_in(timeline, rows, begins, np.append(begins[1:], end))


def find_ranges(trace: Trace, timeline: Timeline) -> Periods:
    """Return the ranges. Each begins like a step, and ends at the first op launched after it on the main stream.

    If its own last op had ended before that launch, the device waited for the host, and the range ends when the host
    left it, but not before its last op. So an inner range lies within its outer one. A range that launched nothing
    there lasts from the first to the last op it launched elsewhere, because the next work of such a stream is unrelated
    to it.
    """
    notes = trace.annotations
    rows = np.flatnonzero(~is_step(notes) & ~is_gc_pause(notes))
    main = _Launches(trace, timeline, timeline.main_stream)
    left_ns = notes.end_ns[rows]
    begins, last_ends, launched_any = main.span_of(notes.start_ns[rows], left_ns)
    # Other threads may launch for a range (as autograd does) or for themselves, so the first op of its own thread
    # decides.
    for thread in distinct(notes.thread[rows]):
        of_thread = np.flatnonzero(notes.thread[rows] == thread)
        launches = _Launches(trace, timeline, timeline.main_stream, int(thread))
        first, _, launched = launches.span_of(notes.start_ns[rows[of_thread]], notes.end_ns[rows[of_thread]])
        begins[of_thread] = np.where(launched, first, begins[of_thread])
    next_starts = main.first_after(left_ns, timeline.end_ns)
    waits = np.append(main.launched_ns, timeline.end_ns)[np.searchsorted(main.launched_ns, left_ns)] >= last_ends
    ends = np.where(waits, np.minimum(next_starts, np.maximum(last_ends, left_ns)), next_starts)
    other = np.flatnonzero(~launched_any)
    everything = _Launches(trace, timeline, None)
    spans = everything.span_of(notes.start_ns[rows[other]], notes.end_ns[rows[other]])
    begins[other], ends[other], launched_any[other] = spans
    row, begin, end = rows[launched_any], begins[launched_any], ends[launched_any]
    order = np.lexsort((-end, begin))
    return _after_lead_in(timeline, row[order], begin[order], end[order])


def _after_lead_in(timeline: Timeline, row: I64, start: I64, end: I64) -> Periods:
    begin = np.maximum(start, timeline.judged_from_ns)
    kept = end > begin
    return Periods(row[kept], begin[kept], end[kept], (begin > start)[kept])


class _Launches:
    """Ops in launch order, of one stream or all, launched by one thread or any."""

    def __init__(self, trace: Trace, timeline: Timeline, stream: int | None, thread: int | None = None) -> None:
        ops = timeline.ops
        launched = np.flatnonzero(((ops.stream == stream) | (stream is None)) & (ops.launch >= 0))
        if thread is not None:
            launched = launched[trace.runtime_calls.thread[ops.launch[launched]] == thread]
        at = trace.runtime_calls.start_ns[ops.launch[launched]]
        order = np.lexsort((ops.start_ns[launched], at))
        self.launched_ns: I64 = at[order]
        self.start_ns: I64 = ops.start_ns[launched][order]
        self.end_ns: I64 = ops.end_ns[launched][order]

    def first_after(self, at: I64, otherwise: int) -> I64:
        """Return the start of the first op launched at or after each host time."""
        following = np.minimum.accumulate(np.append(self.start_ns, otherwise)[::-1])[::-1]
        return following[np.searchsorted(self.launched_ns, at, side="left")]

    def span_of(self, starts: I64, ends: I64) -> tuple[I64, I64, Bool]:
        """Return the first start and the last end of ops launched in each host interval, and whether there are any."""
        low = np.searchsorted(self.launched_ns, starts, side="left")
        high = np.searchsorted(self.launched_ns, ends, side="left")
        if not len(low):
            return low, low, low < high
        # `reduceat` takes pairs of bounds. Its values between pairs, and for empty intervals, are not used.
        bounds = np.stack([low, high], axis=1).ravel()
        first = np.minimum.reduceat(np.append(self.start_ns, 0), bounds)[::2]
        last = np.maximum.reduceat(np.append(self.end_ns, 0), bounds)[::2]
        return first, last, low < high


# -- Requests of a server ----------------------------------------------------------------------------


@kept()
def request_waits(trace: Trace) -> HostEvents:
    """Return the times in which threads of a server had no request, from the first wait after a mark to the last.

    A server may wait in a call, or look for requests again and again. Empty for other programs.
    """
    frames = trace.python_frames
    if not phases_of(trace):
        return frames.take(np.zeros(0, np.int64))
    found = []
    marks = trace.annotations.start_ns[is_step(trace.annotations)]
    for outer, inner in WAITS:
        looks = frames.named(outer.search)
        waits = looks if inner is None else frames.named(inner.search)
        for thread, rows in rows_by(frames.thread[waits]):
            rows = np.flatnonzero(waits)[rows]
            around = looks & (frames.thread == thread)
            rows = rows[contains(union(frames.start_ns[around], frames.end_ns[around]), frames.start_ns[rows])]
            after = np.searchsorted(marks, frames.start_ns[rows], side="right")
            first = np.flatnonzero(np.diff(after, prepend=-1))
            if len(rows):
                found.append(replace(frames.take(rows[first]), end_ns=np.maximum.reduceat(frames.end_ns[rows], first)))
    return HostEvents.joined(found) if found else frames.take(np.zeros(0, np.int64))


def without_request_waits(steps: Periods, idle: IdleTime) -> Periods:
    """Return the steps without the idle time in which the server waited for requests.

    A step ends where such time begins, and the next one begins where it ends, before its first op.
    """
    waits = idle.take(idle.cause == IDLE_RANK[IdleCause.AWAITING_REQUESTS])
    starts, ends = steps.start_ns.copy(), steps.end_ns.copy()
    number = steps.at(waits.start_ns)
    for step in distinct(number[number >= 0]).tolist():
        of_step = number == step
        ends[step] = waits.start_ns[of_step].min()
        starts[step + 1 : step + 2] = waits.end_ns[of_step].max()
    return replace(steps, start_ns=starts, end_ns=ends)
