"""Host activity while the GPU waited for the host.

It is looked up on the thread that launched the op which ended the gap. If that thread shows no activity, it is looked
up on the thread that launched the previous op, because autograd launches from a thread of its own. The most specific
activity comes first: the profiler, Python's garbage collector, a graph's capture, the first use of a kernel, pinning
and pageable staging, allocation, other blocking calls, a DataLoader's next, CPU ops that launch nothing, ops and calls
that launch, then Python.

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

from overlapscope.analysis.calls import captures, launching
from overlapscope.analysis.event_waits import EXACT
from overlapscope.analysis.host import Blocking, first_calls, loading, outermost_around, pinning, rows_of, staging
from overlapscope.analysis.host_work import Launcher, gc_pauses, launchers, long_ops
from overlapscope.analysis.periods import is_step, phases_of, request_waits
from overlapscope.analysis.pieces import IdleTime, cut_at, first_part
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import Columns, locate, pick
from overlapscope.base.grouping import among, distinct
from overlapscope.base.intervals import I64, Bool, Intervals, contains, cut, intersect, join, subtract, union
from overlapscope.base.kept import kept
from overlapscope.catalog.causes import IDLE_RANK as RANK
from overlapscope.catalog.causes import IdleCause
from overlapscope.trace.model import HostEvents, Trace

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
    every = calls.take(blocking.row)
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
        pieces = _label(launcher, every, blocked, late.take(rows))
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
    every = (
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
        (IdleCause.CPU_OPS, inside(long_ops(trace))),
    )
    rest = [(IdleCause.CPU_OPS, launcher.cpu_ops), (IdleCause.DISPATCH, launcher.dispatch)]
    if not ops_shown:
        slow, sampled = _slow_stretches(trace), trace.host_activity.stacks
        python = slow if sampled else intersect(slow, inside(trace.python_frames))
        rest += [(IdleCause.PYTHON, python), (IdleCause.NOT_RECORDED, slow)]
    layers = [(name, layer) for name, layer in (*every, *rest) if len(layer.starts)]
    row, start, end = cut_at(late.start_ns, late.end_ns, [side for _, layer in layers for side in layer])
    cause = np.full(len(start), RANK[IdleCause.PYTHON if ops_shown else IdleCause.DISPATCH])
    for name, layer in reversed(layers):
        cause[contains(layer, start)] = RANK[name]
    chargeable_ns = np.where(contains(join(*(layer for _, layer in every)), start), 0, end - start)
    threads = launcher.thread, launcher.companion
    own, other = (outermost_around(calls, np.full(len(start), thread), start) for thread in threads)
    call = np.where(among(cause, [RANK[each] for each in _AT_CALL]), np.where(own < 0, other, own), -1)
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
