"""The host does less: no waits for a DataLoader, no pauses for garbage, no work of a kind."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.host_lines import most_python
from overlapscope.analysis.host_sampled import SAMPLED, WORK, amounts, whole_cpus
from overlapscope.analysis.host_work import Launcher, backward_threads, gc_pauses, launching_thread
from overlapscope.base.columns import F64
from overlapscope.base.grouping import distinct
from overlapscope.base.kept import kept
from overlapscope.base.words import duration, plural
from overlapscope.catalog.causes import IdleCause
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.host_clock import work_inside
from overlapscope.prediction.interventions import Applied, Request
from overlapscope.prediction.interventions._changes import part_of_steps, without_time_in
from overlapscope.prediction.steps import step_of_calls
from overlapscope.trace.host import ALONE, loading
from overlapscope.trace.model import HostEvents

# -- No garbage collection ---------------------------------------------------------------------------


def no_gc(graph: Graph, request: Request) -> Applied:
    """Remove the pauses of Python's garbage collector."""
    pauses = gc_pauses(graph.trace)
    changed, calls, spared = without_time_in(graph, pauses)
    what = f"{plural(len(pauses), 'pause')} of the garbage collector disappear, {duration(spared)} in all."
    return Applied(changed, calls, len(pauses) if spared else 0, what)


# -- A DataLoader that is always ready ---------------------------------------------------------------


def faster_loader(graph: Graph, request: Request) -> Applied:
    """Remove the waits for a DataLoader."""
    notes = loading(graph.trace)
    changed, calls, spared = without_time_in(graph, notes)
    least = graph
    if spared and notes.named(lambda name: ALONE in name).all():
        cpus = whole_cpus(graph.trace.host_activity)
        if request.stance == Stance.WORST:
            least = without_time_in(graph, _beside_the_steps(notes, 1)).graph
        elif request.stance == Stance.EXPECTED and cpus is not None:
            changed, calls, spared = without_time_in(graph, _beside_the_steps(notes, cpus))
    what = (
        f"{plural(len(notes), 'batch')} are ready when the program asks for them: {duration(spared)} of waiting "
        "disappear."
    )
    if request.stance == Stance.WORST:
        # At worst, more workers load no faster; the first worker at least works beside the steps.
        changed = least
    return Applied(changed, calls, len(notes) if spared else 0, what)


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
    spared = int(np.rint(inside).sum())
    what = f"{duration(spared)} of {cause} between launches disappear."
    if request.stance == Stance.WORST and cause not in SAMPLED:
        inside = np.zeros(len(inside))  # work of the program stays where it is
    new = graph.calls.copied("before_ns")
    new.before_ns[:] -= np.rint(inside).astype(np.int64)
    why_not = ""
    if not len(calls) and cause not in SAMPLED and _shown(graph, cause).any():
        why_not = f"samples of the program without the profiler show no {cause} in a function"
    return Applied(replace(graph, calls=new), calls, len(calls), what, why_not=why_not)


def _inside(graph: Graph, cause: IdleCause, request: Request) -> F64:
    """Return how much of the work before each call is of a cause."""
    sampled = {amount.cause: amount for amount in amounts(graph.trace.host_activity)}
    if cause in sampled:
        amount = sampled[cause]
        shown = {each: _shown(graph, each) for each in WORK}
        work = np.sum([shown[each] for each in amount.taken_from], axis=0)
        spread = np.sum(list(shown.values()), axis=0) if amount.anywhere else work
        share = {Stance.BEST: amount.high, Stance.WORST: amount.low}.get(request.stance, amount.share)
        part = part_of_steps(graph, request, spread, share)
        return part * work if amount.anywhere else _longest_first(graph, request, work, part)
    work, activity = _shown(graph, cause), graph.trace.host_activity
    if cause != IdleCause.PYTHON or not activity.main_stacks or request.stance == Stance.BEST:
        return work
    # Python of the model's own layers stays.
    return _longest_first(graph, request, work, part_of_steps(graph, request, work, most_python(activity)))


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
