"""Kernels grouped by their name and the op that launched them."""

from __future__ import annotations

import numpy as np

from overlapscope.analysis.by_step import row, step_at, table
from overlapscope.analysis.host import op_ids_around, op_text
from overlapscope.analysis.periods import Periods
from overlapscope.analysis.results import KernelGroup, KernelsByStep
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import pick
from overlapscope.base.intervals import Intervals
from overlapscope.trace.model import Kind, Trace


def group_kernels(trace: Trace, timeline: Timeline, steps: Periods, windows: Intervals) -> tuple[KernelGroup, ...]:
    """The kernels that begin inside the given disjoint windows, longest group first.

    Durations are added up whole, also of kernels that ran side by side.
    """
    ops, calls = timeline.ops, trace.runtime_calls
    begun = np.searchsorted(windows.starts, ops.start_ns, side="right") - 1
    # A kernel of no length counts at the end of a window, too.
    inside = (begun >= 0) & ((windows.ends[begun] > ops.start_ns) | (windows.ends[begun] == ops.end_ns))
    rows = np.flatnonzero(inside & ((ops.kind == Kind.COMPUTE) | (ops.kind == Kind.COMM)))
    if not len(rows):
        return ()
    launch = ops.launch[rows]
    known = launch >= 0
    thread = pick(calls.thread, launch)
    op = np.where(known, op_ids_around(trace, thread, pick(calls.start_ns, launch)), -1)
    # Two columns as one key; -1 is an op like any other.
    key, first, group = np.unique(
        ops.name_id[rows].astype(np.int64) * (len(trace.names) + 1) + op + 1, return_index=True, return_inverse=True
    )
    duration = ops.end_ns[rows] - ops.start_ns[rows]
    count, time = np.bincount(group), np.zeros(len(key), np.int64)
    np.add.at(time, group, duration)
    step, shape = step_at(steps, ops.start_ns[rows]), (len(key), len(steps.row))
    count_by_step, time_by_step = table(group, step, np.ones_like(step), shape), table(group, step, duration, shape)
    groups = [
        KernelGroup(
            kernel=ops.name(int(rows[one])),
            op=op_text(trace, int(op[one])),
            comm=bool(ops.kind[rows[one]] == Kind.COMM),
            count=int(count[number]),
            time_ns=int(time[number]),
            by_step=KernelsByStep(count=row(count_by_step[number]), time_ns=row(time_by_step[number])),
        )
        for number, one in enumerate(first.tolist())
    ]
    return tuple(sorted(groups, key=lambda one: (-one.time_ns, one.kernel, one.op or "")))
