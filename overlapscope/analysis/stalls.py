"""Host stalls: blocking calls, how long the host sat in them, and the idle time that followed."""

from __future__ import annotations

import numpy as np

from overlapscope.analysis.by_step import row, step_at, table
from overlapscope.analysis.host import Blocking, lines_around, of_other_devices, ops_around
from overlapscope.analysis.late_launch import IdleTime
from overlapscope.analysis.periods import Periods
from overlapscope.analysis.results import HostStall, StallsByStep
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import pick
from overlapscope.base.intervals import I64, Intervals, cut
from overlapscope.catalog.causes import IDLE_RANK, STALL_CAUSES
from overlapscope.trace.model import Trace

STALL_NUMBERS = [IDLE_RANK[cause] for cause in STALL_CAUSES]


def find_stalls(
    trace: Trace, timeline: Timeline, blocking: Blocking, idle: IdleTime, steps: Periods, windows: Intervals
) -> tuple[HostStall, ...]:
    """Blocking calls that run inside the windows, grouped by call, op, thread and line, costliest first.

    `idle_caused_ns` adds up, over all stalls, to the idle time of the causes host-sync, allocation and
    host-staging inside the windows, but for what `pin_memory` did outside any call.
    """
    calls = trace.runtime_calls
    caused = np.zeros(len(calls), np.int64)
    piece, start, end = cut(idle.start_ns, idle.end_ns, windows)
    blamed = np.isin(idle.cause[piece], STALL_NUMBERS) & (idle.call[piece] >= 0)
    np.add.at(caused, idle.call[piece[blamed]], (end - start)[blamed])
    elsewhere = of_other_devices(trace, timeline)
    mine = blocking.row
    # The first window that ends behind the call's start has begun before its end.
    nearest = np.searchsorted(windows.ends, calls.start_ns[mine], side="right")
    inside = pick(windows.starts, nearest, np.iinfo(np.int64).max) < calls.end_ns[mine]
    rows = mine[(inside & ~elsewhere[mine]) | (caused[mine] > 0)]

    ops = ops_around(trace, calls.thread[rows], calls.start_ns[rows])
    lines = lines_around(trace, calls.thread[rows], calls.start_ns[rows])
    groups: dict[tuple[str, str | None, int, str | None], list[int]] = {}
    for call_row, op, line in zip(rows.tolist(), ops, lines, strict=True):
        groups.setdefault((calls.name(call_row), op, int(calls.thread[call_row]), line), []).append(call_row)
    group_of = np.full(len(calls), -1, np.int64)
    for number, members in enumerate(groups.values()):
        group_of[members] = number
    waits = _by_step(group_of, rows, calls.start_ns[rows], calls.end_ns[rows], steps, len(groups))
    blame = np.flatnonzero(np.isin(idle.cause, STALL_NUMBERS) & (idle.call >= 0))
    costs = _by_step(group_of, idle.call[blame], idle.start_ns[blame], idle.end_ns[blame], steps, len(groups))
    stalls = [
        HostStall(
            call=call,
            op=op,
            thread=thread,
            count=len(members),
            host_wait_ns=int((calls.end_ns[members] - calls.start_ns[members]).sum()),
            idle_caused_ns=int(caused[members].sum()),
            where=line,
            by_step=StallsByStep(host_wait_ns=row(waits[number]), idle_caused_ns=row(costs[number])),
        )
        for number, ((call, op, thread, line), members) in enumerate(groups.items())
    ]
    return tuple(sorted(stalls, key=lambda s: (-s.idle_caused_ns, -s.host_wait_ns, s.call, s.thread)))


def _by_step(group_of: I64, call: I64, start: I64, end: I64, steps: Periods, groups: int) -> I64:
    """How long the intervals that the given calls answer for are in each step: (groups, steps)."""
    piece, begin, stop = cut(start, end, Intervals(steps.start_ns, steps.end_ns))
    group = group_of[call[piece]]
    step = np.where(group >= 0, step_at(steps, begin), -1)
    return table(group, step, stop - begin, (groups, len(steps.row)))
