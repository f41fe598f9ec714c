"""Discrete-event simulation of a dependency graph.

Threads and lanes are chains: what is on one goes one after another. They advance as far as what they wait for is known;
that needs no clock, since an item's start is the largest of what precedes it. Where a long stretch of a chain waits for
nothing but itself and calls that come to be known at one go, it is a running maximum, and numpy's. Only copy engines
need a clock: two lanes may want one engine, and copies in opposite directions slow each other while both run. So
whenever nothing else can advance, the earliest of the engines' next events happens: a copy takes a free engine, or one
ends. That is exact: whatever has not yet been computed depends on a copy that has not ended, and so lies behind the
earliest event.
"""

from __future__ import annotations

from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct

from overlapscope.analysis.grouping import distinct, rows_by
from overlapscope.base.intervals import I64, Bool
from overlapscope.prediction.copy_engines import NEVER, Engine, Pair
from overlapscope.prediction.graph import Graph, Items
from overlapscope.trace.model import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    _Actor = Iterator[list["_Actor"]]

_NEVER_NS = 2**61
_UNKNOWN = 2**62
"""A time that has not been computed."""
_NO_ENGINE = 0
"""A kernel's kind, in place of a copy's."""
_LONG = 48
"""Of a stretch that numpy computes: from there on it is faster than a loop."""
_LARGEST_SUM_NS = 2.0**60
"""A chain of longer times might have sums that 64 bits do not hold."""


class Replay(Struct, frozen=True, eq=False):
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


class _Simulation:
    def __init__(self, graph: Graph) -> None:
        items, calls = graph.items, graph.calls
        self._graph = graph
        self._origin = int(min(items.start_ns.min(initial=2**62), calls.start_ns.min(initial=2**62)))
        # Loops read and write single values of memoryviews, which is faster.
        self._start, self._end = np.full(len(items), _UNKNOWN), np.full(len(items), _UNKNOWN)
        self._starts, self._ends = memoryview(self._start.data), memoryview(self._end.data)
        # When each call begins, and when it ends; and, last, what an item without a call waits for.
        self._call = np.append(np.full(2 * len(calls), _UNKNOWN), -_NEVER_NS)
        self._called = memoryview(self._call.data)
        self._after = np.where(items.call >= 0, 2 * items.call + items.after_call, -1)
        """Of each item: what it waits for there."""
        self._go = _goes(graph)
        self._duration = np.rint(np.where(items.gone, 0, items.duration_ns)).astype(np.int64)
        self._before = _by_row(graph.orders.then, graph.orders.first, graph.orders.lag_ns)
        self._waits = _by_row(graph.waits.call, graph.waits.item, graph.waits.lag_ns)
        self._todo: list[_Actor] = []
        # Those who wait for something go on when it is known.
        self._for_item: dict[int, list[_Actor]] = defaultdict(list)
        self._for_call: dict[int, list[_Actor]] = defaultdict(list)
        known, lag = graph.constants, memoryview(np.maximum(items.engine_lag_ns, 0).data)
        work = memoryview(np.ascontiguousarray(items.duration_ns).data)
        self._pairs = {
            device: Pair(Engine(known.h2d_two_way or 1.0, lag), Engine(known.d2h_two_way or 1.0, lag), work)
            for device in distinct(items.device).tolist()
        }

    def run(self) -> Replay:
        items = self._graph.items
        shared = items.on_engine & ~_on_own_engine(items)
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
        """Runs the items of a lane in order; yields the list to be put on whenever something is not known yet.

        `shared`: which of them take an engine that others may want, or that others slow.
        """
        items, before, todo = self._graph.items, self._before, self._todo
        called, for_call, for_item = self._called, self._for_call, self._for_item
        starts, ends, pair = self._starts, self._ends, self._pairs[int(items.device[rows[0]])]
        after, launch_lag, length = self._after[rows], items.launch_lag_ns[rows], self._duration[rows]
        gap = items.queue_lag_ns[rows]
        alone, taken = items.on_engine[rows] & ~shared, np.where(shared, items.kind[rows], _NO_ENGINE)
        gap[alone] = np.maximum(gap, np.maximum(items.engine_lag_ns[rows], 0))[alone]
        release = np.maximum(items.release_ns[rows], self._origin - _NEVER_NS) - self._origin
        apart = np.isin(rows, self._graph.orders.then)
        ended = -_NEVER_NS
        for part, long in _stretches(len(Kind) * self._go[after] + taken, apart, gap, length):
            if long:
                call, last = int(after[part].max()), int(rows[part][-1])
                while called[call] == _UNKNOWN:
                    yield for_call[call]
                begins = np.maximum(self._call[after[part]] + launch_lag[part], release[part])
                if kind := int(taken[part][0]):
                    copies = zip(rows[part].tolist(), gap[part].tolist(), begins.tolist(), strict=True)
                    for item, queue_lag, ready in copies:
                        pair.of(kind).want(item, max(ended + queue_lag, ready), copies)
                        break
                    while ends[last] == _UNKNOWN:
                        yield for_item[last]
                else:
                    self._start[rows[part]], self._end[rows[part]] = _run(ended, gap[part], begins, length[part])
                    self._wake(for_item, ends)
                ended = ends[last]
                continue
            columns = (rows, after, launch_lag, gap, release, taken, length)
            for item, call, lag, queue_lag, earliest, kind, takes in zip(
                *(column[part].tolist() for column in columns), strict=True
            ):
                while (at := called[call]) == _UNKNOWN:
                    yield for_call[call]
                ready = max(ended + queue_lag, earliest, at + lag)
                for first, lag in before.get(item, ()):
                    while (at := ends[first]) == _UNKNOWN:
                        yield for_item[first]
                    if at + lag > ready:
                        ready = at + lag
                if kind:
                    pair.of(kind).want(item, ready, iter(()))
                    while (at := ends[item]) == _UNKNOWN:
                        yield for_item[item]
                    ended = at
                else:
                    starts[item] = ready
                    ends[item] = ended = ready + takes
                    if item in for_item:
                        todo += for_item.pop(item)

    def _thread(self, rows: I64) -> _Actor:
        """Makes the calls of a thread in order; yields likewise."""
        calls, waits, todo = self._graph.calls, self._waits, self._todo
        called, ends, for_call, for_item = self._called, self._ends, self._for_call, self._for_item
        gap, length, handed_by = calls.before_ns[rows], calls.length_ns[rows], calls.handed_by[rows]
        release = np.maximum(calls.release_ns[rows], self._origin - _NEVER_NS) - self._origin
        apart = (handed_by >= 0) | np.isin(rows, self._graph.waits.call)
        ended = -_NEVER_NS
        for part, long in _stretches(self._go[2 * rows], apart, gap, length):
            if long:
                start, end = _run(ended, gap[part], release[part], length[part])
                self._call[2 * rows[part]], self._call[2 * rows[part] + 1], ended = start, end, int(end[-1])
                self._wake(for_call, called)
                continue
            columns = (rows, gap, length, handed_by, release)
            for call, before, takes, other, earliest in zip(
                *(column[part].tolist() for column in columns), strict=True
            ):
                if other >= 0:
                    while (handed := called[2 * other + 1]) == _UNKNOWN:
                        yield for_call[2 * other + 1]
                    at = max(handed + before, ended)
                else:
                    at = max(ended + before, earliest)
                called[2 * call] = at
                if 2 * call in for_call:
                    todo += for_call.pop(2 * call)
                at += takes
                for item, lag in waits.get(call, ()):
                    while (over := ends[item]) == _UNKNOWN:
                        yield for_item[item]
                    if over + lag > at:
                        at = over + lag
                called[2 * call + 1] = ended = at
                if 2 * call + 1 in for_call:
                    todo += for_call.pop(2 * call + 1)

    def _wake(self, waiting: dict[int, list[_Actor]], known: memoryview[int]) -> None:
        """Let those go on who wait for something that has come to be known."""
        for row in [row for row in waiting if known[row] != _UNKNOWN]:
            self._todo += waiting.pop(row)

    def _engine_event(self) -> bool:
        """Let the engines' events happen, the earliest first, up to one that somebody waits for; False if none is."""
        while True:
            first, *others = sorted(self._pairs.values(), key=attrgetter("next"))
            if first.next[0] == NEVER:
                return False
            until = others[0].next[0] if others else NEVER
            item = first.run(until, self._for_item, self._starts, self._ends)
            if item is not None:
                self._todo += self._for_item.pop(item)
                return True


def _by_row(row: I64, other: I64, lag: I64) -> dict[int, list[tuple[int, int]]]:
    """For each row that waits for any: the others it waits for, each with its lag."""
    by_row: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for one, two, three in zip(row.tolist(), other.tolist(), lag.tolist(), strict=True):
        by_row[one].append((two, three))
    return by_row


def _on_own_engine(items: Items) -> Bool:
    """Copies of a lane that holds nothing else and has the engine to itself, while the other direction's rests: no
    clock is needed for these. Without fractions of nanoseconds: a clock would round their sums. Not where another
    device copies, too: its engines must know no more of what is to come than a clock would tell them."""
    copies = items.on_engine
    if not copies.any() or len(distinct(items.device[copies])) > 1:
        return np.zeros(len(items), np.bool_)
    lane = items.lane[copies][0]
    one_way = (items.kind[copies] == items.kind[copies][0]).all() and (copies == (items.lane == lane)).all()
    return copies if one_way and (items.duration_ns[copies] % 1 == 0).all() else np.zeros(len(items), np.bool_)


def _goes(graph: Graph) -> I64:
    """Of each time of a call (start, end, start...): the number of the go at which it comes to be known, with all
    around it on its thread up to the next wait or handover. Last that of no call: -1."""
    calls = graph.calls
    begins = np.zeros((len(calls), 2), np.bool_)
    begins[:, 0] = (calls.handed_by >= 0) | (graph.previous < 0)
    begins[graph.waits.call, 1] = True
    by_thread = [rows for _, rows in graph.by_thread()]
    # Those of a single thread are in order.
    order = np.concatenate(by_thread) if len(by_thread) > 1 else slice(None)
    go = np.empty((len(calls), 2), np.int64)
    go[order] = np.cumsum(begins[order].ravel()).reshape(-1, 2)
    return np.append(go.ravel(), -1)


def _stretches(go: I64, apart: Bool, gap: I64, length: I64) -> Iterator[tuple[slice, bool]]:
    """A chain in parts: long ones of one go, in which nothing is `apart`, and what is between these."""
    if len(go) < _LONG or np.abs(gap).sum(dtype=np.float64) + length.sum(dtype=np.float64) > _LARGEST_SUM_NS:
        yield slice(0, len(go)), False
        return
    first = np.flatnonzero(np.append(True, (go[1:] != go[:-1]) | apart[1:] | apart[:-1]))
    long = np.diff(first, append=len(go)) >= _LONG
    parts = long | np.append(True, long[:-1])
    first, long = first[parts], long[parts]
    for begin, end, is_long in zip(first.tolist(), [*first[1:].tolist(), len(go)], long.tolist(), strict=True):
        yield slice(begin, end), is_long


def _run(ended_ns: int, gap: I64, ready: I64, length: I64) -> tuple[I64, I64]:
    """When things on a chain begin and end: each a gap after the one before has ended, and not before it is ready."""
    unhindered = np.cumsum(gap + length)
    end = unhindered + np.maximum(np.maximum.accumulate(ready + length - unhindered), ended_ns)
    return end - length, end
