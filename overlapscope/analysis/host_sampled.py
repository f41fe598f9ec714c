"""Causes of idle time that only samples and facts of other steps show: how long, but not when.

They are amounts of an average step without the profiler, and are taken out of a step's idle pieces in which the
launching thread was in Python, or worked, the longest first. So sums stay exact, while places are estimates.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.average import known_plain_step, step_ns
from overlapscope.analysis.event_waits import LOW
from overlapscope.analysis.host_lines import HostLine, host_lines
from overlapscope.analysis.host_work import host_times
from overlapscope.analysis.periods import Periods
from overlapscope.analysis.pieces import IdleTime, cut_at, first_part
from overlapscope.analysis.results import HostUse, LineTime, SampledStep
from overlapscope.base.columns import F64, I64, Bool
from overlapscope.base.grouping import among
from overlapscope.base.median import proportion
from overlapscope.catalog.causes import IDLE_RANK as RANK
from overlapscope.catalog.causes import WORK_CAUSES, IdleCause
from overlapscope.trace.host_activity import HostActivity, StackFrame
from overlapscope.trace.model import Trace

_IN_TURN = (IdleCause.PYTHON, IdleCause.DISPATCH, IdleCause.CPU_OPS)
_DIFFERENCE_BETWEEN_STEPS = 0.25
"""Relative difference of the same cause between steps of a process (`docs/evaluation/host-causes.md`)."""
_WAITS, _MOSTLY = 0.1, 0.5
"""Minimum shares of a line's samples in which the thread waits, for its calls to be what waits, and for all of the line
to be such calls."""


class _Amount(Struct, frozen=True):
    """Share of a cause in an average step without the profiler."""

    cause: IdleCause
    share: float
    low: float
    high: float
    """Ends of the interval in which it is in other steps."""
    taken_from: tuple[IdleCause, ...]
    """Causes that the recording shows instead, in the order in which time is taken from them."""
    anywhere: bool
    """True if it may happen anywhere in the thread's work, so that the GPU waited for only a part of it."""


def amounts(activity: HostActivity) -> tuple[_Amount, ...]:
    """Return the share of each cause, as far as samples and facts show it; nothing without them.

    Sampling may lengthen steps, so that each is a share of its own steps.
    """
    if not activity:
        return ()
    samples, facts = activity.states.total, activity.facts
    span_ns, throttled_ns = max(1, facts.span_ns), facts.throttled_ns or 0
    preempted_ns = max(0, (facts.run_queue_ns or 0) - throttled_ns)
    # Ops and autograd's engine release the lock and take it again.
    gil_wait = activity.states.gil_wait / max(1, samples)
    return (
        _Amount(IdleCause.FILE_IO, *_interval(_in_file_calls(activity), samples), (IdleCause.PYTHON,), False),
        _Amount(IdleCause.GIL_WAIT, *_interval(gil_wait, samples), _IN_TURN, True),
        _Amount(IdleCause.CPU_THROTTLED, *_interval(throttled_ns / span_ns), WORK_CAUSES, True),
        _Amount(IdleCause.PREEMPTED, *_interval(preempted_ns / span_ns), _preempting(activity), True),
    )


def _interval(share: float, samples: int = 0) -> tuple[float, float, float]:
    """Return a share and its interval: steps differ, and samples by chance."""
    if not share:
        return 0.0, 0.0, 0.0
    low, high = proportion(share, samples) if samples else (share, share)
    return share, min(low, (1 - _DIFFERENCE_BETWEEN_STEPS) * share), max(high, (1 + _DIFFERENCE_BETWEEN_STEPS) * share)


def _in_file_calls(activity: HostActivity) -> float:
    """Return the share of the samples in calls on files, and that of the kernel's work for them.

    The state of a thread that runs doesn't show its call. The kernel's CPU time counts as far as samples found the
    thread running in lines that also wait, in proportion to its waits for files. In lines that mostly wait, all counts.
    """
    states, facts = activity.states, activity.facts
    share = states.file_io / max(1, states.total)
    if not states.file_io or not facts.kernel_ns:
        return share
    samples, running = Counter[StackFrame | None](), Counter[StackFrame | None]()
    for stack in activity.main_stacks:
        line = activity.frames[stack.frames[-1]] if stack.frames else None
        samples[line] += stack.samples
        running[line] += stack.running

    def running_in_lines(least: float) -> float:
        found = [line for line in samples if samples[line] - running[line] >= least * samples[line]]
        return min(sum(running[line] for line in found) / max(1, samples.total()), states.running / states.total)

    beside = max(running_in_lines(_MOSTLY), min(facts.kernel_ns / facts.span_ns, running_in_lines(_WAITS)))
    return share + beside * states.file_io / (states.file_io + states.other_wait)


def _preempting(activity: HostActivity) -> tuple[IdleCause, ...]:
    """Return the causes that time without a CPU is taken from.

    If torch has more threads than CPUs, its threads take the CPU from one another in ops, so that the ops are to blame.
    """
    facts = activity.facts
    torch_competes = facts.cpus_to_match is not None and not facts.exceeds_other_threads(facts.run_queue_ns)
    return (IdleCause.PYTHON, IdleCause.DISPATCH) if torch_competes else WORK_CAUSES


def with_sampled(trace: Trace, idle: IdleTime, steps: Periods, device: int) -> IdleTime:
    """Return the idle time with the causes that only samples and facts of the host show."""
    found, whole_ns = amounts(trace.host_activity), step_ns(trace)
    plain = known_plain_step(trace)
    if plain is not None:
        # Steps that are longer than any recorded one are no part of these.
        whole_ns = plain.usual.step_ns
    if not found or not len(steps):
        return idle
    notes = trace.annotations
    times = host_times(trace, device, notes.start_ns[steps.row], notes.end_ns[steps.row])
    shown = pieces = idle.parts(*cut_at(idle.start_ns, idle.end_ns, [steps.start_ns, steps.end_ns]))
    for amount in found:
        left = np.full(len(steps), amount.share * whole_ns)
        if amount.anywhere:
            waited = _by_step(shown, steps, amount.taken_from)
            whole = sum(
                (times[f"host:{cause.replace('-', '_')}"] for cause in WORK_CAUSES if times),
                np.zeros(len(steps), np.int64),
            )
            # A host that runs ahead may mark more work than fits into the step on the device.
            whole = np.minimum(whole, steps.end_ns - steps.start_ns)
            left *= np.clip(waited / np.maximum(np.maximum(whole, waited), 1), 0, 1)
        wanted = np.rint(left).astype(np.int64)
        for cause in amount.taken_from:
            pieces, taken = _taken(pieces, steps, cause, amount.cause, wanted)
            wanted = wanted - taken
    return pieces


def _of(pieces: IdleTime, causes: tuple[IdleCause, ...]) -> Bool:
    return among(pieces.cause, [RANK[cause] for cause in causes])


def _by_step(pieces: IdleTime, steps: Periods, causes: tuple[IdleCause, ...]) -> F64:
    """Return the time of some causes in each step."""
    step = steps.at(pieces.start_ns)
    counted = (step >= 0) & _of(pieces, causes)
    return np.bincount(step[counted], pieces.length_ns[counted], len(steps)).astype(np.float64)


def _taken(pieces: IdleTime, steps: Periods, cause: IdleCause, instead: IdleCause, wanted: I64) -> tuple[IdleTime, I64]:
    """Give a part of a cause's time to another cause, the longest pieces first.

    Returns:
        The pieces, and the time given in each step.
    """
    step = steps.at(pieces.start_ns)
    rows = np.flatnonzero((step >= 0) & _of(pieces, (cause,)))
    length = pieces.length_ns[rows]
    order = np.lexsort((pieces.start_ns[rows], -length, step[rows]))
    rows, length = rows[order], length[order]
    number = step[rows]
    allotted = first_part(wanted[number], number, length)
    granted = np.zeros(len(pieces), np.int64)
    granted[rows] = allotted
    changed = np.flatnonzero(granted)
    part = pieces.take(changed)
    part = replace(
        part,
        end_ns=part.start_ns + granted[changed],
        cause=np.full(len(part), RANK[instead], part.cause.dtype),
        confidence=np.full(len(part), LOW, part.confidence.dtype),
        call=np.full(len(part), -1),
    )
    rest = pieces.parts(np.arange(len(pieces)), pieces.start_ns + granted, pieces.end_ns)
    return IdleTime.in_order([part, rest]), np.bincount(number, allotted, len(steps)).astype(np.int64)


# -- The average step of the launching thread, by line and by cause ----------------------------------

_MAX_LINES = 20
_NOT_SAMPLED = (IdleCause.DATA_LOADING, IdleCause.PYTHON, IdleCause.UNRECORDED)
"""Causes that the recording itself shows of a host without a GPU, and what nothing shows."""


def sampled_step(trace: Trace, host: HostUse | None = None) -> SampledStep | None:
    """Return the launching thread's time by line and by cause; None without samples and facts.

    Without a GPU, it is the step on the host (`host`) that is divided.
    """
    activity = trace.host_activity
    if not activity:
        return None
    if host is not None:
        frame = host.frame()
        waits = {cause: ns for cause, ns in frame.idle_by_cause.items() if ns and cause not in _NOT_SAMPLED}
        return SampledStep(step_ns=frame.span_ns, lines=_lines(activity, frame.span_ns), by_cause=waits)
    facts, step = activity.facts, step_ns(trace)
    by_cause = {str(amount.cause): round(amount.share * step) for amount in amounts(activity)}
    if facts.gc_pause_ns and facts.span_ns:
        by_cause[IdleCause.GC_PAUSE] = round(facts.gc_pause_ns * step / facts.span_ns)
    return SampledStep(
        step_ns=round(step), lines=_lines(activity, step), by_cause={cause: ns for cause, ns in by_cause.items() if ns}
    )


def _lines(activity: HostActivity, step_ns: float) -> tuple[LineTime, ...]:
    """Return the lines with the most samples; lines of the same place count together."""
    whole = activity.main_samples
    samples: Counter[str] = Counter()
    first: dict[str, HostLine] = {}
    for line in host_lines(activity):
        if line.place and line.line:
            samples[line.place] += line.samples
            first.setdefault(line.place, line)
    return tuple(
        LineTime(
            line=place,
            function=first[place].function,
            calls=first[place].called,
            time_ns=round(step_ns * count / whole),
        )
        for place, count in samples.most_common(_MAX_LINES)
    )
