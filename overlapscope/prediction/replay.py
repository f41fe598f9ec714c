"""Discrete-event simulation of a dependency graph.

Threads and lanes are chains, which run their members one after another. A chain advances as far as the times it waits
for are known. Chains need no clock, since an item's start is the latest of the times before it. A long stretch of a
chain that waits only for itself, and for calls that become known together, is a running maximum, which numpy computes.

Only copy engines need a clock: two lanes may want one engine, and copies in opposite directions slow each other. So
when nothing else can advance, the earliest of the engines' next events happens: a copy starts or ends. This is exact,
because every unknown time depends on a copy that has not ended, and is later than that event.
"""

from __future__ import annotations

from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from overlapscope.base.columns import Columns, mask_of
from overlapscope.base.grouping import distinct, rows_by
from overlapscope.base.intervals import I64, Bool
from overlapscope.prediction.copy_engines import NEVER, Engine, EnginePair, ReadyCopy
from overlapscope.prediction.graph import DeviceItems, Network
from overlapscope.trace.model import Kind

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    _Actor = Iterator[list["_Actor"]]
    _Steps = Generator[list["_Actor"], None, int]
    """Part of an actor; returns when its last item or call ends."""

_NEVER_NS = 2**61
_UNKNOWN = 2**62
"""A time that is not computed yet."""
_NO_ENGINE = 0
"""Stands for a kernel, which takes no copy engine."""
_LONG = 48
"""Minimum length of a stretch for numpy to be faster than a loop."""
_LARGEST_SUM_NS = 2.0**60
"""The sums of a longer chain might not fit into 64 bits."""


class Replay(Struct, frozen=True, eq=False):
    """Times of a simulated graph. Rows are those of the graph's items and calls; -1 for never."""

    start_ns: I64
    end_ns: I64
    call_start_ns: I64
    call_end_ns: I64


class Deadlock(Exception):
    """Items and calls that wait for each other in a circle."""


def replay(graph: Network) -> Replay:
    """Simulate a graph, deterministically.

    Returns:
        The predicted times of every item and call.

    Raises:
        Deadlock: Items and calls wait for each other in a circle, which no recording does.
    """
    return _Simulation(graph).run()


class _Chain(Columns, frozen=True):
    """Members of a chain, in order. Times count from the origin of the simulation."""

    def rows(self) -> Iterator[tuple[int, ...]]:
        """Yield the values of each row."""
        return zip(*(getattr(self, name).tolist() for name in self.__struct_fields__), strict=True)


class _LaneItems(_Chain, frozen=True):
    """Items of a lane, in order."""

    item: I64
    """Row of `Network.items`."""
    call: I64
    """Index in `_Simulation._call` of the instant that the item waits for."""
    launch_lag: I64
    """Minimum time from that instant to its start."""
    gap: I64
    """Minimum time from the end of the item before it to its start."""
    release: I64
    """Earliest start."""
    engine: I64
    """`trace.Kind` of the engine it occupies; `_NO_ENGINE` for none."""
    length: I64
    """Length; unused for an item that occupies an engine."""


class _ThreadCalls(_Chain, frozen=True):
    """Calls of a thread, in order."""

    call: I64
    """Row of `Network.calls`."""
    gap: I64
    """Host work before it."""
    length: I64
    """Length without waiting."""
    handed_by: I64
    """Call of another thread that it comes after; -1 for none."""
    release: I64
    """Earliest start."""


class _Simulation:
    def __init__(self, graph: Network) -> None:
        items, calls = graph.items, graph.calls
        self._graph, self._on_engine = graph, items.on_engine
        self._origin = int(min(items.start_ns.min(initial=2**62), calls.start_ns.min(initial=2**62)))
        # Loops read and write single values, which is faster with memoryviews.
        self._start, self._end = np.full(len(items), _UNKNOWN), np.full(len(items), _UNKNOWN)
        self._starts, self._ends = memoryview(self._start.data), memoryview(self._end.data)
        # Start and end of each call in turn; the last value is for items without a call.
        self._call = np.append(np.full(2 * len(calls), _UNKNOWN), -_NEVER_NS)
        self._called = memoryview(self._call.data)
        self._burst = _bursts(graph)
        self._ordered, self._waiting = mask_of(graph.orders.then, len(items)), mask_of(graph.waits.call, len(calls))
        self._before = _by_row(graph.orders.then, graph.orders.first, graph.orders.lag_ns)
        self._waits = _by_row(graph.waits.call, graph.waits.item, graph.waits.lag_ns)
        self._todo: list[_Actor] = []
        # Actors that wait for a time continue when it is known.
        self._for_item: dict[int, list[_Actor]] = defaultdict(list)
        self._for_call: dict[int, list[_Actor]] = defaultdict(list)
        constants, lag = graph.constants, memoryview(np.maximum(items.engine_lag_ns, 0).data)
        work = memoryview(np.ascontiguousarray(items.duration_ns).data)
        self._engines = {
            device: EnginePair(
                Engine(constants.h2d_two_way or 1.0, lag), Engine(constants.d2h_two_way or 1.0, lag), work
            )
            for device in distinct(items.device).tolist()
        }

    def run(self) -> Replay:
        items = self._graph.items
        shared = self._on_engine & ~_on_own_engine(items, self._on_engine)
        todo = [self._lane(rows, shared[rows]) for _, rows in reversed(rows_by(items.lane))]
        todo += [self._thread(rows) for _, rows in reversed(self._graph.by_thread())]
        self._todo = todo
        while todo or self._engine_event():
            while todo:
                actor = todo.pop()
                waiting = next(actor, None)
                if waiting is not None:
                    waiting.append(actor)
        if (self._end == _UNKNOWN).any() or (self._call == _UNKNOWN).any():
            raise Deadlock
        columns = (self._start, self._end, self._call[:-1:2], self._call[1::2])
        return Replay(*(times + self._origin for times in columns))

    def _lane(self, rows: I64, shared: Bool) -> _Actor:
        """Run the items of a lane in order.

        Args:
            shared: Mask of the items whose engine other lanes use too, or the other direction slows.

        Yields:
            The list to wait on, whenever a time is unknown.
        """
        lane = self._items_of_lane(rows, shared)
        engines = self._engines[int(self._graph.items.device[rows[0]])]
        apart = self._ordered[rows]
        ended = -_NEVER_NS
        for part, long in _stretches(len(Kind) * self._burst[lane.call] + lane.engine, apart, lane.gap, lane.length):
            run = self._stretch_of_items if long else self._each_item
            ended = yield from run(lane.take(part), engines, ended)

    def _items_of_lane(self, rows: I64, shared: Bool) -> _LaneItems:
        items = self._graph.items
        call, gap, alone = items.call[rows], items.queue_lag_ns[rows], self._on_engine[rows] & ~shared
        gap[alone] = np.maximum(gap[alone], np.maximum(items.engine_lag_ns[rows[alone]], 0))
        return _LaneItems(
            item=rows,
            call=np.where(call >= 0, 2 * call + items.after_call[rows], -1),
            launch_lag=items.launch_lag_ns[rows],
            gap=gap,
            release=self._from_origin(items.release_ns[rows]),
            engine=np.where(shared, items.kind[rows], _NO_ENGINE),
            length=np.rint(np.where(items.gone[rows], 0, items.duration_ns[rows])).astype(np.int64),
        )

    def _stretch_of_items(self, items: _LaneItems, engines: EnginePair, ended: int) -> _Steps:
        """Run items that wait only for each other and for calls of a single burst; return the last end."""
        # When the last call of a burst is known, so are all its calls.
        last_call, last = int(items.call.max()), int(items.item[-1])
        while self._called[last_call] == _UNKNOWN:
            yield self._for_call[last_call]
        ready = np.maximum(self._call[items.call] + items.launch_lag, items.release)
        if kind := int(items.engine[0]):
            copies = zip(items.item.tolist(), items.gap.tolist(), ready.tolist(), strict=True)
            item, gap, ready_at = next(copies)
            engines.of(kind).want(ReadyCopy(max(ended + gap, ready_at), item, copies))
            while self._ends[last] == _UNKNOWN:
                yield self._for_item[last]
        else:
            self._start[items.item], self._end[items.item] = _run(ended, items.gap, ready, items.length)
            self._wake(self._for_item, self._ends)
        return self._ends[last]

    def _each_item(self, items: _LaneItems, engines: EnginePair, ended: int) -> _Steps:
        """Run items in a loop; return the last end."""
        before, called, starts, ends = self._before, self._called, self._starts, self._ends
        for_call, for_item = self._for_call, self._for_item
        for item, call, lag, gap, release, kind, length in items.rows():
            while (at := called[call]) == _UNKNOWN:
                yield for_call[call]
            ready = max(ended + gap, release, at + lag)
            for first, lag in before.get(item, ()):
                while (at := ends[first]) == _UNKNOWN:
                    yield for_item[first]
                if at + lag > ready:
                    ready = at + lag
            if kind:
                engines.of(kind).want(ReadyCopy(ready, item, iter(())))
                while (at := ends[item]) == _UNKNOWN:
                    yield for_item[item]
                ended = at
            else:
                starts[item] = ready
                ends[item] = ended = ready + length
                if item in for_item:
                    self._todo += for_item.pop(item)
        return ended

    def _thread(self, rows: I64) -> _Actor:
        """Make the calls of a thread in order; yield the list to wait on whenever a time is unknown."""
        calls = self._graph.calls
        release = self._from_origin(calls.release_ns[rows])
        thread = _ThreadCalls(rows, calls.before_ns[rows], calls.length_ns[rows], calls.handed_by[rows], release)
        apart = (thread.handed_by >= 0) | self._waiting[rows]
        ended = -_NEVER_NS
        for part, long in _stretches(self._burst[2 * rows], apart, thread.gap, thread.length):
            stretch = thread.take(part)
            if long:
                start, end = _run(ended, stretch.gap, stretch.release, stretch.length)
                self._call[2 * stretch.call], self._call[2 * stretch.call + 1], ended = start, end, int(end[-1])
                self._wake(self._for_call, self._called)
            else:
                ended = yield from self._each_call(stretch, ended)

    def _each_call(self, calls: _ThreadCalls, ended: int) -> _Steps:
        """Make calls in a loop; return the last end."""
        waits, todo, for_call, for_item = self._waits, self._todo, self._for_call, self._for_item
        called, ends = self._called, self._ends
        for call, gap, length, giver, release in calls.rows():
            begin, end = 2 * call, 2 * call + 1
            if giver >= 0:
                while (handed_over := called[2 * giver + 1]) == _UNKNOWN:
                    yield for_call[2 * giver + 1]
                at = max(handed_over + gap, ended)
            else:
                at = max(ended + gap, release)
            called[begin] = at
            if begin in for_call:
                todo += for_call.pop(begin)
            at += length
            for item, lag in waits.get(call, ()):
                while (over := ends[item]) == _UNKNOWN:
                    yield for_item[item]
                if over + lag > at:
                    at = over + lag
            called[end] = ended = at
            if end in for_call:
                todo += for_call.pop(end)
        return ended

    def _from_origin(self, release_ns: I64) -> I64:
        return np.maximum(release_ns, self._origin - _NEVER_NS) - self._origin

    def _wake(self, waiting: dict[int, list[_Actor]], times: memoryview[int]) -> None:
        """Continue the actors that wait for a time that is known now."""
        for row in [row for row in waiting if times[row] != _UNKNOWN]:
            self._todo += waiting.pop(row)

    def _engine_event(self) -> bool:
        """Let the engines' events happen, up to the first that an actor waits for; return False if there are none."""
        while True:
            first, *others = sorted(self._engines.values(), key=attrgetter("next"))
            if first.next[0] == NEVER:
                return False
            until = others[0].next[0] if others else NEVER
            item = first.run(until, self._for_item, self._starts, self._ends)
            if item is not None:
                self._todo += self._for_item.pop(item)
                return True


def _by_row(row: I64, other: I64, lag: I64) -> dict[int, list[tuple[int, int]]]:
    """Return for each row the others that it waits for, each with its lag."""
    by_row: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for member, awaited, wait_lag in zip(row.tolist(), other.tolist(), lag.tolist(), strict=True):
        by_row[member].append((awaited, wait_lag))
    return by_row


def _on_own_engine(items: DeviceItems, copies: Bool) -> Bool:
    """Return a mask of those of the `copies` on an engine that need no clock.

    They are on a lane of nothing but copies, which has the engine to itself while the other direction is idle. Their
    lengths must be whole nanoseconds, since a clock would round their sums. There must be no copies on another device,
    whose engines must not look ahead of the clock.
    """
    if not copies.any() or len(distinct(items.device[copies])) > 1:
        return np.zeros(len(items), np.bool_)
    lane = items.lane[copies][0]
    one_way = (items.kind[copies] == items.kind[copies][0]).all() and (copies == (items.lane == lane)).all()
    return copies if one_way and (items.duration_ns[copies] % 1 == 0).all() else np.zeros(len(items), np.bool_)


def _bursts(graph: Network) -> I64:
    """Return the number of the burst in which each time of a call becomes known: start, end, start, and so on.

    A burst is all times of a thread up to the next wait or handover. The last value, -1, is for items without a call.
    """
    calls = graph.calls
    begins = np.zeros((len(calls), 2), np.bool_)
    begins[:, 0] = (calls.handed_by >= 0) | (graph.previous < 0)
    begins[graph.waits.call, 1] = True
    by_thread = [rows for _, rows in graph.by_thread()]
    # The calls of a single thread are in order.
    order = np.concatenate(by_thread) if len(by_thread) > 1 else slice(None)
    burst = np.empty((len(calls), 2), np.int64)
    burst[order] = np.cumsum(begins[order].ravel()).reshape(-1, 2)
    return np.append(burst.ravel(), -1)


def _stretches(burst: I64, apart: Bool, gap: I64, length: I64) -> Iterator[tuple[slice, bool]]:
    """Yield a chain in parts: long stretches of one burst without an `apart` member, and the parts between them."""
    if len(burst) < _LONG or np.abs(gap).sum(dtype=np.float64) + length.sum(dtype=np.float64) > _LARGEST_SUM_NS:
        yield slice(0, len(burst)), False
        return
    first = np.flatnonzero(np.append(True, (burst[1:] != burst[:-1]) | apart[1:] | apart[:-1]))
    long = np.diff(first, append=len(burst)) >= _LONG
    parts = long | np.append(True, long[:-1])
    first, long = first[parts], long[parts]
    for begin, end, is_long in zip(first.tolist(), [*first[1:].tolist(), len(burst)], long.tolist(), strict=True):
        yield slice(begin, end), is_long


def _run(ended_ns: int, gap: I64, ready: I64, length: I64) -> tuple[I64, I64]:
    """Return when the members of a chain begin and end, each after its gap and not before it is ready."""
    unhindered = np.cumsum(gap + length)
    end = unhindered + np.maximum(np.maximum.accumulate(ready + length - unhindered), ended_ns)
    return end - length, end
