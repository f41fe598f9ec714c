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
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from overlapscope.analysis.event_waits import HANDOVER_NS
from overlapscope.analysis.host_order import EARLIEST_NS
from overlapscope.base.columns import mask_of
from overlapscope.base.grouping import distinct, rows_by
from overlapscope.base.intervals import I64, Bool
from overlapscope.prediction.graph import Network
from overlapscope.trace.model import Kind

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

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
_NO_EVENT = float("inf")


class Engine:
    """A copy engine: the queue of ready copies, and the copy that it runs.

    Times are nanoseconds, with fractions while both engines of a device run. `remaining_ns` is the rest of the running
    copy at `at_ns`.
    """

    __slots__ = ("at_ns", "beside_rate", "free_ns", "item", "lag_ns", "next_ns", "other", "ready", "remaining_ns")

    def __init__(self, beside_rate: float, lag_ns: Sequence[int]) -> None:
        self.beside_rate = beside_rate
        """Rate while the other direction copies too, as a fraction of the rate alone."""
        self.lag_ns = lag_ns
        """Minimum time from the end of the previous copy to the start of each item."""
        self.other = self
        """The engine of the other direction."""
        self.ready: list[tuple[int, int]] = []
        """A heap of the copies that wait: the time when each is ready, and its item."""
        self.item = -1
        """The copy that runs; -1 for none."""
        self.remaining_ns = 0.0
        """Rest of the copy's length with the other engine idle."""
        self.at_ns = 0.0
        self.free_ns = EARLIEST_NS
        """End of its last copy."""
        self.next_ns = _NO_EVENT
        """When it starts its next copy or ends the running copy, unless another copy comes."""

    def want(self, ready_ns: int, item: int) -> None:
        """Queue a copy."""
        heappush(self.ready, (ready_ns, item))
        if self.item < 0:
            self.next_ns = max(self.ready[0][0], self.free_ns)

    def pick(self) -> tuple[int, int]:
        """Remove the next copy from the queue: the first as recorded among those ready within a tolerance."""
        if len(self.ready) == 1:
            return self.ready.pop()
        chosen, passed = heappop(self.ready), []
        while self.ready and self.ready[0][0] <= self.next_ns + HANDOVER_NS:
            passed.append(heappop(self.ready))
            if passed[-1][1] < chosen[1]:
                chosen, passed[-1] = passed[-1], chosen
        for copy in passed:
            heappush(self.ready, copy)
        return chosen

    def advance(self, until_ns: float) -> None:
        """Run the copy until an instant, more slowly while both engines run."""
        done_ns = until_ns - self.at_ns
        both_since_ns = max(self.other.at_ns, self.at_ns)
        if self.other.item >= 0 and until_ns > both_since_ns:
            done_ns -= (until_ns - both_since_ns) * (1 - self.beside_rate)
        self.remaining_ns -= done_ns
        self.at_ns = until_ns

    def end_ns(self) -> float:
        """Return the end of the copy if the other engine runs from its `at_ns` on."""
        alone_ns = self.other.at_ns - self.at_ns
        if self.other.item < 0 or alone_ns >= self.remaining_ns:
            return self.at_ns + self.remaining_ns
        alone_ns = max(alone_ns, 0.0)
        return self.at_ns + alone_ns + (self.remaining_ns - alone_ns) / self.beside_rate

    def start(self, work_ns: Sequence[float], starts: memoryview[int]) -> None:
        """Take the next copy; `work_ns` is the length of each item with the other engine idle."""
        ready_ns, self.item = self.pick()
        starts[self.item] = begins_ns = max(ready_ns, self.free_ns + self.lag_ns[self.item])
        self.at_ns, self.remaining_ns = begins_ns, work_ns[self.item]
        self.next_ns = self.end_ns()
        if self.other.item >= 0:
            self.other.next_ns = self.other.end_ns()

    def end(self, ends: memoryview[int]) -> int:
        """End the copy, and return its item."""
        item, self.item = self.item, -1
        self.free_ns = ends[item] = ended_ns = round(self.next_ns)
        self.next_ns = max(self.ready[0][0], ended_ns) if self.ready else _NO_EVENT
        if self.other.item >= 0:
            self.other.next_ns = self.other.at_ns + self.other.remaining_ns
        return item


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


class _Simulation:
    def __init__(self, graph: Network) -> None:
        items, calls = graph.items, graph.calls
        self._graph = graph
        # All times count from the origin.
        self._origin = int(min(items.start_ns.min(initial=2**62), calls.start_ns.min(initial=2**62)))
        # Loops read and write single values, which is faster with memoryviews.
        self._start, self._end = np.full(len(items), _UNKNOWN), np.full(len(items), _UNKNOWN)
        self._starts, self._ends = memoryview(self._start.data), memoryview(self._end.data)
        # Start and end of each call in turn; the last value is for items without a call.
        self._call = np.append(np.full(2 * len(calls), _UNKNOWN), -_NEVER_NS)
        self._called = memoryview(self._call.data)
        self._burst = _bursts(graph)
        self._call_of = np.where(items.call >= 0, 2 * items.call + items.after_call, -1)
        """Index in `_call` of the instant that each item waits for."""
        self._kind = np.where(items.on_engine, items.kind, _NO_ENGINE)
        """`trace.Kind` of the engine that each item occupies."""
        self._length = np.rint(np.where(items.gone, 0, items.duration_ns)).astype(np.int64)
        self._release, self._call_release = (
            np.maximum(at_ns, self._origin - _NEVER_NS) - self._origin for at_ns in (items.release_ns, calls.release_ns)
        )
        self._ordered, self._waiting = mask_of(graph.orders.then, len(items)), mask_of(graph.waits.call, len(calls))
        self._before = _by_row(graph.orders.then, graph.orders.first, graph.orders.lag_ns)
        self._waits = _by_row(graph.waits.call, graph.waits.item, graph.waits.lag_ns)
        self._todo: list[_Actor] = []
        # Actors that wait for a time continue when it is known.
        self._for_item: dict[int, list[_Actor]] = defaultdict(list)
        self._for_call: dict[int, list[_Actor]] = defaultdict(list)
        self._work = memoryview(np.ascontiguousarray(items.duration_ns).data)
        lag, rates = memoryview(np.maximum(items.engine_lag_ns, 0).data), graph.constants
        self._engines: dict[int, dict[int, Engine]] = {}
        for device in distinct(items.device).tolist():
            h2d, d2h = Engine(rates.h2d_two_way or 1.0, lag), Engine(rates.d2h_two_way or 1.0, lag)
            h2d.other, d2h.other = d2h, h2d
            self._engines[device] = {Kind.H2D: h2d, Kind.D2H: d2h}

    def run(self) -> Replay:
        items = self._graph.items
        todo = [self._lane(rows) for _, rows in reversed(rows_by(items.lane))]
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

    def _lane(self, rows: I64) -> _Actor:
        """Run the items of a lane in order; yield the list to wait on whenever a time is unknown."""
        call, apart, ended = self._call_of[rows], self._ordered[rows] | (self._kind[rows] > 0), -_NEVER_NS
        gap = self._graph.items.queue_lag_ns[rows]
        for part, long in _stretches(self._burst[call], apart, gap, self._length[rows]):
            run = self._stretch_of_items if long else self._each_item
            ended = yield from run(rows[part], ended)

    def _stretch_of_items(self, rows: I64, ended: int) -> _Steps:
        """Run items that wait only for each other and for calls of a single burst; return the last end."""
        items, call = self._graph.items, self._call_of[rows]
        # When the last call of a burst is known, so are all its calls.
        last_call = int(call.max())
        while self._called[last_call] == _UNKNOWN:
            yield self._for_call[last_call]
        ready = np.maximum(self._call[call] + items.launch_lag_ns[rows], self._release[rows])
        self._start[rows], self._end[rows] = _run(ended, items.queue_lag_ns[rows], ready, self._length[rows])
        self._wake(self._for_item, self._ends)
        return self._ends[int(rows[-1])]

    def _each_item(self, rows: I64, ended: int) -> _Steps:
        """Run items in a loop; return the last end."""
        before, called, starts, ends = self._before, self._called, self._starts, self._ends
        for_call, for_item, items = self._for_call, self._for_item, self._graph.items
        engines = self._engines[int(items.device[rows[0]])]
        columns = self._call_of, items.launch_lag_ns, items.queue_lag_ns, self._release, self._kind, self._length
        for item, call, lag, gap, release, kind, length in _lists(rows, *columns):
            while (at := called[call]) == _UNKNOWN:
                yield for_call[call]
            ready = max(ended + gap, release, at + lag)
            for first, lag in before.get(item, ()):
                while (at := ends[first]) == _UNKNOWN:
                    yield for_item[first]
                if at + lag > ready:
                    ready = at + lag
            if kind:
                engines[kind].want(ready, item)
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
        calls, ended = self._graph.calls, -_NEVER_NS
        apart = (calls.handed_by[rows] >= 0) | self._waiting[rows]
        for part, long in _stretches(self._burst[2 * rows], apart, calls.before_ns[rows], calls.length_ns[rows]):
            stretch = rows[part]
            if long:
                start, end = _run(
                    ended, calls.before_ns[stretch], self._call_release[stretch], calls.length_ns[stretch]
                )
                self._call[2 * stretch], self._call[2 * stretch + 1], ended = start, end, int(end[-1])
                self._wake(self._for_call, self._called)
            else:
                ended = yield from self._each_call(stretch, ended)

    def _each_call(self, rows: I64, ended: int) -> _Steps:
        """Make calls in a loop; return the last end."""
        waits, todo, for_call, for_item = self._waits, self._todo, self._for_call, self._for_item
        called, ends, calls = self._called, self._ends, self._graph.calls
        columns = calls.before_ns, calls.length_ns, calls.handed_by, self._call_release
        for call, gap, length, giver, release in _lists(rows, *columns):
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

    def _wake(self, waiting: dict[int, list[_Actor]], times: memoryview[int]) -> None:
        """Continue the actors that wait for a time that is known now."""
        for row in [row for row in waiting if times[row] != _UNKNOWN]:
            self._todo += waiting.pop(row)

    def _engine_event(self) -> bool:
        """Let the engines' events happen, up to the end of the next copy; return False if there are none."""
        engines = [engine for of_device in self._engines.values() for engine in of_device.values()]
        while True:
            # At the same instant, ends precede starts: a copy that waits for the end may want the engine.
            engine = min(engines, key=lambda engine: (engine.next_ns, engine.item < 0))
            other = engine.other
            if engine.next_ns == _NO_EVENT:
                return False
            if other.item >= 0 and engine.next_ns > other.at_ns:
                other.advance(engine.next_ns)
            if engine.item >= 0:
                self._todo += self._for_item.pop(engine.end(self._ends))
                return True
            engine.start(self._work, self._starts)


def _lists(rows: I64, *columns: I64) -> Iterator[tuple[int, ...]]:
    """Yield each row with its values in the columns."""
    return zip(rows.tolist(), *(column[rows].tolist() for column in columns), strict=True)


def _by_row(row: I64, other: I64, lag: I64) -> dict[int, list[tuple[int, int]]]:
    """Return for each row the others that it waits for, each with its lag."""
    by_row: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for member, awaited, wait_lag in zip(row.tolist(), other.tolist(), lag.tolist(), strict=True):
        by_row[member].append((awaited, wait_lag))
    return by_row


def _bursts(graph: Network) -> I64:
    """Return the number of the burst in which each time of a call becomes known: start, end, start, and so on.

    A burst is all times of a thread up to the next wait or handover. The last value, -1, is for items without a call.
    """
    calls = graph.calls
    begins = np.zeros((len(calls), 2), np.bool_)
    begins[:, 0] = (calls.handed_by >= 0) | (graph.calls.previous < 0)
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
