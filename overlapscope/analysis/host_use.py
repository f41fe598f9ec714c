"""Host time of a program that runs nothing on a GPU, by loading, ops and the rest, and activity of its threads."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal

import numpy as np

from overlapscope.analysis.figures import Window
from overlapscope.analysis.host import loading, rows_by_thread
from overlapscope.analysis.host_results import HostPlain, HostStep, HostUse, OpTime, ThreadUse
from overlapscope.analysis.missing_ops import recorded_launches
from overlapscope.analysis.periods import is_step, judged_steps
from overlapscope.analysis.plain_step import measured
from overlapscope.base.grouping import distinct
from overlapscope.base.intervals import I64, Intervals, covered, cut, intersect, subtract, union
from overlapscope.trace.lost import GPU_OPS
from overlapscope.trace.model import HostEvents, Trace

MOST_OPS = 20
ALONE = "_SingleProcessDataLoaderIter"
"""Part of the name of a loader that makes batches on the thread that asks for them."""


def describe_host(trace: Trace) -> HostUse | None:
    """Return the host's time in each step, on the thread that marks the steps, without the recorder's warm-up.

    Without steps, it is the whole recording of the thread with the most ops. The result is None if the host recorded
    nothing, or if something ran on a GPU, even if only lost events show it.
    """
    if len(trace.gpu_ops) or GPU_OPS & {*trace.damage.impossible_by} or len(recorded_launches(trace)[0]):
        return None
    notes = trace.annotations.take(judged_steps(trace))
    if not len(notes) and is_step(trace.annotations).any():
        return None
    if len(notes):
        thread = int(notes.thread[0])
        notes = notes.take(notes.thread == thread)
        names = [notes.name(row) for row in range(len(notes))]
        starts, ends = notes.start_ns, notes.end_ns
    elif len(trace.cpu_ops):
        threads, counts = np.unique(trace.cpu_ops.thread, return_counts=True)
        thread = int(threads[np.argmax(counts)])
        names, starts, ends = [], trace.cpu_ops.start_ns.min(keepdims=True), trace.cpu_ops.end_ns.max(keepdims=True)
    else:
        return None
    windows = union(starts, ends)
    loads = loading(trace)
    mine = loads.take(loads.thread == thread)
    waited = union(mine.start_ns, mine.end_ns)
    ops = trace.cpu_ops.take(trace.cpu_ops.thread == thread)
    worked = subtract(union(ops.start_ns, ops.end_ns), waited)
    loading_ns, ops_ns = covered(waited, starts, ends), covered(worked, starts, ends)
    steps = tuple(
        HostStep(
            name=name,
            window=Window(start_ns=start, end_ns=end),
            span_ns=end - start,
            loading_ns=load,
            ops_ns=op,
            rest_ns=end - start - load - op,
        )
        for name, start, end, load, op in zip(
            names or ["window"], starts.tolist(), ends.tolist(), loading_ns.tolist(), ops_ns.tolist(), strict=True
        )
    )
    # A loop that calls `profiler.step()` after its work opens a step after the last iteration, which holds nothing.
    if len(steps) > 1 and not steps[-1].ops_ns + steps[-1].loading_ns and any(step.ops_ns for step in steps[:-1]):
        steps = steps[:-1]
        windows = union(starts[:-1], ends[:-1])
    return HostUse(
        by_steps=bool(names),
        steps=steps,
        loader=_loader(mine),
        ops=_by_name(ops, intersect(worked, windows)),
        threads=_threads(trace, windows, thread),
        plain=_plain(trace, steps) if names else None,
    )


def _plain(trace: Trace, steps: Sequence[HostStep]) -> HostPlain | None:
    plain = measured(trace.plain_steps, round(median(step.span_ns for step in steps)), trace.host_activity)
    if plain is None:
        return None
    return HostPlain(step_ns=plain.step_ns, low_ns=plain.low_ns, high_ns=plain.high_ns)


def _loader(loads: HostEvents) -> Literal["none", "own-thread", "workers"]:
    """Return what makes the DataLoader's batches, judged by the names that PyTorch gives its iterators."""
    if not len(loads):
        return "none"
    return "own-thread" if loads.named(lambda name: ALONE in name).any() else "workers"


def _by_name(ops: HostEvents, worked: Intervals) -> tuple[OpTime, ...]:
    """Return the outermost ops by name, the longest first. Nested ops don't count, so that all names add up."""
    reach = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, ops.end_ns))[:-1]
    starts = np.maximum(ops.start_ns, reach)
    outer = np.flatnonzero(ops.end_ns > starts)
    row, begin, end = cut(starts[outer], ops.end_ns[outer], worked)
    name = ops.name_id[outer[row]].astype(np.int64)
    sums: I64 = np.zeros(len(ops.names), np.int64)
    np.add.at(sums, name, end - begin)
    counts = np.bincount(ops.name_id[outer[distinct(row)]], minlength=len(ops.names))
    longest = np.argsort(-sums, kind="stable")[:MOST_OPS]
    return tuple(
        OpTime(op=ops.names[op], count=int(counts[op]), time_ns=int(sums[op])) for op in longest.tolist() if sums[op]
    )


def _threads(trace: Trace, windows: Intervals, main: int) -> tuple[ThreadUse, ...]:
    """Return the time that each thread spent in ops: the thread of the steps first, then the busiest."""
    threads = []
    for thread, of_thread in rows_by_thread(trace.cpu_ops).items():
        busy = intersect(union(trace.cpu_ops.start_ns[of_thread], trace.cpu_ops.end_ns[of_thread]), windows)
        busy_ns = int((busy.ends - busy.starts).sum())
        name = trace.thread_names.get(thread, "")
        threads.append(ThreadUse(thread=thread, name=name, steps=thread == main, busy_ns=busy_ns))
    return tuple(sorted(threads, key=lambda use: (not use.steps, -use.busy_ns, use.thread)))
