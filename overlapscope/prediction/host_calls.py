"""The host's side of the dependency graph: calls with their predecessors, and the items they wait for."""

from __future__ import annotations

import re
from itertools import groupby
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis import calls as call_kinds
from overlapscope.analysis.grouping import distinct, rows_by
from overlapscope.analysis.host import find_blocking
from overlapscope.analysis.periods import is_step
from overlapscope.base.columns import locate, mask_of, pick
from overlapscope.prediction.calibration import Constants
from overlapscope.prediction.graph import Calls, DeviceItems, Waits
from overlapscope.prediction.thread_turns import Relation, relations
from overlapscope.trace.model import I64, Bool, Memory, Sync, Trace, stream_keys

_EARLIEST = -(2**61)
_FREES = call_kinds.whole_name(
    r"(cuda|hip)(Free|FreeHost|HostFree|HostUnregister)|(cu|hip)Mem(Free|FreeHost|HostUnregister)"
)
"""Calls that wait until the device has finished its work (CUDA Runtime API, "implicit synchronization")."""
_DEVICE_SYNC = call_kinds.whole_name(r"(cuda|hip)DeviceSynchronize|cuCtxSynchronize|hipCtxSynchronize")
_NODE = re.compile(r"(autograd::engine::evaluate_function|torch::autograd::).*|\w+Backward\d*", re.DOTALL)
"""Autograd's names for the nodes of its graph; until torch 1.9 they had no prefix."""
_RETURN_NS = 500
"""Minimum time from the end of an item to the return of the call that waits for it: the host has to notice."""
_SKEW_NS = 2_000
"""Maximum time by which an op may end after the return of a call that waited for it: clocks disagree a little."""
_QUEUE_DEPTH = 256
"""Minimum number of pending launches for a long launch call to mean that the queue was full. CUDA's queue holds 1024.
"""
_LONG_CALL_NS = 50_000


class HostCalls(NamedTuple):
    """The calls of a trace that launch or block, except those inside another one."""

    calls: Calls
    of_runtime_call: I64
    """Row of `calls` that each row of `Trace.runtime_calls` is or is part of; -1 for none."""
    threads: tuple[int, ...]
    """Operating-system id of each thread number."""


def find_calls(trace: Trace) -> HostCalls:
    """Find the calls that launch or block."""
    runtime = trace.runtime_calls
    part_of = _outermost(trace)
    rows = np.flatnonzero(part_of == np.arange(len(runtime)))
    start, end = runtime.start_ns[rows], runtime.end_ns[rows]
    threads, thread = np.unique(runtime.thread[rows], return_inverse=True)
    calls = Calls.filled(
        row=rows,
        thread=thread,
        before_ns=0,
        since_ns=start,
        length_ns=end - start,
        handed_by=-1,
        maybe_by=-1,
        release_ns=_EARLIEST,
        start_ns=start,
        end_ns=end,
    )
    place = np.full(len(runtime) + 1, -1, np.int64)
    place[rows] = np.arange(len(rows))
    return HostCalls(_in_order(trace, calls, threads), place[part_of], tuple(threads.tolist()))


def _outermost(trace: Trace) -> I64:
    """Return for each runtime call that launches or blocks the outermost such call around it; -1 for other calls."""
    runtime = trace.runtime_calls
    relevant = mask_of(call_kinds.launching(trace), len(runtime)) | mask_of(find_blocking(trace).row, len(runtime))
    candidates, outermost = np.flatnonzero(relevant), np.full(len(runtime), -1, np.int64)
    for _, of_thread in rows_by(runtime.thread[candidates]):
        rows = candidates[of_thread]
        ended = np.append(_EARLIEST, np.maximum.accumulate(runtime.end_ns[rows])[:-1])
        begins_anew = runtime.start_ns[rows] >= ended
        outermost[rows] = rows[np.maximum.accumulate(np.where(begins_anew, np.arange(len(rows)), 0))]
    return outermost


def _in_order(trace: Trace, calls: Calls, threads: I64) -> Calls:
    """Return the calls with their predecessors on the thread, or on a thread that handed over."""
    if not len(calls):
        return calls
    calls_of, previous = [of_thread for _, of_thread in rows_by(calls.thread)], calls.previous
    # End of the previous call on the thread, from which it was free for the work before the call.
    free_ns = pick(calls.end_ns, previous, _EARLIEST)
    before = np.where(previous < 0, 0, calls.start_ns - free_ns)
    release = np.where(previous < 0, calls.start_ns, _EARLIEST)
    handed, maybe = np.full(len(calls), -1, np.int64), np.full(len(calls), -1, np.int64)
    tied, engine, main = _ties(trace, calls, threads)
    ops_ns = [trace.cpu_ops.start_ns[trace.cpu_ops.thread == thread] for thread in threads.tolist()]
    for taker, of_thread in enumerate(calls_of):
        giving = _last_ended(calls, of_thread, free_ns, [calls_of[giver] for giver in tied[taker]])
        for call, other in zip(of_thread[giving >= 0].tolist(), giving[giving >= 0].tolist(), strict=True):
            made_ns, ended_ns = calls.start_ns[calls_of[int(calls.thread[other])]], int(calls.end_ns[other])
            if engine[taker] or _silent(ops_ns[taker], made_ns, int(free_ns[call]), ended_ns):
                handed[call] = other
                before[call] = calls.start_ns[call] - ended_ns
                release[call] = _EARLIEST
        if taker != main and (handed[of_thread] < 0).all():
            maybe[of_thread] = _last_ended(calls, of_thread, free_ns, [calls_of[main]])
    return replace(
        calls, before_ns=before, handed_by=handed, maybe_by=maybe, release_ns=release, since_ns=calls.start_ns - before
    )


def _last_ended(calls: Calls, of_thread: I64, ended: I64, others: list[I64]) -> I64:
    """Return for each call the last call of other threads before it; -1 if the thread's own `ended` later."""
    last, until = np.full(len(of_thread), -1, np.int64), ended[of_thread]
    ends = np.append(calls.end_ns, _EARLIEST)
    for rows in others:
        latest = pick(rows, np.searchsorted(calls.end_ns[rows], calls.start_ns[of_thread], side="right") - 1)
        last = np.where(ends[latest] > until, latest, last)
        until = np.maximum(until, ends[latest])
    return last


def _silent(ops_ns: I64, made_ns: I64, since: int, until: int) -> bool:
    """Return whether a thread began no op (`ops_ns`) while another made its calls (`made_ns`) in a period."""
    begun = int(np.append(made_ns, until)[np.searchsorted(made_ns, since)])
    low, high = np.searchsorted(ops_ns, [max(since, begun), until])
    return bool(low == high)


def _ties(trace: Trace, calls: Calls, threads: I64) -> tuple[list[list[int]], Bool, int]:
    """Find which threads may continue after a call of which others.

    Threads that take turns are tied. Autograd runs backward passes on threads of its own while the calling thread
    waits. These threads are tied to the main thread and to each other, unless they are seen to work side by side. The
    main thread is tied to every thread that it may have waited for.

    XLA's threads, which run no Python, work beside the main thread. They copy for it, and it waits for their copies.

    Returns:
        For each thread, the threads it is tied to, ascending; a mask of autograd's threads; the main thread.
    """
    engine = np.isin(threads, trace.cpu_ops.thread[trace.cpu_ops.named(lambda name: bool(_NODE.fullmatch(name)))])
    xlas = trace.framework == "jax"
    if xlas:
        engine = ~np.isin(threads, trace.python_frames.thread)
    main = _main_thread(trace, calls, threads, engine)
    engine[main] = False
    autograds = engine.copy()
    autograds[main] = True
    tied: list[list[int]] = [[] for _ in range(len(threads))]
    speaks = np.isin(threads[main], trace.cpu_ops.thread)
    for (first, second), relation in relations(trace, threads.tolist()).items():
        possible = relation == Relation.UNKNOWN or (xlas and bool(engine[first] or engine[second]))
        both = possible and bool(autograds[first] and autograds[second])
        for taker, giver in ((first, second), (second, first)):
            if relation == Relation.TURNS or both or (possible and taker == main and speaks):
                tied[taker].append(giver)
    return tied, engine, main


def _main_thread(trace: Trace, calls: Calls, threads: I64, engine: Bool) -> int:
    """Return the thread of the steps; without steps, the thread with the most calls, preferably not autograd's."""
    steps = trace.annotations.thread[is_step(trace.annotations)]
    stepping = np.flatnonzero(np.isin(threads, steps))
    if len(stepping):
        return int(stepping[0])
    return int(np.lexsort((-np.bincount(calls.thread), engine))[0])


def find_waits(trace: Trace, calls: Calls, items: DeviceItems, constants: Constants) -> tuple[Calls, Waits]:
    """Find the items that each call waits for, and reduce the calls to their lengths without waiting."""
    candidates = (_own_copies(calls, items), _synchronized(trace, calls, items), _queue_full(calls, items))
    call, item = (np.concatenate(rows) for rows in zip(*candidates, strict=True))
    waited = items.end_ns[item] > calls.start_ns[call]
    after = calls.end_ns[call] - items.end_ns[item]
    lag = np.where(waited, after, np.minimum(after, constants.return_ns or 0))
    length = calls.length_ns.copy()
    # The call's own length is hidden under its wait.
    length[call[waited]] = np.minimum(length[call[waited]], constants.sync_call_ns or 0)
    return replace(calls, length_ns=length), Waits(call, item, lag)


def _own_copies(calls: Calls, items: DeviceItems) -> tuple[I64, I64]:
    """Pair copy calls that returned after their copy with it: copies of pageable memory, or blocking by contract."""
    copies = np.flatnonzero(items.is_copy & (items.call >= 0) & (items.host_memory != Memory.PINNED))
    copies = copies[items.end_ns[copies] <= calls.end_ns[items.call[copies]]]
    return items.call[copies], copies


class _Synchronize(NamedTuple):
    """A call that waits for the device."""

    begin_ns: int
    end_ns: int
    lane: int
    """The only stream that it waits for, if a record states it; else -1."""
    all_streams: bool
    """True if it waits for all streams of a device."""
    frees: bool
    """True if it frees memory; then it may wait for nothing."""
    recorded_ns: int | None
    """When its event was recorded, if known."""

    def waited_for(self, launches: _LaunchedItems, ends_ns: I64) -> list[int]:
        """Return the items that it waited for."""
        if not launches.before(self.begin_ns):
            return []
        latest_ns = self.end_ns + _SKEW_NS
        before_event = -1 if self.recorded_ns is None else launches.last(self.recorded_ns)
        if before_event >= 0 and ends_ns[before_event] <= latest_ns:
            return [before_event]
        if not self.all_streams and self.lane not in launches.lanes:
            # It waits for an event: assume the item that ended last before the call returned.
            last_ended = launches.last_ended(self.begin_ns, self.end_ns - _RETURN_NS)
            return [last_ended] if last_ended >= 0 else []
        lanes = launches.lanes if self.all_streams else (self.lane,)
        last = [launches.last_on(lane, self.begin_ns) for lane in lanes]
        # The recording does not state the device. A device whose work outlasts the call is not the synchronized device.
        waited = [item for item in last if item >= 0 and ends_ns[item] <= latest_ns]
        if self.frees and not any(ends_ns[item] > self.begin_ns for item in waited):
            return []
        return waited


def _synchronized(trace: Trace, calls: Calls, items: DeviceItems) -> tuple[I64, I64]:
    """Pair synchronizes and calls that free memory with the items that they waited for: arrays of equal length."""
    runtime = trace.runtime_calls
    frees = call_kinds.named(runtime, _FREES)[calls.row]
    waits = call_kinds.synchronises(runtime)[calls.row] | frees
    all_streams = call_kinds.named(runtime, _DEVICE_SYNC)[calls.row] | frees
    stream, recorded_ns = stated_streams(trace, calls.row), _paired_events(trace, calls)
    launches = _LaunchedItems(calls, items)
    pairs: list[tuple[int, int]] = []
    for call in np.flatnonzero(waits).tolist():
        begin_ns, end_ns, lane = int(calls.start_ns[call]), int(calls.end_ns[call]), int(stream[call])
        state = bool(all_streams[call]), bool(frees[call]), recorded_ns.get(call)
        synchronize = _Synchronize(begin_ns, end_ns, lane, *state)
        pairs += [(call, item) for item in synchronize.waited_for(launches, items.end_ns)]
    call_of_wait, item_of_wait = np.array(pairs, np.int64).reshape(-1, 2).T
    return call_of_wait, item_of_wait


class _LaunchedItems:
    """The items that calls launched, in the order of the launches. Methods return -1 if there is no such item."""

    def __init__(self, calls: Calls, items: DeviceItems) -> None:
        launched = np.flatnonzero(items.call >= 0)
        launched = launched[np.argsort(items.call[launched], kind="stable")]
        called_ns = calls.start_ns[items.call[launched]]
        order = np.argsort(called_ns, kind="stable")
        self._item, self._called_ns = launched[order], called_ns[order]
        self._end_ns, lane = items.end_ns[self._item], items.lane[self._item]
        self.lanes = dict(rows_by(lane))
        """Places of each lane's items in that order."""

    def before(self, at_ns: int) -> int:
        """Return the number of items launched before an instant."""
        return int(np.searchsorted(self._called_ns, at_ns))

    def last(self, at_ns: int) -> int:
        """Return the last item launched before an instant."""
        before = self.before(at_ns)
        return int(self._item[before - 1]) if before else -1

    def last_on(self, lane: int, at_ns: int) -> int:
        """Return the last item of a lane launched before an instant."""
        before = int(np.searchsorted(self.lanes[lane], self.before(at_ns)))
        return int(self._item[self.lanes[lane][before - 1]]) if before else -1

    def last_ended(self, at_ns: int, until_ns: int) -> int:
        """Return the item that ended last by `until_ns`, among the recent launches before `at_ns`."""
        before = self.before(at_ns)
        recent = slice(max(0, before - _QUEUE_DEPTH * 4), before)
        ends = self._end_ns[recent]
        ended = np.flatnonzero(ends <= until_ns)
        return int(self._item[recent][ended[np.argmax(ends[ended])]]) if len(ended) else -1


def stated_streams(trace: Trace, rows: I64) -> I64:
    """Return the stream (`stream_keys`) that each runtime call synchronizes, if a record states it; else -1."""
    syncs = trace.syncs
    stated = syncs.take((syncs.kind == Sync.STREAM) & (syncs.stream >= 0) & (syncs.correlation > 0))
    record = locate(stated.correlation, trace.runtime_calls.correlation[rows])
    return pick(stream_keys(stated.device, stated.stream), record)


def _paired_events(trace: Trace, calls: Calls) -> dict[int, int]:
    """Return when the event of each event synchronize was recorded, if the order of the calls leaves no doubt.

    A synchronize names its event, but the call that records an event does not. If a thread waits for as many different
    events as it has recorded since its last wait, these events are paired in order.
    """
    runtime, syncs = trace.runtime_calls, trace.syncs
    stated = syncs.take((syncs.kind == Sync.EVENT) & (syncs.event >= 0) & (syncs.correlation > 0))
    event_of = dict(zip(stated.correlation.tolist(), stated.event.tolist(), strict=True))
    correlation = runtime.correlation[calls.row]
    waiting = np.flatnonzero(np.isin(correlation, stated.correlation))
    synced = dict(zip(calls.row[waiting].tolist(), waiting.tolist(), strict=True))
    if not synced:
        return {}
    records = call_kinds.records_event(runtime)
    recorded_at: dict[int, int] = {}
    for thread in distinct(runtime.thread[list(synced)]).tolist():
        recorded: list[int] = []
        of_thread = np.flatnonzero(runtime.thread == thread)
        calls_of_events = of_thread[records[of_thread] | np.isin(of_thread, list(synced))].tolist()
        for waits, rows in groupby(calls_of_events, key=synced.__contains__):
            if waits:
                recorded_at |= _in_pairs([synced[row] for row in rows], recorded, correlation, event_of)
            else:
                recorded = [int(runtime.start_ns[row]) for row in rows]
    return recorded_at


def _in_pairs(batch: list[int], recorded: list[int], correlation: I64, event_of: dict[int, int]) -> dict[int, int]:
    """Return when the event of each synchronize was recorded; empty if the numbers of events and records differ."""
    events = list(dict.fromkeys(event_of[int(correlation[call])] for call in batch))
    if len(events) != len(recorded):
        return {}
    return {call: recorded[events.index(event_of[int(correlation[call])])] for call in batch}


def _queue_full(calls: Calls, items: DeviceItems) -> tuple[I64, I64]:
    """Pair long launch calls made while the queue was full with the item that ended right before they returned."""
    launches = mask_of(items.call[(items.call >= 0) & ~items.is_copy], len(calls))
    long = np.flatnonzero(launches & (calls.length_ns > _LONG_CALL_NS))
    if not len(long):
        return long, long
    launched = np.sort(calls.start_ns[items.call[items.call >= 0]])
    by_end = np.argsort(items.end_ns, kind="stable")
    ended = np.searchsorted(items.end_ns[by_end], calls.end_ns[long], side="right")
    pending = np.searchsorted(launched, calls.start_ns[long]) - ended
    full = (pending >= _QUEUE_DEPTH) & (ended > 0)
    return long[full], by_end[ended[full] - 1]
