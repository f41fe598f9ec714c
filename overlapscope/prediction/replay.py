"""Discrete-event simulation of a dependency graph.

Threads and lanes advance as far as what they wait for is known; that needs no clock, since an item's start is the
largest of what precedes it. Only copy engines need one: two lanes may want one engine, and copies in opposite
directions slow each other while both run. So whenever nothing else can advance, the earliest of the engines' next
events happens: a copy takes a free engine, or one ends. That is exact: whatever has not yet been computed depends on a
copy that has not ended, and so lies behind the earliest event.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from overlapscope.analysis.edges import HANDOVER_NS
from overlapscope.analysis.grouping import distinct, rows_by
from overlapscope.base.intervals import I64
from overlapscope.prediction.graph import Graph
from overlapscope.trace.model import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    _Actor = Iterator[list["_Actor"]]

_NEVER = float("inf")
_NEVER_NS = 2**61


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """When everything happens. Rows are those of the graph's items and calls; -1 where never."""

    start_ns: I64
    end_ns: I64
    call_start_ns: I64
    call_end_ns: I64


class Deadlock(Exception):
    """Things wait for each other in a circle."""


def replay(graph: Graph) -> Replay:
    """Simulate; deterministic.

    Raises Deadlock where items and calls wait for each other in a circle, which no recording does.
    """
    return _Simulation(graph).run()


class _Engine:
    """A copy engine: the copies that are ready for it, and the one it works on."""

    __slots__ = ("at", "beside", "free", "item", "lag", "other", "ready", "work")

    def __init__(self, beside: float, lag: list[int]) -> None:
        self.beside = beside
        """Its rate beside the other direction, alone being 1."""
        self.other: _Engine = self
        self.ready: list[tuple[int, int]] = []
        """When, and which item: a heap."""
        self.lag = lag
        """Of each item: how long after the engine is free it begins."""
        self.item = -1
        self.work = 0.0
        """What is left to do, in ns alone, at `at`."""
        self.at = 0.0
        self.free = -_NEVER_NS
        """When its last copy ended."""

    def next_event(self) -> float:
        """When it takes its next copy, or ends the one it has, as things stand."""
        if self.item < 0:
            return max(self.ready[0][0], self.free) if self.ready else _NEVER
        alone = self.other.at - self.at if self.other.item >= 0 else _NEVER
        if alone >= self.work:
            return self.at + self.work
        alone = max(alone, 0.0)
        return self.at + alone + (self.work - alone) / self.beside

    def take(self, now: float) -> None:
        """Begin the next copy. Of those that are ready, or as good as, the one that came first when recorded."""
        possible = []
        while self.ready and self.ready[0][0] <= now + HANDOVER_NS:
            possible.append(heappop(self.ready)[::-1])
        self.item, ready_at = chosen = min(possible)
        for item, ready in possible:
            if (item, ready) != chosen:
                heappush(self.ready, (ready, item))
        self.at = max(now, ready_at, self.free + self.lag[self.item])

    def done(self, to: float) -> float:
        """How much work it does until then, if it has begun by then."""
        if self.item < 0 or to <= self.at:
            return 0.0
        beside = max(0.0, to - max(self.at, self.other.at)) if self.other.item >= 0 else 0.0
        return to - self.at - beside * (1 - self.beside)

    def advance(self, to: float) -> None:
        """Work until then, and so the other."""
        for engine, work in [(self, self.done(to)), (self.other, self.other.done(to))]:
            engine.work -= work
            engine.at = max(engine.at, to)


class _Simulation:
    def __init__(self, graph: Graph) -> None:
        items, calls = graph.items, graph.calls
        self._graph = graph
        self._origin = int(min(items.start_ns.min(initial=2**62), calls.start_ns.min(initial=2**62)))
        self._start = [0] * len(items)
        self._end: list[int | None] = [None] * len(items)
        self._call_start: list[int | None] = [None] * len(calls)
        self._call_end: list[int | None] = [None] * len(calls)
        self._work = items.duration_ns.tolist()
        self._todo: list[_Actor] = []
        # Those who wait for something go on when it is known.
        self._for_item: dict[int, list[_Actor]] = defaultdict(list)
        self._for_call: dict[int, list[_Actor]] = defaultdict(list)
        self._engines: dict[tuple[int, int], _Engine] = {}
        known, lag = graph.constants, items.engine_lag_ns.tolist()
        for device in distinct(items.device).tolist():
            h2d, d2h = _Engine(known.h2d_two_way or 1.0, lag), _Engine(known.d2h_two_way or 1.0, lag)
            h2d.other, d2h.other = d2h, h2d
            self._engines |= {(device, Kind.H2D): h2d, (device, Kind.D2H): d2h}

    def run(self) -> Replay:
        items, calls = self._graph.items, self._graph.calls
        todo = [self._lane(rows) for _, rows in reversed(rows_by(items.lane))]
        todo += [self._thread(rows) for _, rows in reversed(rows_by(calls.thread))]
        self._todo = todo
        while todo or self._engine_event():
            while todo:
                actor = todo.pop()
                waiting = next(actor, None)
                if waiting is not None:
                    waiting.append(actor)
        if None in self._end or None in self._call_end:
            raise Deadlock
        columns = (self._start, self._end, self._call_start, self._call_end)
        return Replay(*(np.array(times, np.int64) + self._origin for times in columns))

    def _lane(self, rows: I64) -> _Actor:
        """Runs the items of a lane in order; yields the list to be put on whenever something is not known yet."""
        items, orders = self._graph.items, self._graph.orders
        call_start, call_end, for_call = self._call_start, self._call_end, self._for_call
        starts, ends, for_item = self._start, self._end, self._for_item
        todo = self._todo
        before = _by_row(orders.then, orders.first, orders.lag_ns, rows)
        ended = -_NEVER_NS
        for item, call, after_call, launch_lag, queue_lag, release, copies, length in zip(
            rows.tolist(),
            items.call[rows].tolist(),
            items.after_call[rows].tolist(),
            items.launch_lag_ns[rows].tolist(),
            items.queue_lag_ns[rows].tolist(),
            (items.release_ns[rows] - self._origin).tolist(),
            items.on_engine[rows].tolist(),
            np.rint(np.where(items.gone, 0, items.duration_ns)[rows]).astype(np.int64).tolist(),
            strict=True,
        ):
            ready = max(ended + queue_lag, release)
            if call >= 0:
                known = call_end if after_call else call_start
                while (at := known[call]) is None:
                    yield for_call[call]
                if at + launch_lag > ready:
                    ready = at + launch_lag
            for first, lag in before.get(item, ()):
                while (at := ends[first]) is None:
                    yield for_item[first]
                if at + lag > ready:
                    ready = at + lag
            if copies:
                heappush(self._engine_of(item).ready, (ready, item))
                while (at := ends[item]) is None:
                    yield for_item[item]
                ended = at
            else:
                starts[item] = ready
                ends[item] = ended = ready + length
                if item in for_item:
                    todo += for_item.pop(item)

    def _thread(self, rows: I64) -> _Actor:
        """Makes the calls of a thread in order; yields likewise."""
        calls, waits = self._graph.calls, self._graph.waits
        begun, done, for_call = self._call_start, self._call_end, self._for_call
        ends, for_item = self._end, self._for_item
        todo = self._todo
        waited = _by_row(waits.call, waits.item, waits.lag_ns, rows)
        ended = -_NEVER_NS
        for call, before, length, other, release in zip(
            rows.tolist(),
            calls.before_ns[rows].tolist(),
            calls.length_ns[rows].tolist(),
            calls.handed_by[rows].tolist(),
            (calls.release_ns[rows] - self._origin).tolist(),
            strict=True,
        ):
            if other >= 0:
                while (handed := done[other]) is None:
                    yield for_call[other]
                at = max(handed + before, ended)
            else:
                at = max(ended + before, release)
            begun[call] = at
            if call in for_call:
                todo += for_call.pop(call)
            at += length
            for item, lag in waited.get(call, ()):
                while (over := ends[item]) is None:
                    yield for_item[item]
                if over + lag > at:
                    at = over + lag
            done[call] = ended = at
            if call in for_call:
                todo += for_call.pop(call)

    def _engine_of(self, item: int) -> _Engine:
        items = self._graph.items
        return self._engines[int(items.device[item]), int(items.kind[item])]

    def _engine_event(self) -> bool:
        """Let the earliest of all engines' events happen; False where there is none."""
        engine, at = None, _NEVER
        for candidate in self._engines.values():
            when = candidate.next_event()
            # At the same instant an end comes before a start: what it sets free may want the engine.
            if when < at or (when == at < _NEVER and candidate.item >= 0 and engine is not None and engine.item < 0):
                engine, at = candidate, when
        if engine is None:
            return False
        engine.advance(at)
        if engine.item < 0:
            engine.take(at)
            engine.work = self._work[engine.item]
            self._start[engine.item] = round(engine.at)
        else:
            item, engine.item = engine.item, -1
            engine.free = self._end[item] = round(at)
            self._todo += self._for_item.pop(item, [])
        return True


def _by_row(row: I64, other: I64, lag: I64, rows: I64) -> dict[int, list[tuple[int, int]]]:
    """For each of the given rows that has any: the others it waits for, each with its lag."""
    by_row: dict[int, list[tuple[int, int]]] = defaultdict(list)
    chosen = np.isin(row, rows)
    for one, two, three in zip(row[chosen].tolist(), other[chosen].tolist(), lag[chosen].tolist(), strict=True):
        by_row[one].append((two, three))
    return by_row
