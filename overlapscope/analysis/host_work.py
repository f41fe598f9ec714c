"""Activity of launching threads outside of waits: ops on the CPU, dispatch, Python's garbage collector, and Python.

A thread is in *dispatch* inside runtime calls and inside ops that launch, make views or allocate. In short pauses
between two nodes of a backward pass autograd's engine works in C++, which is dispatch, too. *Ops on the CPU* launch
nothing. Everything else is Python: time outside any op, and time in an op that runs a Python function, outside the ops
in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from overlapscope.analysis.periods import is_gc_pause
from overlapscope.base.columns import I64, Bool, mask_of, pick
from overlapscope.base.grouping import among, distinct, groups_of, rows_by
from overlapscope.base.intervals import (
    EMPTY,
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
from overlapscope.trace.calls import enqueues, launching
from overlapscope.trace.host import find_blocking, innermost_pieces, loading, on_thread, rows_by_thread, rows_of
from overlapscope.trace.model import HostEvents, Trace

LONG_OP_NS = 100_000
"""Minimum length of a CPU op without runtime calls that counts as work on the CPU, whatever its name, unless it makes
views."""

_COLLECT = "<built-in function collect>"
"""Frame of `gc.collect`."""

_LONGEST_IN_ENGINE_NS = 200_000
"""Maximum time between two nodes of a backward pass in which autograd's engine works; it takes microseconds."""


class Launcher(Struct, frozen=True):
    """A launching thread, whose activity is its companion's where it shows none itself."""

    trace: Trace
    thread: int
    companion: int
    """Another thread, or the thread itself."""

    @property
    def shows_ops(self) -> bool:
        """True if ops of any of the threads were recorded, so that dispatch and Python differ."""
        return any(len(rows_of(_operators(self.trace), thread)) for thread in (self.thread, self.companion))

    def inside(self, events: HostEvents) -> Intervals:
        """Return the times inside any of the given events."""
        return self._of_both_threads(lambda thread: on_thread(events, thread))

    @property
    def cpu_ops(self) -> Intervals:
        """Times in work on the CPU, which may be in `dispatch`, too."""
        return self.inside(_cpu_work(self.trace))

    @property
    def dispatch(self) -> Intervals:
        """Times in dispatch."""
        return self._of_both_threads(lambda thread: _dispatch(self.trace, thread))

    @property
    def pauses_elsewhere(self) -> Intervals:
        """Pauses of other threads, where this one is inside no op or call: a collection holds the interpreter."""
        pauses = gc_pauses(self.trace)
        if not len(pauses):
            return EMPTY
        busy = (_busy(self.trace, thread) for thread in (self.thread, self.companion))
        return subtract(union(pauses.start_ns, pauses.end_ns), join(*busy))

    def time_of(self, cause: IdleCause) -> Intervals:
        """Return the times in `python`, `dispatch` or `cpu-ops`."""
        if cause == IdleCause.CPU_OPS:
            return self.cpu_ops
        if cause == IdleCause.DISPATCH:
            return subtract(self.dispatch, self.cpu_ops)
        if not self.shows_ops:
            return EMPTY
        tables = (gc_pauses(self.trace), self.trace.overheads, loading(self.trace))
        busy = join(self.pauses_elsewhere, self.cpu_ops, self.dispatch, *map(self.inside, tables))
        recorded = (self.trace.cpu_ops, self.trace.runtime_calls)
        begin = min(int(table.start_ns.min(initial=2**62)) for table in recorded)
        return complement(busy, begin, max(int(table.end_ns.max(initial=0)) for table in recorded))

    def _of_both_threads(self, of_thread: Callable[[int], Intervals]) -> Intervals:
        of_launcher = of_thread(self.thread)
        if self.companion == self.thread or not len((of_companion := of_thread(self.companion)).starts):
            return of_launcher
        return join(of_launcher, subtract(of_companion, _busy(self.trace, self.thread)))


def launchers(trace: Trace, launch: I64) -> Iterator[tuple[Launcher, I64]]:
    """Yield the launching threads of launches, which are rows of `Trace.runtime_calls`, and the places of each's.

    The companion is the thread that made the launch before, or the thread itself. Autograd launches from a thread of
    its own, so that the delay of a launch may be visible on the previous launch's thread. If a thread only launches
    what others put in a queue, the companion is the thread that put it there.
    """
    if not len(launch):
        return
    launches, thread = launching(trace), trace.runtime_calls.thread
    previous = pick(launches, np.searchsorted(launches, launch) - 1)
    launcher, companion = thread[launch], thread[np.where(previous >= 0, previous, launch)]
    enqueuing = np.flatnonzero(enqueues(trace.runtime_calls))
    if len(enqueuing):
        # A queue is only waited for when it is empty, and then the last task that was put there is the next one.
        last = np.searchsorted(trace.runtime_calls.start_ns[enqueuing], trace.runtime_calls.start_ns[launch]) - 1
        companion = np.where(last >= 0, thread[enqueuing[last]], companion)
    for _, which in rows_by(groups_of((launcher, companion))):
        yield Launcher(trace, int(launcher[which[0]]), int(companion[which[0]])), which


@kept()
def _busy(trace: Trace, thread: int) -> Intervals:
    """Return the times in which a thread was inside any CPU op or call."""
    return join(on_thread(trace.cpu_ops, thread), on_thread(trace.runtime_calls, thread))


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


class _CpuOps(NamedTuple):
    """Masks of the CPU ops of a trace."""

    silent: Bool
    """Their thread makes no runtime call in them."""
    python: Bool
    """They run a Python function: their names are of no op, and they have ops inside.

    A name alone doesn't tell: one without ops inside may be any range.
    """
    views: Bool
    """They only make views or read properties, or mostly do that or allocate.

    For example, `aten::unflatten_dense_tensors` makes a view of each tensor, on whatever device the tensors are.
    """
    computes: Bool
    """They compute, make no runtime call, mostly make no views, and lie in no op that makes any call."""


@kept()
def _judged(trace: Trace) -> _CpuOps:
    """Judge the CPU ops of each thread."""
    ops, calls = trace.cpu_ops, trace.runtime_calls
    works, engine = ops.named(op_names.works), ops.named(op_names.is_engine)
    may_run_python = ops.named(op_names.may_run_python) & (trace.framework == "pytorch")
    may_make_views = ops.named(lambda name: name.startswith("aten::")) & ~works
    long_allocation = ops.named(op_names.allocates) & (ops.end_ns - ops.start_ns >= LONG_OP_NS)
    silent, python, views, computes = np.zeros((4, len(ops)), np.bool_)
    for thread, rows in rows_by_thread(ops).items():
        starts, ends = ops.start_ns[rows], ops.end_ns[rows]
        called = calls.start_ns[rows_of(calls, thread)]
        silent[rows] = quiet = np.searchsorted(called, starts) == np.searchsorted(called, ends)
        # Ops of equal start stand longest first, so those inside an op follow it.
        following = np.searchsorted(starts, ends)
        python[rows] = runs_python = may_run_python[rows] & (following > np.arange(len(rows)) + 1)
        working = np.append(0, np.cumsum((works | long_allocation)[rows]))
        quick = (working[following] == working[1:]) & ~long_allocation[rows]
        only_views = quiet & may_make_views[rows] & quick
        mostly_views = 2 * covered(union(starts[only_views], ends[only_views]), starts, ends) > ends - starts
        views[rows] = only_views | works[rows] & mostly_views
        loud = ~(quiet | runs_python | engine[rows])
        in_loud = contains(union(starts[loud], ends[loud]), starts)
        computes[rows] = quiet & works[rows] & ~mostly_views & ~in_loud
    return _CpuOps(silent, python, views, computes)


@kept()
def long_ops(trace: Trace) -> HostEvents:
    """Return CPU ops of at least `LONG_OP_NS` in which their thread makes no runtime call.

    Python functions and ops that make views don't count.
    """
    ops, of = trace.cpu_ops, _judged(trace)
    long = ops.end_ns - ops.start_ns >= LONG_OP_NS
    return ops.take(long & of.silent & ~of.python & ~of.views & ~is_gc_pause(ops))


@kept()
def _cpu_work(trace: Trace) -> HostEvents:
    """Return the CPU ops that are work on the CPU. Long ops count whatever is around them."""
    return HostEvents.joined([trace.cpu_ops.take(_judged(trace).computes), long_ops(trace)])


@kept()
def _dispatch(trace: Trace, thread: int) -> Intervals:
    """Return the times in which a thread was in dispatch."""
    inside_ops = subtract(on_thread(trace.cpu_ops, thread), _in_python(trace, thread))
    return join(inside_ops, on_thread(trace.runtime_calls, thread), _between_nodes(trace, thread))


def _in_python(trace: Trace, thread: int) -> Intervals:
    """Return the time inside ops of a thread that is Python's: in Python functions, outside the ops that these call."""
    ops, frames = trace.cpu_ops, trace.python_frames
    rows = rows_of(ops, thread)
    python = (_judged(trace).python | is_gc_pause(ops))[rows]
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
    if thread is None or not len(rows_of(_operators(trace), thread)):
        return None
    calls = trace.runtime_calls
    backward = backward_threads(trace)
    backward = backward[backward != thread]
    launches = [int((calls.thread[launching(trace)] == other).sum()) for other in backward.tolist()]
    launcher = Launcher(trace, thread, int(backward[np.argmax(launches)]) if len(backward) else thread)
    parts, taken = dict[str, Intervals](), list[Intervals]()
    for name, when in (
        ("profiler", launcher.inside(trace.overheads)),
        ("gc_pause", launcher.inside(gc_pauses(trace))),
        ("waiting", launcher.inside(calls.take(find_blocking(trace).row))),
        ("loading", launcher.inside(loading(trace))),
        ("cpu_ops", launcher.cpu_ops),
        ("dispatch", launcher.dispatch),
    ):
        parts[name] = subtract(when, join(*taken)) if taken else when
        taken.append(when)
    return parts


def _launches(trace: Trace, device: int) -> I64:
    """Return the starts of the calls that launch ops on a device, ascending."""
    launch = trace.gpu_ops.launch[(trace.gpu_ops.device == device) & (trace.gpu_ops.launch >= 0)]
    rows = np.flatnonzero(mask_of(launch, len(trace.runtime_calls)))
    return trace.runtime_calls.start_ns[rows]
