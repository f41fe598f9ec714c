"""What the host did while the GPU waited for it.

The host is looked up on the thread that launched the op that ended the gap, and where that thread shows nothing of its
own, on the one that launched the op before it: autograd launches from a thread of its own. Most specific first: the
profiler, pinning and pageable staging, allocation, other blocking calls, a DataLoader's next, long CPU ops that launch
nothing, then the rest. Of the rest, as much is charged to a blocking call before it as that call had kept the host
waiting while the GPU still worked: that much earlier the host could have been here. What then remains is launch-bound
where launches follow one another closely, else host-compute.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from overlapscope.analysis.causes import IDLE_RANK as RANK
from overlapscope.analysis.causes import IdleCause
from overlapscope.analysis.edges import EXACT
from overlapscope.analysis.host import Blocking, around, busy, on_thread, pinning
from overlapscope.analysis.timeline import Timeline
from overlapscope.intervals import (
    I64,
    Index,
    Intervals,
    contains,
    covered,
    expand,
    join,
    outermost,
    subtract,
    union,
)
from overlapscope.trace import I8, HostEvents, Trace

LAUNCH_PACE_NS = 200_000
"""Two launches closer than this are one burst: the host was launching as fast as it could. Python around a
layer costs some 10 to 100 us, with the profiler's stacks up to twice that."""


LONG_OP_NS = 1_000_000
"""A CPU op at least this long that launches nothing is work of its own, whatever the host waited for before."""


@dataclass(frozen=True, slots=True, eq=False)
class IdleTime:
    """The idle time, cut into pieces. Sorted and disjoint; their lengths add up to it exactly."""

    start_ns: I64
    end_ns: I64
    cause: I8
    """Index into `IDLE_CAUSES`."""
    call: I64
    """Row in `Trace.runtime_calls`: the blocking call behind it, or the launch that came late; -1 where the host
    was busy with something else."""
    host_ns: I64
    """The host instant the piece's start is the image of: where to look for the op and line behind it."""
    thread: I64
    confidence: I8


@dataclass(frozen=True, slots=True, eq=False)
class Late:
    """Stretches of host time whose images are idle, one per gap that a late launch ended."""

    start_ns: I64
    end_ns: I64
    shift_ns: I64
    """Added to a host instant it gives the device's."""
    launch: I64
    previous: I64
    """The launch before it, of any thread; -1 where there is none."""


_AT_CALL = (RANK[IdleCause.HOST_STAGING], RANK[IdleCause.ALLOCATION], RANK[IdleCause.HOST_SYNC])


def attribute_host(trace: Trace, timeline: Timeline, blocking: Blocking, launches: I64, late: Late) -> IdleTime:
    calls = trace.runtime_calls
    thread = calls.thread[late.launch]
    other = np.where(late.previous >= 0, np.append(calls.thread, -1)[late.previous], thread)
    slow = _slow_stretches(trace, launches)
    loading = _data_loading(trace)
    parts = []
    for pair in np.unique(np.stack([thread, other], axis=1), axis=0):
        rows = np.flatnonzero((thread == pair[0]) & (other == pair[1]))
        mine = Late(*(getattr(late, f)[rows] for f in late.__slots__))
        parts.append(_attribute_pair(trace, timeline, blocking, slow, loading, mine, *pair.tolist()))
    return joined(parts)


def _attribute_pair(
    trace: Trace,
    timeline: Timeline,
    blocking: Blocking,
    slow: Intervals,
    loading: HostEvents,
    late: Late,
    thread: int,
    other: int,
) -> IdleTime:
    """Late launches from one thread, the ones before them from the same or another."""
    calls = trace.runtime_calls
    active = busy(trace, thread) if other != thread else None

    def doing(table: HostEvents, rows: Index | None = None) -> Intervals:
        own = on_thread(table, thread, rows)
        return own if active is None else join(own, subtract(on_thread(table, other, rows), active))

    keeping = blocking.row[~blocking.allocation]
    layers = (
        (IdleCause.PROFILER_OVERHEAD, doing(trace.overheads)),
        (IdleCause.HOST_STAGING, join(doing(calls, blocking.row[blocking.staging]), doing(pinning(trace)))),
        (IdleCause.ALLOCATION, doing(calls, blocking.row[blocking.allocation])),
        (IdleCause.HOST_SYNC, doing(calls, blocking.row[~blocking.allocation & ~blocking.staging])),
        (IdleCause.DATA_LOADING, doing(loading)),
        (IdleCause.PROFILER_OVERHEAD, _overhead_elsewhere(trace)),
        (IdleCause.HOST_COMPUTE, doing(trace.cpu_ops, _long_ops(trace))),
    )
    gap, start, end = _cut(late, [slow, *(layer for _, layer in layers)])
    rest = np.ones(len(start), np.bool_)
    cause = np.where(contains(slow, start), RANK[IdleCause.HOST_COMPUTE], RANK[IdleCause.LAUNCH_BOUND])
    for name, layer in reversed(layers):
        inside = contains(layer, start)
        cause[inside] = RANK[name]
        rest &= ~inside

    # Charge the rest to the calls that had kept the host waiting while the device still worked. A copy that blocked
    # is a launch itself; its wait counts.
    called = calls.start_ns[late.launch]
    blocked_by = np.isin(late.previous, keeping)
    since = np.where(blocked_by, calls.start_ns[late.previous], calls.end_ns[late.previous])
    since = np.where(late.previous >= 0, since, timeline.start_ns)
    kept = subtract(doing(calls, keeping), timeline.idle)
    budget = covered(kept, since, np.minimum(late.start_ns, called))
    chargeable = np.where(rest, end - start, 0)
    passed = np.cumsum(chargeable) - chargeable
    first = np.searchsorted(gap, np.arange(len(late.launch)), side="left")
    passed -= passed[np.minimum(first, len(passed) - 1)][gap] if len(passed) else 0
    before = _last_wait(trace, keeping, [thread, other], called)[gap]
    charged = np.where(before >= 0, np.clip(budget[gap] - passed, 0, chargeable), 0)
    inside_call = _call_around(trace, blocking.row, [thread, other], start)
    staged = np.isin(before, blocking.row[blocking.staging])
    charge = np.where(staged, RANK[IdleCause.HOST_STAGING], RANK[IdleCause.HOST_SYNC])
    launch, shift = late.launch[gap], late.shift_ns[gap]
    own = np.where(np.isin(cause, _AT_CALL), inside_call, -1)
    own[cause == RANK[IdleCause.LAUNCH_BOUND]] = launch[cause == RANK[IdleCause.LAUNCH_BOUND]]
    middle = start + charged
    threads = calls.thread[launch]
    sure = np.full(len(start), EXACT, np.int64)
    return joined(
        [
            table(start + shift, middle + shift, charge, before, start, threads, sure),
            table(middle + shift, end + shift, cause, own, middle, threads, sure),
        ]
    )


def _cut(late: Late, layers: list[Intervals]) -> tuple[I64, I64, I64]:
    """The stretches cut wherever a layer begins or ends: `(row of the stretch, start, end)`, in order."""
    rows, at = [np.arange(len(late.start_ns))] * 2, [late.start_ns, late.end_ns]
    for side in (side for layer in layers for side in layer):
        first = np.searchsorted(side, late.start_ns, side="right")
        row, which = expand(first, np.searchsorted(side, late.end_ns, side="left"))
        rows.append(row)
        at.append(side[which])
    row, cut = np.concatenate(rows), np.concatenate(at)
    order = np.lexsort((cut, row))
    row, cut = row[order], cut[order]
    piece = (row[1:] == row[:-1]) & (cut[1:] > cut[:-1])
    return row[:-1][piece], cut[:-1][piece], cut[1:][piece]


def _slow_stretches(trace: Trace, launches: I64) -> Intervals:
    """Host time in which nothing was launched for longer than `LAUNCH_PACE_NS`, less what the launching ops need
    around their calls (at most that much on either side); and launch calls that take longer than that."""
    calls = trace.runtime_calls
    thread, start, end = calls.thread[launches], calls.start_ns[launches], calls.end_ns[launches]
    op = around(trace.cpu_ops, thread, start)
    begins = np.where(op >= 0, np.append(trace.cpu_ops.start_ns, 0)[op], start)
    ends = np.where(op >= 0, np.append(trace.cpu_ops.end_ns, 0)[op], end)
    apart = start[1:] - end[:-1] > LAUNCH_PACE_NS
    leaves = np.clip(ends[:-1], end[:-1], np.minimum(end[:-1] + LAUNCH_PACE_NS, start[1:]))
    arrives = np.clip(begins[1:], np.maximum(start[1:] - LAUNCH_PACE_NS, end[:-1]), start[1:])
    lengthy = end - start > LAUNCH_PACE_NS
    return join(union(leaves[apart], arrives[apart]), union(start[lengthy], end[lengthy]))


def _long_ops(trace: Trace) -> Index:
    """CPU ops of at least `LONG_OP_NS` in which their thread makes no runtime call."""
    ops, calls = trace.cpu_ops, trace.runtime_calls
    rows = np.flatnonzero(ops.end_ns - ops.start_ns >= LONG_OP_NS)
    silent = np.ones(len(rows), np.bool_)
    for thread in np.unique(ops.thread[rows]):
        mine = ops.thread[rows] == thread
        made = calls.start_ns[calls.thread == thread]
        first = np.searchsorted(made, ops.start_ns[rows[mine]], side="left")
        silent[mine] = first == np.searchsorted(made, ops.end_ns[rows[mine]], side="left")
    return rows[silent]


def _data_loading(trace: Trace) -> HostEvents:
    """When a thread was inside a DataLoader's next: PyTorch annotates it (torch/utils/data/dataloader.py)."""
    notes = trace.annotations
    wanted = [
        i for i, name in enumerate(notes.names) if name.startswith("enumerate(DataLoader)#") and "__next__" in name
    ]
    return notes.take(np.isin(notes.name_id, wanted))


def _overhead_elsewhere(trace: Trace) -> Intervals:
    """Profiler overhead on threads that are not the program's, such as a buffer flush."""
    overheads = trace.overheads
    foreign = ~np.isin(overheads.thread, np.unique(trace.runtime_calls.thread))
    return union(overheads.start_ns[foreign], overheads.end_ns[foreign])


def _call_around(trace: Trace, rows: I64, threads: list[int], at: I64) -> I64:
    """The outermost of the calls `rows` around each instant on one of the threads; -1 if none."""
    calls = trace.runtime_calls
    found = np.full(len(at), -1, np.int64)
    for thread in threads:
        mine = rows[calls.thread[rows] == thread]
        here = outermost(calls.start_ns[mine], calls.end_ns[mine], at)
        found = np.where(found < 0, np.append(mine, -1)[here], found)
    return found


def _last_wait(trace: Trace, rows: I64, threads: list[int], at: I64) -> I64:
    """The blocking call (among `rows`) on one of the threads that returned last before each instant."""
    calls = trace.runtime_calls
    rows = rows[np.isin(calls.thread[rows], threads)]
    rows = rows[np.argsort(calls.end_ns[rows], kind="stable")]
    last = np.searchsorted(calls.end_ns[rows], at, side="right") - 1
    return np.where(last >= 0, np.append(rows, -1)[last], -1)


def table(start: I64, end: I64, cause: I64, call: I64, host: I64, thread: I64, sure: I64) -> IdleTime:
    kept = end > start
    columns = (column[kept] for column in (start, end, cause, call, host, thread, sure))
    start, end, cause, call, host, thread, sure = columns
    return IdleTime(start, end, cause.astype(np.int8), call, host, thread, sure.astype(np.int8))


def joined(parts: list[IdleTime]) -> IdleTime:
    if not parts:
        nothing = np.empty(0, np.int64)
        return table(*[nothing] * 7)
    columns = [np.concatenate([getattr(part, f) for part in parts]) for f in IdleTime.__slots__]
    order = np.argsort(columns[0], kind="stable")
    return IdleTime(*(column[order] for column in columns))
