"""Why the GPU was idle: every nanosecond of every gap to exactly one cause.

A gap ends when an op begins. If that op began within `LAUNCH_LATENCY_NS` of its launch call's end, the host was
late, and the gap is the image of what the host did until that call returned, shifted by the latency. If the op
had been launched long before, the device held it back.

What the host did is looked up on the thread that launched the op and on the one that launched the op before it
(autograd launches from a thread of its own), most specific first: profiler overhead, pinning and pageable
staging, allocation, other blocking calls, a DataLoader's next, then the rest. Of the rest, as much is charged to a
blocking call before it as that call had kept the host waiting while the GPU still worked: that much earlier the host
could have been here. What then remains is launch-bound where launches follow one another closely, else host-compute.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from overlapscope.analysis.causes import IDLE_CAUSES, IdleCause
from overlapscope.analysis.edges import EXACT, HANDOVER_NS, Edges
from overlapscope.analysis.host import Blocking, around, on_thread, pinning
from overlapscope.analysis.timeline import Timeline
from overlapscope.intervals import (
    EMPTY,
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

RANK = {cause: rank for rank, cause in enumerate(IDLE_CAUSES)}

LAUNCH_LATENCY_NS = 10_000
"""An op that the device was ready for begins within this of its launch call's end (`design`: launch-latency)."""

LAUNCH_PACE_NS = 200_000
"""Two launches closer than this are one burst: the host was launching as fast as it could. Python around a
layer costs some 10 to 100 us, with the profiler's stacks up to twice that."""


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
class _Late:
    """Stretches of host time whose images are idle, one per gap that a late launch ended."""

    start_ns: I64
    end_ns: I64
    shift_ns: I64
    """Added to a host instant it gives the device's."""
    launch: I64
    previous: I64
    """The launch before it, of any thread; -1 where there is none."""


_HOST_LAYERS = (
    IdleCause.PROFILER_OVERHEAD,
    IdleCause.HOST_STAGING,
    IdleCause.ALLOCATION,
    IdleCause.HOST_SYNC,
    IdleCause.DATA_LOADING,
    IdleCause.HOST_COMPUTE,
)
_AT_CALL = (RANK[IdleCause.HOST_STAGING], RANK[IdleCause.ALLOCATION], RANK[IdleCause.HOST_SYNC])
_REST = (RANK[IdleCause.HOST_COMPUTE], RANK[IdleCause.LAUNCH_BOUND])


def attribute(trace: Trace, timeline: Timeline, edges: Edges, blocking: Blocking) -> IdleTime:
    """The causes of a device's idle time."""
    ops, calls, judged = timeline.ops, trace.runtime_calls, timeline.judged_from_ns
    gap_start, gap_end = timeline.idle
    lead_end = np.minimum(np.maximum(judged, gap_start), gap_end)
    start, end = lead_end, gap_end
    op = _ops_ending(timeline)
    launch = ops.launch[op]
    known = launch >= 0
    called = np.where(known, np.append(calls.start_ns, 0)[launch], end)
    returned = np.where(known, np.append(calls.end_ns, 0)[launch], end)
    thread = np.where(known, np.append(calls.thread, -1)[launch], -1)

    latency = np.maximum(end - returned, 0)
    in_time = latency <= LAUNCH_LATENCY_NS
    # The part before the op was issued is the host's, the part after it the device's.
    issued = np.where(in_time, end, np.clip(returned, start, end))
    launches = np.unique(trace.gpu_ops.launch[trace.gpu_ops.launch >= 0])
    shift = np.where(in_time, latency, 0)
    position = np.searchsorted(launches, launch)
    previous = np.where(known & (position > 0), np.append(launches, -1)[position - 1], -1)
    late = np.flatnonzero(known & (issued > start))
    host = _attribute_host(
        trace,
        timeline,
        blocking,
        launches,
        _Late((start - shift)[late], (issued - shift)[late], shift[late], launch[late], previous[late]),
    )

    held = np.full(len(ops), -1, np.int64)
    # Only a wait that ended just before the op began explains the time until then.
    bound = ops.start_ns[edges.held] - edges.source_end_ns <= HANDOVER_NS
    held[edges.held[bound]] = edges.confidence[bound]
    queued = np.where(
        held[op] >= 0,
        RANK[IdleCause.EVENT_WAIT],
        np.where(end - issued < LAUNCH_LATENCY_NS, RANK[IdleCause.LAUNCH_LATENCY], RANK[IdleCause.UNKNOWN]),
    )
    none = np.full(len(op), -1, np.int64)
    device = _table(
        np.where(known, issued, start),
        end,
        np.where(known, queued, RANK[IdleCause.UNKNOWN]),
        launch,
        called,
        thread,
        np.where(known & (held[op] >= 0), held[op], EXACT),
    )
    lead_in = _table(gap_start, lead_end, none * 0 + RANK[IdleCause.LEAD_IN], none, gap_start, none, none * 0 + EXACT)
    return _joined([lead_in, device, host])


def _attribute_host(trace: Trace, timeline: Timeline, blocking: Blocking, launches: I64, late: _Late) -> IdleTime:
    calls = trace.runtime_calls
    thread = calls.thread[late.launch]
    other = np.where(late.previous >= 0, np.append(calls.thread, -1)[late.previous], thread)
    slow = _slow_stretches(trace, launches)
    loading = _data_loading(trace)
    parts = []
    for pair in np.unique(np.stack([thread, other], axis=1), axis=0):
        rows = np.flatnonzero((thread == pair[0]) & (other == pair[1]))
        mine = _Late(*(getattr(late, f)[rows] for f in late.__slots__))
        parts.append(_attribute_pair(trace, timeline, blocking, slow, loading, mine, sorted(set(pair.tolist()))))
    return _joined(parts)


def _attribute_pair(
    trace: Trace,
    timeline: Timeline,
    blocking: Blocking,
    slow: Intervals,
    loading: HostEvents,
    late: _Late,
    threads: list[int],
) -> IdleTime:
    """Late launches from one thread, the ones before from the same or one other."""
    calls = trace.runtime_calls
    waiting = blocking.row[~blocking.allocation & ~blocking.staging]
    keeping = blocking.row[~blocking.allocation]

    def busy_in(table: HostEvents, rows: Index | None = None) -> Intervals:
        return join(EMPTY, *(on_thread(table, thread, rows) for thread in threads))

    waits = busy_in(calls, waiting)
    layers = (
        _overhead(trace, threads),
        join(busy_in(calls, blocking.row[blocking.staging]), busy_in(pinning(trace))),
        busy_in(calls, blocking.row[blocking.allocation]),
        waits,
        busy_in(loading),
        slow,
    )
    gap, start, end = _cut(late, layers)
    cause = np.full(len(start), RANK[IdleCause.LAUNCH_BOUND], np.int64)
    for layer, name in reversed(list(zip(layers, _HOST_LAYERS, strict=True))):
        cause[contains(layer, start)] = RANK[name]

    # Charge the rest to the calls that had kept the host waiting while the device still worked.
    called = calls.start_ns[late.launch]
    since = np.where(late.previous >= 0, np.append(calls.end_ns, 0)[late.previous], timeline.start_ns)
    kept = subtract(busy_in(calls, keeping), timeline.idle)
    budget = covered(kept, since, np.minimum(late.start_ns, called))
    rest = np.where(np.isin(cause, _REST), end - start, 0)
    passed = np.cumsum(rest) - rest
    first = np.searchsorted(gap, np.arange(len(late.launch)), side="left")
    passed -= passed[np.minimum(first, len(passed) - 1)][gap] if len(passed) else 0
    charged = np.clip(budget[gap] - passed, 0, rest)

    inside = _call_around(trace, blocking.row, threads, start)
    before = _last_wait(trace, keeping, threads, called)[gap]
    staged = np.isin(before, blocking.row[blocking.staging])
    charge = np.where(staged, RANK[IdleCause.HOST_STAGING], RANK[IdleCause.HOST_SYNC])
    launch, shift = late.launch[gap], late.shift_ns[gap]
    own = np.where(np.isin(cause, _AT_CALL), inside, -1)
    own[cause == RANK[IdleCause.LAUNCH_BOUND]] = launch[cause == RANK[IdleCause.LAUNCH_BOUND]]
    middle = start + charged
    thread = calls.thread[launch]
    sure = np.full(len(start), EXACT, np.int64)
    return _joined(
        [
            _table(start + shift, middle + shift, charge, before, start, thread, sure),
            _table(middle + shift, end + shift, cause, own, middle, thread, sure),
        ]
    )


def _cut(late: _Late, layers: tuple[Intervals, ...]) -> tuple[I64, I64, I64]:
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
    """Host time between two launches more than `LAUNCH_PACE_NS` apart, less what the launching ops need
    before and after their call."""
    calls = trace.runtime_calls
    thread, start, end = calls.thread[launches], calls.start_ns[launches], calls.end_ns[launches]
    op = around(trace.cpu_ops, thread, start)
    begins = np.where(op >= 0, np.append(trace.cpu_ops.start_ns, 0)[op], start)
    ends = np.where(op >= 0, np.append(trace.cpu_ops.end_ns, 0)[op], end)
    apart = start[1:] - end[:-1] > LAUNCH_PACE_NS
    leaves = np.minimum(np.maximum(ends[:-1], end[:-1]), start[1:])
    arrives = np.maximum(np.minimum(begins[1:], start[1:]), end[:-1])
    return union(leaves[apart], arrives[apart])


def _data_loading(trace: Trace) -> HostEvents:
    """When a thread was inside a DataLoader's next: PyTorch annotates it (torch/utils/data/dataloader.py)."""
    notes = trace.annotations
    wanted = [
        i for i, name in enumerate(notes.names) if name.startswith("enumerate(DataLoader)#") and "__next__" in name
    ]
    return notes.take(np.isin(notes.name_id, wanted))


def _overhead(trace: Trace, threads: list[int]) -> Intervals:
    """Profiler overhead that held these threads, or whose thread is not one of the program's."""
    table = trace.overheads
    strangers = ~np.isin(table.thread, np.unique(trace.runtime_calls.thread))
    mine = strangers | np.isin(table.thread, threads)
    return union(table.start_ns[mine], table.end_ns[mine])


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


def _ops_ending(timeline: Timeline) -> I64:
    """The op with which each gap ends: of several that begin at once, the first launched."""
    ops = timeline.ops
    order = np.lexsort((np.where(ops.launch >= 0, ops.launch, np.iinfo(np.int64).max), ops.start_ns))
    return order[np.searchsorted(ops.start_ns[order], timeline.idle.ends, side="left")]


def _table(start: I64, end: I64, cause: I64, call: I64, host: I64, thread: I64, sure: I64) -> IdleTime:
    kept = end > start
    columns = (column[kept] for column in (start, end, cause, call, host, thread, sure))
    start, end, cause, call, host, thread, sure = columns
    return IdleTime(start, end, cause.astype(np.int8), call, host, thread, sure.astype(np.int8))


def _joined(parts: list[IdleTime]) -> IdleTime:
    if not parts:
        nothing = np.empty(0, np.int64)
        return _table(*[nothing] * 7)
    columns = [np.concatenate([getattr(part, f) for part in parts]) for f in IdleTime.__slots__]
    order = np.argsort(columns[0], kind="stable")
    return IdleTime(*(column[order] for column in columns))
