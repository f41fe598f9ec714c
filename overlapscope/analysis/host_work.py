"""Activity of launching threads outside of waits: ops on the CPU, dispatch, Python's garbage collector, and Python.

A thread is in *dispatch* inside runtime calls and inside ops that launch, make views or allocate. In short pauses
between two nodes of a backward pass autograd's engine works in C++, which is dispatch, too. *Ops on the CPU* launch
nothing. Everything else is Python: time outside any op, and time in an op that runs a Python function, outside the ops
in it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from overlapscope.analysis.calls import launching
from overlapscope.analysis.host import (
    find_blocking,
    innermost_pieces,
    inside_with,
    loading,
    on_thread,
    rows_by_thread,
    rows_of,
)
from overlapscope.analysis.periods import is_gc_pause
from overlapscope.base.columns import mask_of
from overlapscope.base.grouping import among, distinct
from overlapscope.base.intervals import (
    EMPTY,
    I64,
    Bool,
    Intervals,
    complement,
    contains,
    covered,
    join,
    outermost,
    subtract,
    union,
)
from overlapscope.base.kept import kept
from overlapscope.catalog.causes import IdleCause
from overlapscope.trace import op_names
from overlapscope.trace.model import HostEvents, Trace

LONG_OP_NS = 100_000
"""Minimum length of a CPU op without runtime calls that counts as work on the CPU, whatever its name, unless it makes
views."""

_COLLECT = "<built-in function collect>"
"""Frame of `gc.collect`."""

_LONGEST_IN_ENGINE_NS = 200_000
"""Maximum time between two nodes of a backward pass in which autograd's engine works; it takes microseconds."""


class HostWork(Struct, frozen=True, eq=False):
    """Activity of a launching thread outside of waits. Times in `cpu_ops` may be in `dispatch`, too."""

    pause: Intervals
    """Pauses by Python's garbage collector on the thread."""
    pause_elsewhere: Intervals
    """Pauses on other threads, where this thread is inside no op or call: a collection holds the interpreter."""
    cpu_ops: Intervals
    dispatch: Intervals


class _ThreadWork(Struct, frozen=True, eq=False):
    """Activity of one thread by itself."""

    busy: Intervals
    """Time inside any op or call."""
    cpu_ops: Intervals
    dispatch: Intervals


def work_of(trace: Trace, thread: int, companion: int) -> HostWork:
    """Return the activity of a launching thread; that of its companion where the thread itself shows none."""
    main = _work_of_thread(trace, thread)
    pauses = gc_pauses(trace)
    pause = on_thread(pauses, thread)
    if companion == thread:
        rest, cpu_ops, dispatch = main.busy, main.cpu_ops, main.dispatch
    else:
        other = _work_of_thread(trace, companion)
        rest = join(main.busy, other.busy)
        cpu_ops = join(main.cpu_ops, subtract(other.cpu_ops, main.busy))
        dispatch = join(main.dispatch, subtract(other.dispatch, main.busy))
        pause = join(pause, subtract(on_thread(pauses, companion), main.busy))
    elsewhere = subtract(union(pauses.start_ns, pauses.end_ns), rest)
    return HostWork(pause, elsewhere, cpu_ops, dispatch)


def time_of(trace: Trace, thread: int, companion: int, cause: IdleCause) -> Intervals:
    """Return when a launching thread, or its companion while the thread shows nothing, was in `python` or `cpu-ops`."""
    work = work_of(trace, thread, companion)
    if cause == IdleCause.CPU_OPS:
        return work.cpu_ops
    if cause == IdleCause.DISPATCH:
        return subtract(work.dispatch, work.cpu_ops)
    tables = (trace.overheads, loading(trace))
    others = [inside_with(trace, thread, companion, table) for table in tables]
    busy = join(work.pause, work.pause_elsewhere, work.cpu_ops, work.dispatch, *others)
    ends = (trace.cpu_ops.end_ns, trace.runtime_calls.end_ns)
    starts = (trace.cpu_ops.start_ns, trace.runtime_calls.start_ns)
    begin, end = min(int(each.min(initial=2**62)) for each in starts), max(int(each.max(initial=0)) for each in ends)
    return complement(busy, begin, end) if shows_ops(trace, thread, companion) else EMPTY


def shows_ops(trace: Trace, *threads: int) -> bool:
    """Return whether ops of any of the threads were recorded, so that dispatch and Python differ."""
    return any(len(rows_of(_operators(trace), thread)) for thread in threads)


@kept()
def _operators(trace: Trace) -> HostEvents:
    """Return the CPU ops outside of which a thread is in Python. Nsight Systems has calls of libraries among them."""
    return trace.cpu_ops.take(trace.cpu_ops.named(op_names.is_operator)) if trace.recorder == "nsys" else trace.cpu_ops


@kept()
def gc_pauses(trace: Trace) -> HostEvents:
    """Return the pauses by Python's garbage collector that the recorder noted, or else those that the program called.

    Without the recorder's marks, Python's own collections are unknown.
    """
    noted = _noted_pauses(trace)
    return noted if len(noted) else called_collections(trace)


@kept()
def _noted_pauses(trace: Trace) -> HostEvents:
    noted = [table.take(is_gc_pause(table)) for table in (trace.annotations, trace.cpu_ops)]
    return next((pauses for pauses in noted if len(pauses)), noted[0])


@kept()
def called_collections(trace: Trace) -> HostEvents:
    """Return the calls of `gc.collect`, which recordings with stacks have."""
    return trace.python_frames.take(trace.python_frames.named(_COLLECT.__eq__))


@kept()
def long_ops(trace: Trace) -> HostEvents:
    """Return CPU ops of at least `LONG_OP_NS` in which their thread makes no runtime call.

    Python functions and ops that make views don't count.
    """
    ops = trace.cpu_ops
    long = ops.end_ns - ops.start_ns >= LONG_OP_NS
    return ops.take(long & _silent(trace) & ~_runs_python(trace) & ~_makes_views(trace) & ~is_gc_pause(ops))


@kept()
def _silent(trace: Trace) -> Bool:
    """Select the CPU ops in which their thread makes no runtime call."""
    ops, calls = trace.cpu_ops, trace.runtime_calls
    silent = np.ones(len(ops), np.bool_)
    for thread, of_thread in rows_by_thread(ops).items():
        called = calls.start_ns[rows_of(calls, thread)]
        first = np.searchsorted(called, ops.start_ns[of_thread], side="left")
        silent[of_thread] = first == np.searchsorted(called, ops.end_ns[of_thread], side="left")
    return silent


@kept()
def _runs_python(trace: Trace) -> Bool:
    """Return a mask of the CPU ops that run a Python function: their names are of no op, and they have ops inside.

    A name alone doesn't tell: one without ops inside may be any range.
    """
    ops = trace.cpu_ops
    result = np.zeros(len(ops), np.bool_)
    if trace.framework != "pytorch":
        return result
    named = ops.named(op_names.may_run_python)
    for _, of_thread in rows_by_thread(ops).items() if named.any() else ():
        # Ops of equal start stand longest first, so those inside an op follow it.
        following = np.searchsorted(ops.start_ns[of_thread], ops.end_ns[of_thread], side="left")
        result[of_thread] = named[of_thread] & (following > np.arange(len(of_thread)) + 1)
    return result


@kept()
def _makes_views(trace: Trace) -> Bool:
    """Return a mask of the CPU ops that only make views or read properties, or that mostly do that or allocate.

    For example, `aten::unflatten_dense_tensors` makes a view of each tensor, on whatever device the tensors are.
    """
    ops, works = trace.cpu_ops, trace.cpu_ops.named(op_names.works)
    quiet = _silent(trace) & ~works & ops.named(lambda name: name.startswith("aten::"))
    long_allocation = ops.named(op_names.allocates) & (ops.end_ns - ops.start_ns >= LONG_OP_NS)
    result = np.zeros(len(ops), np.bool_)
    for _, rows in rows_by_thread(ops).items() if quiet.any() else ():
        starts, ends = ops.start_ns[rows], ops.end_ns[rows]
        # Ops of equal start stand longest first, so those inside an op follow it.
        working = np.append(0, np.cumsum((works | long_allocation)[rows]))
        inside = working[np.searchsorted(starts, ends, side="left")] - working[1:]
        views = quiet[rows] & (inside == 0) & ~long_allocation[rows]
        mostly = 2 * covered(union(starts[views], ends[views]), starts, ends) > ends - starts
        result[rows] = views | works[rows] & mostly
    return result


@kept()
def _cpu_work(trace: Trace) -> HostEvents:
    """Return the CPU ops that are work on the CPU.

    These compute, make no runtime call, and lie in no op that makes any. Long ops count, too, whatever is around them.
    Ops that mostly make views don't count.
    """
    ops, silent = trace.cpu_ops, _silent(trace)
    computes = silent & ops.named(op_names.works) & ~_makes_views(trace)
    arranges = _runs_python(trace) | ops.named(op_names.is_engine)
    for _, rows in rows_by_thread(ops).items() if computes.any() else ():
        loud = rows[~(silent | arranges)[rows]]
        computes[rows] &= ~contains(union(ops.start_ns[loud], ops.end_ns[loud]), ops.start_ns[rows])
    return HostEvents.joined([ops.take(computes), long_ops(trace)])


@kept()
def _work_of_thread(trace: Trace, thread: int) -> _ThreadWork:
    ops, calls = trace.cpu_ops, trace.runtime_calls
    inside_ops, inside_calls = on_thread(ops, thread), on_thread(calls, thread)
    work = _cpu_work(trace)
    cpu_ops = on_thread(work, thread)
    dispatch = join(subtract(inside_ops, _in_python(trace, thread)), inside_calls, _between_nodes(trace, thread))
    return _ThreadWork(join(inside_ops, inside_calls), cpu_ops, dispatch)


def _in_python(trace: Trace, thread: int) -> Intervals:
    """Return the time inside ops of a thread that is Python's: in Python functions, outside the ops that these call."""
    ops, frames = trace.cpu_ops, trace.python_frames
    rows = rows_of(ops, thread)
    python = (_runs_python(trace) | is_gc_pause(ops))[rows]
    starts, ends = ops.start_ns[rows], ops.end_ns[rows]
    called = rows_of(frames, thread)
    if len(called):
        # Hooks of autograd and ops that are written in Python have frames that begin inside an op.
        within = contains(union(starts, ends), frames.start_ns[called])
        called = called[within]
        starts = np.concatenate([starts, frames.start_ns[called]])
        ends = np.concatenate([ends, frames.end_ns[called]])
        python = np.append(python, np.ones(len(called), np.bool_))
        order = np.lexsort((-ends, starts))
        starts, ends, python = starts[order], ends[order], python[order]
    if not python.any():
        return EMPTY
    begin, end, innermost = innermost_pieces(starts, ends)
    return union(begin[python[innermost]], end[python[innermost]])


def _between_nodes(trace: Trace, thread: int) -> Intervals:
    """Return the time between nodes of the same backward pass on a thread, in which autograd's engine works.

    A pass ends where another op begins on this thread, or on the thread that launches most of the rest. In a longer
    pause a hook runs that shows no op, or the engine waits.
    """
    ops = trace.cpu_ops
    rows = rows_of(ops, thread)
    node = ops.named(op_names.is_engine)[rows]
    if not node.any():
        return EMPTY
    starts, ends = ops.start_ns[rows], ops.end_ns[rows]
    outer = outermost(starts, ends, starts) == np.arange(len(rows))
    starts, ends, node = starts[outer], np.maximum.accumulate(ends[outer]), node[outer]
    pause = starts[1:] - ends[:-1]
    same = node[1:] & node[:-1] & (pause > 0) & (pause <= _LONGEST_IN_ENGINE_NS)
    begin, stop = ends[:-1][same], starts[1:][same]
    driver = launching_thread(trace)
    if driver is not None and driver != thread:
        # Both are in order, which a stable sort makes use of.
        starts_of_driver = [table.start_ns[rows_of(table, driver)] for table in (ops, trace.runtime_calls)]
        others = np.sort(np.concatenate(starts_of_driver), kind="stable")
        undisturbed = np.searchsorted(others, begin) == np.searchsorted(others, stop)
        begin, stop = begin[undisturbed], stop[undisturbed]
    return union(begin, stop)


@kept()
def backward_threads(trace: Trace) -> I64:
    """Return the threads that run nodes of a backward pass."""
    return distinct(trace.cpu_ops.thread[trace.cpu_ops.named(op_names.is_engine)])


@kept()
def launching_thread(trace: Trace) -> int | None:
    """Return the thread that launches most, if possible of those without a backward pass; None if none launches."""
    launches = trace.runtime_calls.thread[launching(trace)]
    others = launches[~among(launches, backward_threads(trace))]
    threads, counts = np.unique(others if len(others) else launches, return_counts=True)
    return int(threads[np.argmax(counts)]) if len(threads) else None


# -- Host time of steps ------------------------------------------------------------------------------


def host_times(trace: Trace, device: int, starts: I64, ends: I64) -> Mapping[str, I64]:
    """Return the parts of each interval of host time, and the launches for a device that begin in it, by name.

    The result is empty if no thread launches, or the launching thread's ops were not recorded.
    """
    parts = _parts(trace)
    if parts is None:
        return {}
    launches, noted = _launches(trace, device), bool(len(_noted_pauses(trace)) or trace.host_activity)
    lengths = {name: covered(of, starts, ends) for name, of in parts.items()}
    return {
        **{f"host:{name}": ns for name, ns in lengths.items()},
        "host:python": ends - starts - sum(lengths.values(), np.zeros(len(starts), np.int64)),
        "host:launches": np.searchsorted(launches, ends) - np.searchsorted(launches, starts),
        "host:gc_known": np.full(len(starts), int(noted)),
    }


@kept()
def _parts(trace: Trace) -> dict[str, Intervals] | None:
    """Return when the launching thread did each thing that is not Python; None if that is unknown."""
    thread = launching_thread(trace)
    if thread is None or not shows_ops(trace, thread):
        return None
    calls, blocking = trace.runtime_calls, find_blocking(trace)
    backward = backward_threads(trace)
    backward = backward[backward != thread]
    launches = [int((calls.thread[launching(trace)] == other).sum()) for other in backward.tolist()]
    companion = int(backward[np.argmax(launches)]) if len(backward) else thread
    work = work_of(trace, thread, companion)
    parts, taken = dict[str, Intervals](), list[Intervals]()
    for name, when in (
        ("profiler", inside_with(trace, thread, companion, trace.overheads)),
        ("gc_pause", work.pause),
        ("waiting", inside_with(trace, thread, companion, calls.take(blocking.row))),
        ("loading", inside_with(trace, thread, companion, loading(trace))),
        ("cpu_ops", work.cpu_ops),
        ("dispatch", work.dispatch),
    ):
        parts[name] = subtract(when, join(*taken)) if taken else when
        taken.append(when)
    return parts


def _launches(trace: Trace, device: int) -> I64:
    """Return the starts of the calls that launch ops on a device, ascending."""
    launch = trace.gpu_ops.launch[(trace.gpu_ops.device == device) & (trace.gpu_ops.launch >= 0)]
    rows = np.flatnonzero(mask_of(launch, len(trace.runtime_calls)))
    return trace.runtime_calls.start_ns[rows]
