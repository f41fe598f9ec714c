"""What the host did while the GPU waited for it.

The host is looked up on the thread that launched the op that ended the gap, and where that thread shows nothing of its
own, on the one that launched the op before it: autograd launches from a thread of its own. Most specific first: the
profiler, pinning and pageable staging, allocation, other blocking calls, a DataLoader's next, long CPU ops that launch
nothing, then the rest. The rest is charged to blocking calls before it, up to as long as those had kept the host
waiting while the GPU still worked: that much earlier the host could have been here. What then remains is launch-bound
where launches follow one another closely, else host-compute.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from overlapscope.analysis.edges import EXACT
from overlapscope.analysis.grouping import distinct, groups_of, rows_by
from overlapscope.analysis.host import Blocking, around, companion_of, inside_with, pinning, rows_of
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import pick
from overlapscope.base.intervals import (
    I64,
    Bool,
    Intervals,
    contains,
    cut,
    expand,
    intersect,
    join,
    outermost,
    subtract,
    union,
)
from overlapscope.catalog.causes import IDLE_RANK as RANK
from overlapscope.catalog.causes import IdleCause
from overlapscope.trace.model import I8, HostEvents, Trace

LAUNCH_PACE_NS = 200_000
"""Two launches closer than this are one burst: the host was launching as fast as it could. Python around a
layer costs some 10 to 100 us, with the profiler's stacks up to twice that."""


_SHORTEST_WAIT_NS = 20_000
"""A shorter blocking call found what it waited for done, or next to done."""

LONG_OP_NS = 100_000
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


_AT_CALL = (RANK[IdleCause.HOST_STAGING], RANK[IdleCause.ALLOCATION], RANK[IdleCause.HOST_SYNC])


@dataclass(frozen=True, slots=True, eq=False)
class _Host:
    """What a host thread can be inside, gathered once for all threads."""

    trace: Trace
    blocking: Blocking
    blocked: HostEvents
    """The calls that are `blocking`, and below them by cause."""
    staging: HostEvents
    allocation: HostEvents
    syncs: HostEvents
    slow: Intervals
    loading: HostEvents
    pins: HostEvents
    long_ops: HostEvents
    overhead_elsewhere: Intervals


def attribute_host(trace: Trace, timeline: Timeline, blocking: Blocking, launches: I64, late: Late) -> IdleTime:
    """The causes of idle time that ended with a late launch. `late` is in the order of time."""
    calls = trace.runtime_calls
    host = _Host(
        trace,
        blocking,
        calls.take(blocking.row),
        calls.take(blocking.row[blocking.staging]),
        calls.take(blocking.row[blocking.allocation]),
        calls.take(blocking.row[~blocking.allocation & ~blocking.staging]),
        _slow_stretches(trace, launches),
        loading(trace),
        pinning(trace),
        _long_ops(trace),
        _overhead_elsewhere(trace),
    )
    # Waits are counted from one late launch to the next; a copy that blocks is a launch and a wait.
    since = np.maximum(np.append(timeline.start_ns, calls.start_ns[late.launch])[:-1], timeline.judged_from_ns)
    until = np.minimum(late.start_ns, calls.start_ns[late.launch])
    keeping = _outermost_waits(trace, blocking)
    kept_calls = calls.take(keeping)
    pair = (calls.thread[late.launch], companion_of(trace, late.launch))
    parts, waits = [], [np.empty((4, 0), np.int64)]
    for _, rows in rows_by(groups_of(pair)) if len(late.launch) else ():
        thread, companion = (int(one[rows[0]]) for one in pair)
        part = _label(host, Late(*(getattr(late, f.name)[rows] for f in fields(late))), thread, companion)
        parts.append(replace(part, gap=rows[part.gap]))
        theirs = np.concatenate([rows_of(kept_calls, one) for one in {thread, companion}])
        if not len(theirs):
            continue
        theirs = keeping[np.sort(theirs)]
        kept = subtract(inside_with(trace, thread, companion, kept_calls), timeline.idle)
        window = intersect(kept, union(since[rows], until[rows]))
        which, start, end = cut(calls.start_ns[theirs], calls.end_ns[theirs], window)
        gap = rows[np.searchsorted(np.maximum.accumulate(until[rows]), start, side="right")]
        waits.append(np.stack([gap, start, end - start, theirs[which]]))
    if not parts:
        return joined([])
    columns = [np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(_Labelled)]
    order = np.lexsort((columns[1], columns[0]))
    pieces = _Labelled(*(column[order] for column in columns))
    waited = np.concatenate(waits, axis=1)
    return _charge(trace, blocking, late, pieces, waited[:, np.lexsort((waited[1], waited[0]))])


@dataclass(frozen=True, slots=True, eq=False)
class _Labelled:
    """Pieces of late host time, each with what the host was inside."""

    gap: I64
    """Row of `Late`."""
    start_ns: I64
    end_ns: I64
    cause: I64
    call: I64
    """The blocking call around it; -1 if there is none."""
    chargeable: Bool
    """The host was inside nothing in particular."""


def _label(host: _Host, late: Late, thread: int, companion: int) -> _Labelled:
    def inside(table: HostEvents) -> Intervals:
        return inside_with(host.trace, thread, companion, table)

    every = (
        (IdleCause.PROFILER_OVERHEAD, inside(host.trace.overheads)),
        (IdleCause.HOST_STAGING, join(inside(host.staging), inside(host.pins))),
        (IdleCause.ALLOCATION, inside(host.allocation)),
        (IdleCause.HOST_SYNC, inside(host.syncs)),
        (IdleCause.DATA_LOADING, inside(host.loading)),
        (IdleCause.PROFILER_OVERHEAD, host.overhead_elsewhere),
        (IdleCause.HOST_COMPUTE, inside(host.long_ops)),
    )
    layers = [(name, layer) for name, layer in every if len(layer.starts)]
    gap, start, end = _cut(late, [host.slow, *(layer for _, layer in layers)])
    chargeable = np.ones(len(start), np.bool_)
    cause = np.where(contains(host.slow, start), RANK[IdleCause.HOST_COMPUTE], RANK[IdleCause.LAUNCH_BOUND])
    for name, layer in reversed(layers):
        hit = contains(layer, start)
        cause[hit] = RANK[name]
        chargeable &= ~hit
    call = _call_around(host, (thread, companion), start)
    return _Labelled(gap, start, end, cause, np.where(np.isin(cause, _AT_CALL), call, -1), chargeable)


def _outermost_waits(trace: Trace, blocking: Blocking) -> I64:
    """Calls that made the host wait for long enough to matter, without those made inside another."""
    calls = trace.runtime_calls
    rows = blocking.row[~blocking.allocation]
    rows = rows[calls.end_ns[rows] - calls.start_ns[rows] >= _SHORTEST_WAIT_NS]
    kept = []
    for _, which in rows_by(calls.thread[rows]):
        mine = rows[which]
        enclosing = outermost(calls.start_ns[mine], calls.end_ns[mine], calls.start_ns[mine])
        kept.append(mine[enclosing == np.arange(len(mine))])
    return np.sort(np.concatenate(kept)) if kept else rows


def _charge(trace: Trace, blocking: Blocking, late: Late, pieces: _Labelled, waits: I64) -> IdleTime:
    """Charge host time in which the host was inside nothing in particular to the waits before it.

    A wait set the host back by as long as it lasted while the device worked. Without it the host would have been
    ahead by that much, and idle time behind it would be gone until the lead is used up. So each wait adds to a lead,
    and idle time takes from it, from the latest wait first.

    `waits`: rows of late launch, host start, time waited and call, one column for each wait, in the order of time.
    """
    count = len(late.launch)
    length = np.where(pieces.chargeable, pieces.end_ns - pieces.start_ns, 0)
    wanted = np.bincount(pieces.gap, weights=length, minlength=count).astype(np.int64)
    waited = np.bincount(waits[0], weights=waits[2], minlength=count).astype(np.int64)
    balance = np.cumsum(waited - wanted)
    lead = balance - np.minimum(np.minimum.accumulate(balance), 0)
    granted = waited + np.append(0, lead[:-1]) - lead

    first = np.searchsorted(pieces.gap, np.arange(count), side="left")
    passed = np.cumsum(length) - length
    passed -= pick(passed, first, 0)[pieces.gap]
    charged = np.clip(granted[pieces.gap] - passed, 0, length)

    # Both the charged pieces and the waits they are charged to, laid end to end, are cut where either changes.
    call, amount = _debtors(waits, granted)
    to_call, to_piece = np.cumsum(amount), np.cumsum(charged)
    edges = distinct(np.concatenate([[0], to_call, to_piece]))
    piece = np.searchsorted(to_piece, edges[:-1], side="right")
    before = call[np.searchsorted(to_call, edges[:-1], side="right")] if len(call) else edges[:0]
    start = pieces.start_ns[piece] + edges[:-1] - (to_piece - charged)[piece]
    staged = np.isin(before, blocking.row[blocking.staging])
    charge = np.where(staged, RANK[IdleCause.HOST_STAGING], RANK[IdleCause.HOST_SYNC])

    own = np.where(pieces.cause == RANK[IdleCause.LAUNCH_BOUND], late.launch[pieces.gap], pieces.call)

    def moved(row: I64, start: I64, end: I64, cause: I64, call: I64) -> IdleTime:
        launch, shift = late.launch[pieces.gap[row]], late.shift_ns[pieces.gap[row]]
        sure = np.full(len(row), EXACT, np.int64)
        return table(start + shift, end + shift, cause, call, start, trace.runtime_calls.thread[launch], sure)

    every = np.arange(len(length))
    return joined(
        [
            moved(piece, start, start + np.diff(edges), charge, before),
            moved(every, pieces.start_ns + charged, pieces.end_ns, pieces.cause, own),
        ]
    )


def _debtors(waits: I64, granted: I64) -> tuple[I64, I64]:
    """Whose lead each granted charge uses up, latest wait first: `(call, amount)` in the order of the charges."""
    open_waits: list[list[int]] = []
    charges: list[tuple[int, int]] = []
    added = np.searchsorted(waits[0], np.arange(len(granted) + 1), side="left").tolist()
    for row in distinct(np.concatenate([waits[0], np.flatnonzero(granted)])).tolist():
        open_waits += [[call, time] for time, call in waits[2:, added[row] : added[row + 1]].T.tolist()]
        owed = int(granted[row])
        while owed:
            call, left = open_waits[-1]
            part = min(left, owed)
            charges.append((call, part))
            owed -= part
            open_waits[-1][1] -= part
            if not open_waits[-1][1]:
                open_waits.pop()
    columns = np.array(charges, np.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


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
    begins = np.where(op >= 0, pick(trace.cpu_ops.start_ns, op, 0), start)
    ends = np.where(op >= 0, pick(trace.cpu_ops.end_ns, op, 0), end)
    apart = start[1:] - end[:-1] > LAUNCH_PACE_NS
    leaves = np.clip(ends[:-1], end[:-1], np.minimum(end[:-1] + LAUNCH_PACE_NS, start[1:]))
    arrives = np.clip(begins[1:], np.maximum(start[1:] - LAUNCH_PACE_NS, end[:-1]), start[1:])
    lengthy = end - start > LAUNCH_PACE_NS
    return join(union(leaves[apart], arrives[apart]), union(start[lengthy], end[lengthy]))


def _long_ops(trace: Trace) -> HostEvents:
    """CPU ops of at least `LONG_OP_NS` in which their thread makes no runtime call."""
    ops, calls = trace.cpu_ops, trace.runtime_calls
    rows = np.flatnonzero(ops.end_ns - ops.start_ns >= LONG_OP_NS)
    silent = np.ones(len(rows), np.bool_)
    for thread, mine in rows_by(ops.thread[rows]):
        made = calls.start_ns[rows_of(calls, thread)]
        first = np.searchsorted(made, ops.start_ns[rows[mine]], side="left")
        silent[mine] = first == np.searchsorted(made, ops.end_ns[rows[mine]], side="left")
    return ops.take(rows[silent])


def loading(trace: Trace) -> HostEvents:
    """When a thread was inside a DataLoader's next: PyTorch annotates it (torch/utils/data/dataloader.py)."""
    notes = trace.annotations
    return notes.take(notes.named(lambda name: name.startswith("enumerate(DataLoader)#") and "__next__" in name))


def _overhead_elsewhere(trace: Trace) -> Intervals:
    """Profiler overhead on threads that are not the program's, such as a buffer flush."""
    overheads = trace.overheads
    foreign = ~np.isin(overheads.thread, distinct(trace.runtime_calls.thread))
    return union(overheads.start_ns[foreign], overheads.end_ns[foreign])


def _call_around(host: _Host, threads: tuple[int, int], at: I64) -> I64:
    """The outermost of the blocking calls around each instant on one of the threads; -1 if none."""
    calls = host.trace.runtime_calls
    found = np.full(len(at), -1, np.int64)
    for thread in threads:
        mine = host.blocking.row[rows_of(host.blocked, thread)]
        here = outermost(calls.start_ns[mine], calls.end_ns[mine], at)
        found = np.where(found < 0, pick(mine, here), found)
    return found


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
