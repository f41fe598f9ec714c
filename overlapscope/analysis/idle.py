"""Causes of idle time: each nanosecond of each gap has exactly one cause.

A gap ends when an op begins. If the op began as soon after its launch call's end as ops do on a drained device, the
host was late. Then the gap is the image of the host's activity until that call returned, shifted by the latency. If the
op was launched earlier, the device held it back, by an event wait or by its own latency. If the host waited for ops
that are not in the trace, the cause is unknown.

The host's activity is looked up on the thread that launched the op which ended the gap. If that thread shows no
activity, it is looked up on the thread that launched the previous op, because autograd launches from a thread of its
own. The most specific activity comes first: the profiler, Python's garbage collector, a graph's capture, the first use
of a kernel, pinning and pageable staging, allocation, other blocking calls, a DataLoader's next, CPU ops that launch
nothing, ops and calls that launch, then Python.

The last three, except long CPU ops, are charged to earlier blocking calls, up to the time for which these had kept the
host waiting while the GPU still worked: without them, the host would have been here that much earlier.

Where no CPU op of a thread was recorded, its ops and its Python look the same: time between launches that follow one
another closely is dispatch. The rest is Python if frames or samples show it, and else was not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.event_waits import EXACT, handover_ns
from overlapscope.analysis.holds import Edges
from overlapscope.analysis.host_work import Launcher, gc_pauses, launchers, long_ops
from overlapscope.analysis.missing_ops import find_missing
from overlapscope.analysis.periods import is_step, phases_of, request_waits
from overlapscope.analysis.pieces import IdleTime, cut_at, first_part
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import I64, Bool, Columns, locate, pick, quantile
from overlapscope.base.grouping import among, distinct
from overlapscope.base.intervals import Intervals, complement, contains, cut, intersect, join, subtract, union
from overlapscope.base.kept import kept
from overlapscope.catalog.causes import IDLE_RANK as RANK
from overlapscope.catalog.causes import IdleCause
from overlapscope.trace.calls import captures, launching
from overlapscope.trace.host import (
    Blocking,
    first_calls,
    first_ops,
    loading,
    outermost_around,
    pinning,
    rows_of,
    staging,
)
from overlapscope.trace.model import HostEvents, Trace
from overlapscope.trace.op_names import is_migration_to_host

# -- Host activity while the GPU waited for the host -------------------------------------------------

LAUNCH_PACE_NS = 200_000
"""Maximum distance between two launches of a burst, where no ops were recorded.

Python around a layer costs some 10 to 100 us.
"""

_SHORTEST_WAIT_NS = 20_000
"""A shorter blocking call found its work done, or almost done."""

_AT_CALL = (IdleCause.HOST_STAGING, IdleCause.ALLOCATION, IdleCause.HOST_SYNC)
"""Causes that blame a blocking call."""
_AT_LAUNCH = (RANK[IdleCause.DISPATCH], RANK[IdleCause.FIRST_LAUNCH])
"""Causes that blame the launch call itself."""


_NO_MARKS: Final[I64] = np.empty(0, np.int64)


class Late(Columns, frozen=True):
    """Stretches of host time whose images on the device are idle, one for each gap that a late launch ended."""

    start_ns: I64
    end_ns: I64
    shift_ns: I64
    """Number to add to a host time for the device's time."""
    launch: I64
    """Row in `Trace.runtime_calls`."""


class _Waits(Columns, frozen=True):
    """Times for which blocking calls kept the host waiting while the device worked, one row each."""

    late: I64
    """Row of `Late` of the first stretch after the wait."""
    start_ns: I64
    waited_ns: I64
    call: I64
    """Row in `Trace.runtime_calls`."""


class _Labelled(Columns, frozen=True):
    """Pieces of late host time, each with the host's activity."""

    late: I64
    """Row of `Late`."""
    start_ns: I64
    end_ns: I64
    cause: I64
    call: I64
    """Blocking call around it; -1 if there is none."""
    chargeable_ns: I64
    """Time that may be charged to an earlier wait, since the host was inside nothing in particular."""


def attribute_host(trace: Trace, timeline: Timeline, blocking: Blocking, late: Late) -> IdleTime:
    """Return the causes of idle time that ended with a late launch."""
    calls = trace.runtime_calls
    of_causes = (blocking.row[blocking.staging], blocking.row[blocking.allocation], blocking.waits)
    blocking_calls = calls.take(blocking.row)
    blocked = dict(zip(_AT_CALL, map(calls.take, of_causes), strict=True))
    waiting = blocking.row[~blocking.allocation]
    waiting = waiting[calls.end_ns[waiting] - calls.start_ns[waiting] >= _SHORTEST_WAIT_NS]
    outer_calls = calls.take(waiting)
    is_outer = outermost_around(outer_calls, outer_calls.thread, outer_calls.start_ns) == np.arange(len(waiting))
    outer, outer_calls = waiting[is_outer], outer_calls.take(is_outer)
    # Waits count from one late launch to the next; a copy that blocks is both a launch and a wait.
    called = calls.start_ns[late.launch]
    since = np.maximum(np.append(timeline.start_ns, called)[:-1], timeline.judged_from_ns)
    until = np.minimum(late.start_ns, called)
    labelled, waits = [], []
    for launcher, rows in launchers(trace, late.launch):
        pieces = _label(launcher, blocking_calls, blocked, late.take(rows))
        labelled.append(replace(pieces, late=rows[pieces.late], call=pick(blocking.row, pieces.call)))
        waited = subtract(launcher.inside(outer_calls), timeline.idle)
        threads = {launcher.thread, launcher.companion}
        of_threads = outer[np.sort(np.concatenate([rows_of(outer_calls, thread) for thread in threads]))]
        window = intersect(waited, union(since[rows], until[rows]))
        which, start, end = cut(calls.start_ns[of_threads], calls.end_ns[of_threads], window)
        following = rows[np.searchsorted(np.maximum.accumulate(until[rows]), start, side="right")]
        # A server has to wait for a step's tokens. Its work between that and the next step makes the device wait.
        within = _step_at(trace, start) == _step_at(trace, called[following])
        waits.append(_Waits(following, start, end - start, of_threads[which]).take(within))
    every_piece, every_wait = _Labelled.joined(labelled), _Waits.joined(waits)
    return _charge(
        trace,
        blocking,
        late,
        every_piece.take(np.lexsort((every_piece.start_ns, every_piece.late))),
        every_wait.take(np.lexsort((every_wait.start_ns, every_wait.late))),
    )


def _step_at(trace: Trace, host_ns: I64) -> I64:
    """Return the step of a server in which each instant lies on the host; 0 for other programs."""
    marks = trace.annotations.start_ns[is_step(trace.annotations)] if phases_of(trace) else _NO_MARKS
    return np.searchsorted(marks, host_ns, side="right")


def _label(launcher: Launcher, calls: HostEvents, blocked: Mapping[IdleCause, HostEvents], late: Late) -> _Labelled:
    """Return the stretches of one thread, cut wherever the activity of the thread or its companion changes.

    `calls` are those that block, to which the pieces refer, and `blocked` has them by the idle time that they cause.
    """
    trace, inside, ops_shown = launcher.trace, launcher.inside, launcher.shows_ops
    activities = (
        (IdleCause.AWAITING_REQUESTS, inside(request_waits(trace))),
        (IdleCause.PROFILER_OVERHEAD, inside(trace.overheads)),
        (IdleCause.GC_PAUSE, inside(gc_pauses(trace))),
        (IdleCause.GRAPH_CAPTURE, inside(captures(trace))),
        (IdleCause.FIRST_LAUNCH, inside(first_calls(trace))),
        (IdleCause.HOST_STAGING, join(*map(inside, (blocked[IdleCause.HOST_STAGING], pinning(trace), staging(trace))))),
        (IdleCause.ALLOCATION, inside(blocked[IdleCause.ALLOCATION])),
        (IdleCause.HOST_SYNC, inside(blocked[IdleCause.HOST_SYNC])),
        (IdleCause.DATA_LOADING, inside(loading(trace))),
        (IdleCause.PROFILER_OVERHEAD, _overhead_elsewhere(trace)),
        (IdleCause.GC_PAUSE, launcher.pauses_elsewhere),
        (IdleCause.FIRST_LAUNCH, intersect(inside(first_ops(trace)), launcher.dispatch)),
        (IdleCause.CPU_OPS, inside(long_ops(trace))),
    )
    rest = [(IdleCause.CPU_OPS, launcher.cpu_ops), (IdleCause.DISPATCH, launcher.dispatch)]
    if not ops_shown:
        slow, sampled = _slow_stretches(trace), trace.host_activity.stacks
        python = slow if sampled else intersect(slow, inside(trace.python_frames))
        rest += [(IdleCause.PYTHON, python), (IdleCause.NOT_RECORDED, slow)]
    layers = [(name, layer) for name, layer in (*activities, *rest) if len(layer.starts)]
    row, start, end = cut_at(late.start_ns, late.end_ns, [side for _, layer in layers for side in layer])
    cause = np.full(len(start), RANK[IdleCause.PYTHON if ops_shown else IdleCause.DISPATCH])
    for name, layer in reversed(layers):
        cause[contains(layer, start)] = RANK[name]
    chargeable_ns = np.where(contains(join(*(layer for _, layer in activities)), start), 0, end - start)
    around = outermost_around(calls, np.full(len(start), launcher.thread), start)
    if launcher.companion != launcher.thread:
        of_companion = outermost_around(calls, np.full(len(start), launcher.companion), start)
        around = np.where(around < 0, of_companion, around)
    call = np.where(among(cause, [RANK[at_call] for at_call in _AT_CALL]), around, -1)
    return _Labelled(row, start, end, cause, call, chargeable_ns)


def _charge(trace: Trace, blocking: Blocking, late: Late, pieces: _Labelled, waits: _Waits) -> IdleTime:
    """Charge host time without a particular activity to the waits before it.

    Pieces and waits are in the order of late launches, then of time.

    Returns:
        All idle time of the late launches, with its causes.
    """
    step = _step_at(trace, trace.runtime_calls.start_ns[late.launch])
    granted = _granted(np.append(False, step[1:] != step[:-1])[: len(late)], pieces, waits)
    # The first pieces of each late launch are charged, up to the granted time.
    charged = first_part(granted[pieces.late], pieces.late, pieces.chargeable_ns)
    # Charged pieces and the waits that they are charged to, laid end to end, are cut where either changes.
    call, amount = _debtors(waits, granted)
    to_call, to_piece = np.cumsum(amount), np.cumsum(charged)
    edges = distinct(np.concatenate([[0], to_call, to_piece]))
    piece = np.searchsorted(to_piece, edges[:-1], side="right")
    before = pick(call, np.searchsorted(to_call, edges[:-1], side="right"))
    start = pieces.start_ns[piece] + edges[:-1] - (to_piece - charged)[piece]
    staged = among(before, blocking.row[blocking.staging])
    cause = np.where(staged, RANK[IdleCause.HOST_STAGING], RANK[IdleCause.HOST_SYNC])
    launch = late.launch[pieces.late]
    call_itself = np.where(among(pieces.cause, _AT_LAUNCH), launch, pieces.call)

    def on_device(piece: I64, start: I64, end: I64, cause: I64, call: I64) -> IdleTime:
        """Return the image of host time of the given pieces."""
        shift = late.shift_ns[pieces.late[piece]]
        return IdleTime.filled(
            start_ns=start + shift,
            end_ns=end + shift,
            cause=cause,
            confidence=EXACT,
            call=call,
            host_ns=start,
            thread=trace.runtime_calls.thread[launch[piece]],
        )

    everything = np.arange(len(pieces))
    return IdleTime.in_order(
        [
            on_device(piece, start, start + np.diff(edges), cause, before),
            on_device(everything, pieces.start_ns + charged, pieces.end_ns, pieces.cause, call_itself),
        ]
    )


def _granted(anew: Bool, pieces: _Labelled, waits: _Waits) -> I64:
    """Return the time before each late launch that is charged to waits.

    A wait delayed the host by as long as it lasted while the device worked. Without it the host would have been ahead
    by that much, and the idle time after it would be gone until the lead is used up. So each wait adds to a lead, and
    idle time takes from it, starting with the latest wait. `anew` selects the launches before which no lead is left.
    """
    count, first = len(anew), np.flatnonzero(anew)
    wanted = np.bincount(pieces.late, weights=pieces.chargeable_ns, minlength=count).astype(np.int64)
    waited = np.bincount(waits.late, weights=waits.waited_ns, minlength=count).astype(np.int64)
    # An additional launch that wants everything uses up the lead.
    wanted, waited = np.insert(wanted, first, waited.sum()), np.insert(waited, first, 0)
    balance = np.cumsum(waited - wanted)
    lead = balance - np.minimum(np.minimum.accumulate(balance), 0)
    charged = waited + np.append(0, lead[:-1]) - lead
    return np.delete(charged, first + np.arange(len(first)))


def _debtors(waits: _Waits, granted: I64) -> tuple[I64, I64]:
    """Return the waits whose lead the granted charges use up, latest wait first.

    Returns:
        `(call, amount)` in the order of the charges.
    """
    open_waits: list[list[int]] = []
    charges: list[tuple[int, int]] = []
    each = list(zip(waits.call.tolist(), waits.waited_ns.tolist(), strict=True))
    added = np.searchsorted(waits.late, np.arange(len(granted) + 1), side="left").tolist()
    for late in distinct(np.concatenate([waits.late, np.flatnonzero(granted)])).tolist():
        open_waits += map(list, each[added[late] : added[late + 1]])
        owed = int(granted[late])
        while owed:
            call, lead = open_waits[-1]
            part = min(lead, owed)
            charges.append((call, part))
            owed -= part
            open_waits[-1][1] -= part
            if not open_waits[-1][1]:
                open_waits.pop()
    columns = np.array(charges, np.int64).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


@kept()
def _slow_stretches(trace: Trace) -> Intervals:
    """Return the host time before launches that come more than `LAUNCH_PACE_NS` after the one before, or are first."""
    calls, launches = trace.runtime_calls, launching(trace)
    begin = min(int(table.start_ns.min(initial=np.iinfo(np.int64).max)) for table in (calls, trace.gpu_ops))
    start, end = calls.start_ns[launches], np.append(begin, calls.end_ns[launches])[:-1]
    apart = start - end > LAUNCH_PACE_NS
    return union(end[apart], start[apart])


@kept()
def _overhead_elsewhere(trace: Trace) -> Intervals:
    """Return profiler overhead on threads that are not the program's, such as a buffer flush."""
    overheads = trace.overheads
    foreign = locate(distinct(trace.runtime_calls.thread), overheads.thread) < 0
    return union(overheads.start_ns[foreign], overheads.end_ns[foreign])


# -- Gaps --------------------------------------------------------------------------------------------

LAUNCH_LATENCY_NS = 10_000
"""Maximum time from a launch call's end to its op's start on a drained device, unless the trace shows longer ones."""

MAX_LATENCY_NS = 100_000
"""Maximum time from a launch call's end to its op's start on a drained device, whatever the trace shows."""
_MIN_DRAINED = 3


def attribute(trace: Trace, timeline: Timeline, edges: Edges, blocking: Blocking) -> IdleTime:
    """Return the causes of a device's idle time."""
    start, end = timeline.idle
    judged = np.clip(timeline.judged_from_ns, start, end)
    # Among several ops that begin at once, a gap ends with the one launched first.
    ops = timeline.ops
    order = np.lexsort((np.where(ops.launch >= 0, ops.launch, np.iinfo(np.int64).max), ops.start_ns))
    op = order[np.searchsorted(ops.start_ns[order], end, side="left")]
    nameless = ops.launch[op] < 0
    # Between two pages that the host touches it does work of its own, which no call shows.
    touched = nameless & ops.named(is_migration_to_host)[op]
    called = union(trace.runtime_calls.start_ns, trace.runtime_calls.end_ns)
    touching = cut(judged[touched], end[touched], complement(called, timeline.start_ns, timeline.end_ns))
    calling = cut(judged[touched], end[touched], called)
    nameless &= ~touched
    inside = _inside_graphs(trace, timeline, op)
    launched = ~inside & (ops.launch[op] >= 0)

    def with_cause(cause: IdleCause, start: I64, end: I64) -> IdleTime:
        """Return idle time with a cause that doesn't depend on the host."""
        return IdleTime.filled(
            start_ns=start, end_ns=end, cause=RANK[cause], confidence=EXACT, call=-1, host_ns=start, thread=-1
        )

    idle = IdleTime.in_order(
        [
            with_cause(IdleCause.LEAD_IN, start, judged),
            with_cause(IdleCause.UNKNOWN, judged[nameless], end[nameless]),
            with_cause(IdleCause.GRAPH_GAP, judged[inside], end[inside]),
            with_cause(IdleCause.UNKNOWN, *calling[1:]),
            with_cause(IdleCause.NOT_RECORDED, *touching[1:]),
            *_after_launches(trace, timeline, edges, blocking, op[launched], judged[launched], end[launched]),
        ]
    )
    return _without_ops(trace, timeline, blocking, idle)


def _inside_graphs(trace: Trace, timeline: Timeline, op: I64) -> Bool:
    """Select the gaps between two ops of a server's graph, given the op that ends each gap."""
    launch, start = timeline.ops.launch, timeline.ops.start_ns
    first = np.full(len(trace.runtime_calls) + 1, np.iinfo(np.int64).max)
    if phases_of(trace):
        np.minimum.at(first, launch[launch >= 0], start[launch >= 0])
    # The last place stands for ops without a launch.
    inside: Bool = first[launch[op]] < start[op]
    return inside


def _after_launches(
    trace: Trace, timeline: Timeline, edges: Edges, blocking: Blocking, op: I64, start: I64, end: I64
) -> list[IdleTime]:
    """Return the causes of gaps, given by starts and ends, that end with ops whose launch was recorded.

    Before the op was issued, the host was responsible, and after that the device: the op could not begin before the op
    that it waited for by event had ended, and the rest is handover or latency.
    """
    calls, launch = trace.runtime_calls, timeline.ops.launch[op]
    called, returned = calls.start_ns[launch], calls.end_ns[launch]
    edge = edges.last_to_end(len(timeline.ops))[op]
    # An op that was launched too late did not wait.
    held = (edge >= 0) & (returned < end)
    until, confidence = pick(edges.source_end_ns, edge), np.where(held, pick(edges.confidence, edge), EXACT)
    drained, latency = ~held & (called >= start), np.maximum(end - returned, 0)
    limit = _latency_limit(latency, held, drained)
    in_time = (latency <= limit) & ~(held & (until > start))
    issued = np.where(in_time, end, np.clip(returned, start, end))
    shift = np.where(in_time, latency, 0)
    late = Late(start - shift, issued - shift, shift, launch).take(issued > start)
    free = np.where(held, np.clip(until, issued, end), issued)
    bound = held & (end - free <= handover_ns(confidence))
    quick = end - free < np.where(drained, limit, LAUNCH_LATENCY_NS)
    rest = np.where(quick, RANK[IdleCause.LAUNCH_LATENCY], RANK[IdleCause.UNKNOWN])
    waiting = IdleTime.filled(
        start_ns=issued,
        end_ns=free,
        cause=RANK[IdleCause.EVENT_WAIT],
        confidence=confidence,
        call=launch,
        host_ns=called,
        thread=calls.thread[launch],
    )
    cause = np.where(bound, RANK[IdleCause.EVENT_WAIT], rest).astype(np.int8)
    confidence = np.where(bound, confidence, EXACT).astype(np.int8)
    behind = replace(waiting, start_ns=free, end_ns=end, cause=cause, confidence=confidence)
    return [waiting, behind, attribute_host(trace, timeline, blocking, late)]


def _without_ops(trace: Trace, timeline: Timeline, blocking: Blocking, idle: IdleTime) -> IdleTime:
    """Return the idle time with missing-ops as the cause of time in which ops are missing."""
    missing = find_missing(trace, timeline, blocking)
    if not len(missing):
        return idle
    when = union(missing.start_ns, missing.end_ns)
    rest = cut(idle.start_ns, idle.end_ns, complement(when, timeline.start_ns, timeline.end_ns))
    return IdleTime.in_order([idle.parts(*rest), missing])


def _latency_limit(latency: I64, held: Bool, drained: Bool) -> int:
    """Return the maximum latency of an op that found the device drained.

    It is `LAUNCH_LATENCY_NS`, unless the trace shows longer latencies: clocks agree to some 10 us only (kineto.md), and
    some drivers and graphs take longer. Ops launched after the device had become idle show it reliably. If there are
    too few of them, a latency that most gaps share shows it, because the latency of a queue would vary.

    Args:
        latency: Time from the end of each launch to its op's start.
        held: Ops that an event held back.
        drained: Ops that were launched onto an idle device, and that nothing held.
    """
    if int(drained.sum()) >= _MIN_DRAINED:
        typical = int(np.median(latency[drained]))
    else:
        quick, middle = (0, 0) if held.all() else (quantile(latency[~held], share) for share in (0.1, 0.5))
        typical = int(middle) if middle - quick <= LAUNCH_LATENCY_NS else 0
    return LAUNCH_LATENCY_NS + min(max(typical - LAUNCH_LATENCY_NS // 2, 0), MAX_LATENCY_NS)
