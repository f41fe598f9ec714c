"""Discrete-event simulation of a dependency graph.

Threads and lanes are chains, which run their members one after another. A chain advances as far as the times it waits
for are known. Chains need no clock, since an item's start is the latest of the times before it. Members of a chain that
wait only for each other, and for calls that become known together, are a single step of the simulation; numpy computes
the times inside it.

Only copy engines need a clock: two lanes may want one engine, and copies in opposite directions slow each other. So
when nothing else can advance, the earliest of the engines' next events happens: a copy starts or ends. This is exact,
because every unknown time depends on a copy that has not ended, and is later than that event.
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from overlapscope.analysis.event_waits import HANDOVER_NS
from overlapscope.analysis.host_order import EARLIEST_NS
from overlapscope.base.grouping import rows_by
from overlapscope.base.intervals import I64, Bool
from overlapscope.prediction.graph import Network
from overlapscope.trace.model import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from overlapscope.prediction.calibration import Constants

    _Actor = Iterator[list["_Actor"]]

_NEVER_NS = 2**61
_UNKNOWN = 2**62
"""A time that is not computed yet."""
_NO_ENGINE = 0
"""Stands for a kernel, which takes no copy engine."""
_LARGEST_SUM_NS = 2.0**56
"""The sums of longer chains might not fit into 64 bits, once copies slow each other."""
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
        """Remove the next of several copies in the queue: the first as recorded of those ready within a tolerance."""
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
        if alone_ns >= self.remaining_ns:
            return self.at_ns + self.remaining_ns
        alone_ns = max(alone_ns, 0.0)
        return self.at_ns + alone_ns + (self.remaining_ns - alone_ns) / self.beside_rate

    def start(self, work_ns: Sequence[float], starts: memoryview[int]) -> None:
        """Take the next copy; `work_ns` is the length of each item with the other engine idle."""
        ready_ns, item = self.ready.pop() if len(self.ready) == 1 else self.pick()
        self.item, other = item, self.other
        starts[item] = self.at_ns = begins_ns = max(ready_ns, self.free_ns + self.lag_ns[item])
        self.remaining_ns = work_ns[item]
        if other.item < 0:
            self.next_ns = begins_ns + self.remaining_ns
        else:
            self.next_ns, other.next_ns = self.end_ns(), other.end_ns()

    def end(self, ends: memoryview[int]) -> int:
        """End the copy, and return its item."""
        item, other, self.item = self.item, self.other, -1
        self.free_ns = ends[item] = ended_ns = round(self.next_ns)
        self.next_ns = max(self.ready[0][0], ended_ns) if self.ready else _NO_EVENT
        if other.item >= 0:
            other.next_ns = other.at_ns + other.remaining_ns
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
    """A simulation whose steps are bursts of calls and runs of items, both as long as possible.

    A burst is the starts and ends of a thread's calls up to the next wait, handover or release: once it begins, all of
    them are known. A run is items of a lane that wait only for each other and for calls of one burst. Its first item
    may wait for other items, too, and other items and calls may wait for its last.
    """

    def __init__(self, graph: Network) -> None:
        items, calls = graph.items, graph.calls
        self._graph = graph
        # All times count from the origin.
        self._origin = int(min(items.start_ns.min(initial=2**62), calls.start_ns.min(initial=2**62)))
        # Loops read and write single values, which is faster with memoryviews. The last item stands for releases.
        self._start, self._end = np.full((2, len(items) + 1), _UNKNOWN)
        self._end[-1] = 0
        self._starts, self._ends = memoryview(self._start.data), memoryview(self._end.data)
        self._before = _by_row(graph.orders.then, graph.orders.first, graph.orders.lag_ns)
        self._waits = _by_row(graph.waits.call, graph.waits.item, graph.waits.lag_ns)
        # Actors that wait for a time continue when it is known.
        self._for_item: dict[int, list[_Actor]] = defaultdict(list)
        self._for_burst: dict[int, list[_Actor]] = defaultdict(list)
        self._work = memoryview(np.ascontiguousarray(items.duration_ns).data)
        self._engines: list[Engine] = []
        threads = self._find_bursts()
        self._todo = [*self._find_runs()[::-1], *threads[::-1]]

    def run(self) -> Replay:
        todo = self._todo
        while todo or self._engine_event():
            while todo:
                actor = todo.pop()
                waiting = next(actor, None)
                if waiting is not None:
                    waiting.append(actor)
        last = self._order[self._runs[1]]
        if (self._begin == _UNKNOWN).any() or (self._end[last] == _UNKNOWN).any():
            raise Deadlock
        if len(last) < len(self._order):
            self._fill_in()
        call = self._begin[self._burst[:-1]] + self._offset[:-1]
        columns = (self._start[:-1], self._end[:-1], call[::2], call[1::2])
        return Replay(*(times + self._origin for times in columns))

    def _find_bursts(self) -> list[_Actor]:
        """Divide the calls into bursts, and return an actor for each thread."""
        calls, threads = self._graph.calls, [rows for _, rows in self._graph.by_thread()]
        # Starts and ends of calls in turn; those of a single thread are in order.
        instant, begins = np.arange(2 * len(calls)), np.zeros(2 * len(calls), np.bool_)
        lag = np.stack([calls.before_ns, calls.length_ns], axis=1).ravel()
        begins[::2] = (calls.handed_by >= 0) | (calls.release_ns > EARLIEST_NS)
        begins[[2 * int(rows[0]) for rows in threads]] = begins[2 * self._graph.waits.call + 1] = True
        if len(threads) > 1:
            instant = (2 * np.concatenate(threads)[:, np.newaxis] + np.arange(2)).ravel()
            begins, lag = begins[instant], lag[instant]
        first, last, since = _parts(begins, lag)
        # Burst of each start and end of a call in turn, and time since its begin; the last are of items without a call.
        self._burst, self._offset = np.empty((2, len(instant) + 1), np.int64)
        self._burst[-1], self._offset[-1] = len(first), -_NEVER_NS
        place = instant if len(threads) > 1 else slice(0, -1)
        self._burst[place] = np.repeat(np.arange(len(first)), last - first + 1)
        self._offset[place] = since - np.repeat(since[first], last - first + 1)
        self._begin = np.full(len(first) + 1, _UNKNOWN)
        self._begin[-1] = 0
        self._begins = memoryview(self._begin.data)
        call, is_end = np.divmod(instant[first], 2)
        giver, waiting = np.where(is_end, -1, calls.handed_by[call]), np.where(is_end, call, -1)
        handed = np.where(giver >= 0, 2 * giver + 1, -1)
        columns = waiting, lag[first], since[last] - since[first], self._from_origin(calls.release_ns[call])
        bursts = _lists(np.arange(len(first)), *columns, giver, self._burst[handed], self._offset[handed])
        return [self._thread(part) for part in _split(bursts, first, [2 * len(rows) for rows in threads])]

    def _from_origin(self, release_ns: I64) -> I64:
        return np.maximum(release_ns, self._origin - _NEVER_NS) - self._origin

    def _thread(self, bursts: list[tuple[int, ...]]) -> _Actor:
        """Make the calls of a thread in order; yield the list to wait on whenever a time is unknown."""
        begins, ends, for_burst, for_item, ended = self._begins, self._ends, self._for_burst, self._for_item, -_NEVER_NS
        for burst, waiting, gap, span, release, giver, giving, given in bursts:
            if giver >= 0:
                while (at := begins[giving]) == _UNKNOWN:
                    yield for_burst[giving]
                at = max(at + given + gap, ended)
            elif waiting < 0:
                at = max(ended + gap, release)
            else:
                at = ended + gap
                for item, lag in self._waits.get(waiting, ()):
                    while (over := ends[item]) == _UNKNOWN:
                        yield for_item[item]
                    if over + lag > at:
                        at = over + lag
            begins[burst] = at
            ended = at + span
            if burst in for_burst:
                self._todo += for_burst.pop(burst)

    def _find_runs(self) -> list[_Actor]:
        """Divide the items into runs, and return an actor for each lane."""
        graph, items, lanes = self._graph, self._graph.items, [rows for _, rows in rows_by(self._graph.items.lane)]
        launched, on_engine = items.call >= 0, items.on_engine
        call = np.where(launched, 2 * items.call + items.after_call, -1)
        ready = self._offset[call] + items.launch_lag_ns
        begins, ends, released = on_engine.copy(), on_engine.copy(), items.release_ns > self._origin - _NEVER_NS
        alone, later = np.flatnonzero(~launched), np.flatnonzero(launched & released)
        ready[alone] = np.maximum(ready[alone], self._from_origin(items.release_ns[alone]))
        for item, release in zip(later.tolist(), self._from_origin(items.release_ns[later]).tolist(), strict=True):
            self._before[item].append((len(items), release))
        begins[later] = begins[graph.orders.then] = ends[graph.orders.first] = ends[graph.waits.item] = True
        length = np.rint(items.duration_ns).astype(np.int64)
        burst, gap, order = self._burst[call], items.queue_lag_ns, lanes[0]
        if len(lanes) > 1:
            order = np.concatenate(lanes)
            begins, ends, burst = begins[order], ends[order], burst[order]
            ready, gap, length = ready[order], gap[order], length[order]
        begins[1:] |= ends[:-1] | (burst[1:] != burst[:-1])
        counts = [len(rows) for rows in lanes]
        begins[[0, *accumulate(counts[:-1])]] = True
        first, last, since = _parts(begins, gap, length)
        self._order, self._counts, self._runs, self._columns = order, counts, (first, last), (burst, ready, gap, length)
        # When each run would end if only the calls of all items but its first mattered.
        late = ready + length - since
        late[first] = -_NEVER_NS
        late = np.where(first < last, np.maximum.reduceat(late, first) + since[last], -_UNKNOWN)
        head, span = order[first], since[last] - since[first] + length[first]
        engine = np.where(on_engine[head], items.kind[head], _NO_ENGINE)
        runs = _lists(head, order[last], burst[first], ready[first], gap[first], span, late, engine)
        devices = [int(items.device[rows[0]]) for rows in lanes]
        lag, of_device = memoryview(np.maximum(items.engine_lag_ns, 0).data), dict[int, dict[int, Engine]]()
        for device in sorted({*devices}):
            of_device[device] = _engines(lag, graph.constants)
            self._engines += of_device[device].values()
        parts = zip(devices, _split(runs, first, counts), strict=True)
        return [self._lane(of_device[device], part) for device, part in parts]

    def _lane(self, engines: dict[int, Engine], runs: list[tuple[int, ...]]) -> _Actor:
        """Run the items of a lane in order; yield the list to wait on whenever a time is unknown."""
        begins, starts, ends, before = self._begins, self._starts, self._ends, self._before
        for_burst, for_item, ended = self._for_burst, self._for_item, -_NEVER_NS
        for item, last, burst, since, gap, span, late, kind in runs:
            while (begun := begins[burst]) == _UNKNOWN:
                yield for_burst[burst]
            ready = max(ended + gap, begun + since)
            if item in before:
                for first, lag in before[item]:
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
                ends[last] = ended = max(ready + span, begun + late)
                if last in for_item:
                    self._todo += for_item.pop(last)

    def _fill_in(self) -> None:
        """Compute the times of the items inside runs."""
        (burst, ready, gap, length), (first, last), lane = self._columns, self._runs, 0
        ready += self._begin[burst]
        ready[first] = self._start[self._order[first]]
        # Copies may take longer than by themselves.
        alone = first[first == last]
        length[alone] = self._end[self._order[alone]] - ready[alone]
        for count in self._counts:
            rows, here, lane = self._order[lane : lane + count], slice(lane, lane + count), lane + count
            unhindered = np.cumsum(gap[here] + length[here])
            self._end[rows] = end = unhindered + np.maximum.accumulate(ready[here] + length[here] - unhindered)
            self._start[rows] = end - length[here]

    def _engine_event(self) -> bool:
        """Let the engines' events happen, up to the end of the next copy; return False if there are none."""
        while True:
            engine = self._engines[0]
            for each in self._engines:
                # At the same instant, ends precede starts: a copy that waits for the end may want the engine.
                if each.next_ns < engine.next_ns or (each.next_ns == engine.next_ns and each.item >= 0 > engine.item):
                    engine = each
            other = engine.other
            if engine.next_ns == _NO_EVENT:
                return False
            if other.item >= 0 and engine.next_ns > other.at_ns:
                other.advance(engine.next_ns)
            if engine.item >= 0:
                self._todo += self._for_item.pop(engine.end(self._ends))
                return True
            engine.start(self._work, self._starts)


def _engines(lag_ns: Sequence[int], rates: Constants) -> dict[int, Engine]:
    """Return the copy engines of a device, by `trace.Kind`."""
    h2d, d2h = Engine(rates.h2d_two_way or 1.0, lag_ns), Engine(rates.d2h_two_way or 1.0, lag_ns)
    h2d.other, d2h.other = d2h, h2d
    return {Kind.H2D: h2d, Kind.D2H: d2h}


def _parts(begins: Bool, lag: I64, length: I64 | int = 0) -> tuple[I64, I64, I64]:
    """Return the first and the last member of each part of chains, and for each member the sum of the lags up to it.

    Each part has a single member if the sums might not fit into 64 bits.
    """
    if np.abs(lag).sum(dtype=np.float64) + np.sum(length, dtype=np.float64) > _LARGEST_SUM_NS:
        begins[:] = True
    first = begins.nonzero()[0]
    last = np.empty_like(first)
    last[:-1], last[-1:] = first[1:] - 1, len(begins) - 1
    return first, last, (lag + length).cumsum()


def _lists(*columns: I64) -> list[tuple[int, ...]]:
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _split(parts: list[tuple[int, ...]], first: I64, counts: list[int]) -> Iterator[list[tuple[int, ...]]]:
    """Yield the parts of each chain, given the first member of each part and the number of members of each chain."""
    for begin, end in pairwise(np.searchsorted(first, [0, *accumulate(counts)]).tolist()):
        yield parts[begin:end]


def _by_row(row: I64, other: I64, lag: I64) -> dict[int, list[tuple[int, int]]]:
    """Return for each row the others that it waits for, each with its lag."""
    by_row: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for member, awaited, wait_lag in zip(row.tolist(), other.tolist(), lag.tolist(), strict=True):
        by_row[member].append((awaited, wait_lag))
    return by_row
