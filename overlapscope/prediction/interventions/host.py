"""The host does less: no waits for a DataLoader, no pauses for garbage, no work of a kind.

Other changes take time from the host by the same functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.host_lines import most_python
from overlapscope.analysis.host_order import find_calls
from overlapscope.analysis.host_sampled import SAMPLED_CAUSES, WORK_CAUSES, amounts, whole_cpus
from overlapscope.analysis.host_work import Launcher, backward_threads, gc_pauses, launching_thread
from overlapscope.base.columns import F64, I64, pick
from overlapscope.base.grouping import distinct
from overlapscope.base.intervals import covered
from overlapscope.base.kept import kept
from overlapscope.base.words import duration, plural
from overlapscope.catalog.causes import IdleCause
from overlapscope.prediction.graph import Graph, by_thread
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.interventions import Applied, Request
from overlapscope.prediction.overhead import work_inside
from overlapscope.prediction.steps import step_of_calls
from overlapscope.trace.host import SINGLE_PROCESS_LOADER, loading, on_thread
from overlapscope.trace.model import HostEvents, Trace

NOTHING = np.empty(0, np.int64)
LONG_WORK_NS = 1_000_000
"""Minimum length of host work between two calls that is more than Python's time from op to op."""


@kept()
def time_in_events(trace: Trace, find: Callable[[Trace], HostEvents]) -> I64:
    """Return how much of the work before each call is inside the found host events of its thread, in ns."""
    calls, events = find_calls(trace).calls, find(trace)
    inside = np.zeros(len(calls), np.int64)
    for thread, of_thread in by_thread(trace):
        inside[of_thread] = covered(on_thread(events, thread), calls.since_ns[of_thread], calls.start_ns[of_thread])
    return inside


def part_of_work(graph: Graph, request: Request, work: F64, share: float) -> float:
    """Return which part of the host's work, given for each call, takes a share of an average plain step; at most 1."""
    step = step_of_calls(graph, request.judged)
    steps = int(step.max(initial=-1)) + 1
    work_ns = float(work[step >= 0].sum())
    return min(1.0, steps * share * request.plain_ns / work_ns) if work_ns > 0 else 0.0


class RemovedHostTime(NamedTuple):
    """A graph without some time of the host."""

    graph: Graph
    calls: I64
    """Calls that lost work before them, or their length."""
    host_ns: int
    """Removed time."""


def without_time_in(graph: Graph, events: HostEvents) -> RemovedHostTime:
    """Remove what threads did inside host events of theirs: work between calls, and whole calls."""
    if not len(events):
        return RemovedHostTime(graph, NOTHING, 0)
    calls = graph.calls
    new = calls.copied("before_ns", "length_ns", "handed_by", "release_ns")
    removed_ns, gone = np.zeros(len(calls), np.int64), np.zeros(len(calls), np.bool_)
    for thread, rows in graph.by_thread():
        inside, of_thread = on_thread(events, thread), calls.take(rows)
        handed_over_ns = pick(calls.end_ns, of_thread.handed_by, 0)
        # A thread no longer waits for a handover that happened while it was inside.
        freed = (of_thread.handed_by >= 0) & (covered(inside, handed_over_ns, handed_over_ns + 1) > 0)
        new.handed_by[rows[freed]] = -1
        if freed[0]:
            # A thread's first call then comes after nothing, and stays where it was.
            new.release_ns[rows[0]] = of_thread.start_ns[0]
        since = np.where(freed, np.append(of_thread.start_ns[:1], of_thread.end_ns[:-1]), of_thread.since_ns)
        measured = of_thread.start_ns - of_thread.since_ns
        # Earlier interventions may have left only a part of the measured work.
        part = np.where(measured > 0, of_thread.before_ns / np.maximum(measured, 1), 1.0)
        before = np.where(freed, np.rint(part * (of_thread.start_ns - since)).astype(np.int64), of_thread.before_ns)
        removed_ns[rows] = np.rint(part * covered(inside, since, of_thread.start_ns))
        new.before_ns[rows] = before - removed_ns[rows]
        gone[rows] = covered(inside, of_thread.start_ns, of_thread.end_ns) == of_thread.end_ns - of_thread.start_ns
    new.length_ns[gone] = 0
    changed = replace(graph, calls=new, waits=graph.waits.take(~gone[graph.waits.call]))
    return RemovedHostTime(
        changed, np.flatnonzero((removed_ns > 0) | gone), int(removed_ns.sum() + calls.length_ns[gone].sum())
    )


# -- No garbage collection ---------------------------------------------------------------------------


def no_gc(graph: Graph, request: Request) -> Applied:
    """Remove the pauses of Python's garbage collector."""
    pauses = gc_pauses(graph.trace)
    changed, calls, removed_ns = without_time_in(graph, pauses)
    what = f"{plural(len(pauses), 'pause')} of the garbage collector disappear, {duration(removed_ns)} in all."
    return Applied(changed, calls, len(pauses) if removed_ns else 0, what)


# -- A DataLoader that is always ready ---------------------------------------------------------------


def faster_loader(graph: Graph, request: Request) -> Applied:
    """Remove the waits for a DataLoader."""
    notes = loading(graph.trace)
    changed, calls, removed_ns = without_time_in(graph, notes)
    least = graph
    if removed_ns and notes.named(lambda name: SINGLE_PROCESS_LOADER in name).all():
        cpus = whole_cpus(graph.trace.host_activity)
        if request.stance == Stance.WORST:
            least = without_time_in(graph, _beside_the_steps(notes, 1)).graph
        elif request.stance == Stance.EXPECTED and cpus is not None:
            changed, calls, removed_ns = without_time_in(graph, _beside_the_steps(notes, cpus))
    what = (
        f"{plural(len(notes), 'batch')} are ready when the program asks for them: {duration(removed_ns)} of waiting "
        "disappear."
    )
    if request.stance == Stance.WORST:
        # At worst, more workers load no faster; the first worker at least works beside the steps.
        changed = least
    return Applied(changed, calls, len(notes) if removed_ns else 0, what)


def _beside_the_steps(notes: HostEvents, workers: int) -> HostEvents:
    """Return the part of each loading that workers, each as fast as the thread, do while the thread runs the step.

    A worker begins a batch when the batch before it is fetched. So each of N workers has N steps for a batch.
    """
    end_ns = notes.end_ns.copy()
    for thread in distinct(notes.thread).tolist():
        rows = np.flatnonzero(notes.thread == thread)
        before_ns = np.append(notes.start_ns[rows][:1], notes.end_ns[rows][:-1])
        step_ns = np.maximum(notes.start_ns[rows] - before_ns, 0)
        # The recording begins in the middle of the program.
        step_ns[:1] = step_ns[1:2].sum()
        length_ns = notes.end_ns[rows] - notes.start_ns[rows]
        end_ns[rows] -= np.maximum(-(-length_ns // workers) - step_ns, 0)
    return replace(notes, end_ns=end_ns)


# -- Work of one kind done elsewhere -----------------------------------------------------------------


def less_host(graph: Graph, request: Request) -> Applied:
    """Remove work of a kind from between calls."""
    cause = IdleCause(request.argument or "")
    inside = _inside(graph, cause, request)
    calls = np.flatnonzero(np.rint(inside) > 0)
    removed_ns = int(np.rint(inside).sum())
    what = f"{duration(removed_ns)} of {cause} between launches disappear."
    if request.stance == Stance.WORST and cause not in SAMPLED_CAUSES:
        inside = np.zeros(len(inside))  # work of the program stays where it is
    new = graph.calls.copied("before_ns")
    new.before_ns[:] -= np.rint(inside).astype(np.int64)
    why_not = ""
    if not len(calls) and cause not in SAMPLED_CAUSES and _shown(graph, cause).any():
        why_not = f"samples of the program without the profiler show no {cause} in a function"
    return Applied(replace(graph, calls=new), calls, len(calls), what, why_not=why_not)


def _inside(graph: Graph, cause: IdleCause, request: Request) -> F64:
    """Return how much of the work before each call is of a cause."""
    sampled = {amount.cause: amount for amount in amounts(graph.trace.host_activity)}
    if cause in sampled:
        amount = sampled[cause]
        shown = {each: _shown(graph, each) for each in WORK_CAUSES}
        work = np.sum([shown[each] for each in amount.taken_from], axis=0)
        spread = np.sum(list(shown.values()), axis=0) if amount.anywhere else work
        share = {Stance.BEST: amount.high, Stance.WORST: amount.low}.get(request.stance, amount.share)
        part = part_of_work(graph, request, spread, share)
        return part * work if amount.anywhere else _longest_first(graph, request, work, part)
    work, activity = _shown(graph, cause), graph.trace.host_activity
    if cause != IdleCause.PYTHON or not activity.main_stacks or request.stance == Stance.BEST:
        return work
    # Python of the model's own layers stays.
    return _longest_first(graph, request, work, part_of_work(graph, request, work, most_python(activity)))


def _longest_first(graph: Graph, request: Request, work: F64, part: float) -> F64:
    """Return the part of each step's work, taken from its longest stretches first."""
    step = step_of_calls(graph, request.judged) + 1
    order = np.lexsort((-work, step))
    number, length = step[order], work[order]
    before = np.cumsum(length) - length
    before -= before[np.searchsorted(number, number, side="left")]
    given = np.zeros(len(work))
    given[order] = np.clip(part * np.bincount(step, work)[number] - before, 0, length)
    return given


@kept()
def _shown(graph: Graph, cause: IdleCause) -> F64:
    """Return how much of the work before each call is of a cause that the recording shows."""
    trace = graph.trace
    main = launching_thread(trace)
    backward = [thread for thread in backward_threads(trace).tolist() if thread != main]
    inside = np.zeros(len(graph.calls))
    for thread, rows in graph.by_thread():
        companion = main if thread in backward else next(iter(backward), thread)
        launcher = Launcher(trace, thread, thread if companion is None else companion)
        inside[rows] = work_inside(graph, thread, rows, launcher.time_of(cause))
    return inside
