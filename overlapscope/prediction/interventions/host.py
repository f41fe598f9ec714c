"""The host does less: no waits in calls, for copies or a DataLoader, no pauses for garbage, no work of a kind.

Other changes take time from the host by the same functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.host_order import find_calls
from overlapscope.analysis.host_work import Launcher, backward_threads, gc_pauses, launching_thread
from overlapscope.base.columns import F64, I64, pick
from overlapscope.base.grouping import among, distinct
from overlapscope.base.intervals import covered
from overlapscope.base.kept import kept
from overlapscope.base.words import duration, plural
from overlapscope.catalog.causes import SAMPLED_CAUSES, WORK_CAUSES, IdleCause
from overlapscope.prediction.graph import Graph, Waits, by_thread
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.interventions import Applied, Request
from overlapscope.prediction.steps import step_of_calls
from overlapscope.trace import calls as call_kinds
from overlapscope.trace.host import find_blocking, inside_named, loading, on_thread, op_of, without_workers
from overlapscope.trace.model import HostEvents, Kind, Memory, Trace

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


_NEXT_NS = 20_000
"""Maximum time between a copy's call and a synchronize by the same op, for it to be the copy's own
(ATen/native/cuda/Copy.cu)."""
_OWN_NS = 5_000
"""Maximum of that time if no ops were recorded. Seen: 0.15 to 4 us inside `copy_`, and 7 us or more for Python code."""
_VALUE_BYTES = 16
"""Maximum size of a download that reads a value: `item()` copies and waits as `copy_` does."""


# -- A blocking call returns at once -----------------------------------------------------------------


def no_sync(graph: Graph, request: Request) -> Applied:
    """Let blocking calls of a name return at once."""
    calls, runtime = graph.calls, graph.trace.runtime_calls
    blocks = np.flatnonzero(among(calls.row, find_blocking(graph.trace).row))
    rows = calls.row[blocks]
    call_name = request.argument or ""
    called = runtime.named(lambda name: name == call_name)[rows]
    named = blocks[called | inside_named(graph.trace, call_name, runtime.thread[rows], runtime.start_ns[rows])]
    if request.stance == Stance.WORST:
        # At worst, the host needs the result of the wait.
        return Applied(graph, named, len(named), "The calls still wait.")
    new_calls = calls.copied("length_ns")
    new_calls.length_ns[named] = np.minimum(calls.length_ns[named], graph.constants.sync_call_ns or 0)
    waits = graph.waits.take(~among(graph.waits.call, named))
    changed = replace(graph, calls=new_calls, waits=waits)
    waited = (calls.end_ns - calls.start_ns)[named].sum()
    what = f"{plural(len(named), 'call')} of {call_name} that took {duration(waited)} in total return at once."
    return Applied(changed, named, len(named), what)


# -- Copies do not block -----------------------------------------------------------------------------


def non_blocking(graph: Graph, request: Request) -> Applied:
    """Remove the waits for copies."""
    items, calls = graph.items, graph.calls
    runtime = graph.trace.runtime_calls
    copied = np.flatnonzero(items.is_copy & ~items.gone & (items.call >= 0))
    waits = waits_of_copies(graph)
    # cudaMemcpy and similar calls wait by contract; cudaMemcpyAsync from pinned memory does not.
    pinned = copied[items.host_memory[copied] == Memory.PINNED]
    blocking = items.call[pinned][call_kinds.copies_blocking(runtime)[calls.row][items.call[pinned]]]
    if request.stance == Stance.WORST:
        # The host reads downloads, so their waits stay.
        down = graph.waits.call[items.kind[graph.waits.item] == Kind.D2H]
        waits, blocking = waits[~among(waits, down)], blocking[~among(blocking, down)]
    is_synchronize = among(graph.waits.call, waits)
    is_copy_call = among(graph.waits.call, blocking) & (items.call[graph.waits.item] == graph.waits.call)
    new_calls = calls.copied("before_ns", "length_ns")
    waited = (calls.end_ns - calls.start_ns)[waits].sum()
    # At worst, the call's own time returns as host time elsewhere.
    new_calls.length_ns[waits] = (graph.constants.sync_call_ns or 0) if request.stance == Stance.WORST else 0
    new_calls.before_ns[waits] = 0
    new_calls.length_ns[blocking] = np.minimum(new_calls.length_ns[blocking], graph.constants.copy_call_ns or 0)
    changed = replace(graph, calls=new_calls, waits=graph.waits.take(~(is_synchronize | is_copy_call)))
    if request.stance == Stance.EXPECTED:
        dropped = graph.waits.take(is_synchronize | is_copy_call)
        changed = replace(changed, waits=Waits.joined([changed.waits, _read_by_host(graph, dropped)]))
    touched = distinct(np.concatenate([waits, blocking]))
    what = f"{plural(len(touched), 'wait')} after copies, {duration(waited)} in total, no longer happen."
    return Applied(changed, touched, len(touched), what)


def _read_by_host(graph: Graph, dropped: Waits) -> Waits:
    """Return the waits that remain: a download must end before the host next works for long by itself.

    Any such work, except a DataLoader's, is assumed to need the data, as kernels are assumed to need uploads.
    """
    items, calls = graph.items, graph.calls
    since = calls.since_ns
    works = calls.start_ns - since - time_in_events(graph.trace, loading)
    long = np.flatnonzero(works >= LONG_WORK_NS)
    long = long[np.argsort(since[long], kind="stable")]
    downloads = dropped.take(items.kind[dropped.item] == Kind.D2H)
    reader = np.searchsorted(since[long], calls.end_ns[downloads.call])
    read = reader < len(long)
    # The call before the work returns when the data has arrived.
    before = np.where(calls.handed_by >= 0, calls.handed_by, graph.calls.previous)[long[reader[read]]]
    waits = Waits.of(before, downloads.item[read], graph.constants.return_ns or 0)
    return waits.take(before >= 0)


def waits_of_copies(graph: Graph, *, values: bool = False) -> I64:
    """Return the synchronizes that a copy's op made right after it, as `copy_` does unless non_blocking.

    With `values`, also those of ops that read a value, as `item()` does.
    """
    calls, items = graph.calls, graph.items
    syncs = call_kinds.synchronises(graph.trace.runtime_calls)[calls.row]
    previous = graph.calls.previous
    behind = syncs & pick(graph.launching(items.is_copy & ~items.gone), previous, False)
    waits = np.flatnonzero(behind & (calls.start_ns - pick(calls.end_ns, previous, 0) <= _NEXT_NS))
    copy = previous[waits]
    if values:
        return waits
    ops = graph.trace.cpu_ops
    if len(ops):
        # Both calls are inside the same `copy_`, unlike those of `item()`, which reads a value.
        inside = op_of(graph.trace, calls.row[copy])
        is_own = pick(ops.named(lambda name: name == "aten::copy_"), inside, False)
        return waits[is_own & (pick(ops.end_ns, inside, 0) >= calls.end_ns[waits])]
    read = items.call[(items.kind == Kind.D2H) & (items.bytes <= _VALUE_BYTES)]
    return waits[(calls.start_ns[waits] - calls.end_ns[copy] <= _OWN_NS) & ~among(copy, read)]


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
    if removed_ns and len(without_workers(notes)) == len(notes):
        cpus = graph.trace.host_activity.facts.whole_cpus
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
    if not len(calls) and cause in SAMPLED_CAUSES and not graph.trace.host_activity:
        why_not = f"the host was not sampled, so its {cause} is unknown"
    elif not len(calls) and _shown(graph, cause).any():
        why_not = f"samples of the program without the profiler show no {cause} in a function"
    return Applied(replace(graph, calls=new), calls, len(calls), what, why_not=why_not)


def _inside(graph: Graph, cause: IdleCause, request: Request) -> F64:
    """Return how much of the work before each call is of a cause."""
    activity = graph.trace.host_activity
    if not activity:
        return _shown(graph, cause)
    from overlapscope.analysis.host_lines import most_python
    from overlapscope.analysis.host_sampled import amounts

    sampled = {amount.cause: amount for amount in amounts(activity)}
    if cause in sampled:
        amount = sampled[cause]
        shown = {each: _shown(graph, each) for each in WORK_CAUSES}
        work = np.sum([shown[each] for each in amount.taken_from], axis=0)
        spread = np.sum(list(shown.values()), axis=0) if amount.anywhere else work
        share = {Stance.BEST: amount.high, Stance.WORST: amount.low}.get(request.stance, amount.share)
        part = part_of_work(graph, request, spread, share)
        return part * work if amount.anywhere else _longest_first(graph, request, work, part)
    work = _shown(graph, cause)
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
    """Return how much of the work before each call is of a cause that the recording shows; samples show the others."""
    if cause in SAMPLED_CAUSES:
        return np.zeros(len(graph.calls))
    # Calls that don't wait need no clock.
    from overlapscope.prediction.overhead import work_inside

    trace = graph.trace
    main = launching_thread(trace)
    backward = [thread for thread in backward_threads(trace).tolist() if thread != main]
    inside = np.zeros(len(graph.calls))
    for thread, rows in graph.by_thread():
        companion = main if thread in backward else next(iter(backward), thread)
        launcher = Launcher(trace, thread, thread if companion is None else companion)
        inside[rows] = work_inside(graph, thread, rows, launcher.time_of(cause))
    return inside
