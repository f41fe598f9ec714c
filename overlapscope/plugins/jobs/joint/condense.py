"""Reduction of a dependency graph to the items and calls at which threads, streams or ranks meet.

Between two items that wait for other lanes or are waited for, a lane only runs its items one after another, each not
before its launch. Such a stretch becomes one lower bound for each call that launches in it: the replay of the reduced
network gives every remaining item and call the times of the whole graph's replay. Copy engines have no place in it:
copies keep their order on the engine, and their lengths.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.host_order import EARLIEST_NS, Calls
from overlapscope.base.columns import Columns, mask_of, pick
from overlapscope.base.grouping import distinct, group_starts, rows_by
from overlapscope.base.intervals import I64, Bool
from overlapscope.prediction.graph import DeviceItems, Graph, Network, OrderReason, Orders, Waits
from overlapscope.prediction.replay import Replay
from overlapscope.trace.model import Kind


class ItemWork(Columns, frozen=True):
    """Work in the items of a reduced network, a row for each."""

    work_ns: I64
    """Time of its ops, inside `queue_lag_ns` if it is a stretch, else its length."""
    launched_work_ns: I64
    """Time of ops inside `launch_lag_ns`."""
    compute_ns: I64
    """Time of compute inside `work_ns`."""
    launched_compute_ns: I64
    """Time of compute inside `launched_work_ns`."""
    launched_host_ns: I64
    """Host work inside `launch_lag_ns`, since the call that it counts from."""
    recorded_start_ns: I64
    """Recorded start; of a stretch, of its last op."""
    recorded_end_ns: I64


class Condensed(Struct, frozen=True, eq=False):
    """A reduced network, and where its rows come from."""

    network: Network
    item: I64
    """Row in the graph of each item: of a stretch, its last item."""
    call: I64
    """Row in the graph of each call."""
    place: I64
    """Row in the network of each kept item of the graph, the second of the two if it is divided; -1 for the others."""
    work: ItemWork


class _Emitted(NamedTuple):
    """Items of the reduced network: kept items, or stretches of others."""

    at: I64
    """Place before which it comes; of a kept item, its own."""
    row: I64
    """Row in the graph of its last item."""
    items: DeviceItems
    work: ItemWork


def condense(graph: Graph, replayed: Replay, items: Bool, calls: Bool, divided: Bool) -> Condensed:
    """Return a graph, given its replay, reduced to some items and calls, besides those that the result needs.

    `divided` items are kept in two parts: one of no length at the start, then one of the item's length.
    """
    engines = _engine_orders(graph, replayed)
    orders = Orders.joined([graph.orders, engines])
    kept = items | divided
    for rows in (orders.first, orders.then, graph.waits.item):
        kept[rows] = True
    called, reduced, kept_calls = _calls(graph, replayed, calls)
    in_order = np.concatenate([np.empty(0, np.int64), *(rows for _, rows in rows_by(graph.items.lane))])
    lane = graph.items.lane[in_order]
    kept[in_order[np.append(lane[1:] != lane[:-1], True)[: len(lane)]]] = True
    return _Reducer(graph, replayed, orders, kept, divided, in_order, called).condensed(reduced, kept_calls)


class _Called(Struct, frozen=True, eq=False):
    """Launches of the graph's items, counted from kept calls."""

    key: I64
    """Twice the number of the kept call, and 1 more if the lag counts from its end; -1 for none."""
    lag_ns: I64
    host_ns: I64
    """Host work inside the lag."""


def _calls(graph: Graph, replayed: Replay, wanted: Bool) -> tuple[_Called, Calls, I64]:
    """Return the launches of all items, the kept calls, and their rows in the graph."""
    calls, previous = graph.calls, graph.calls.previous
    handed = np.flatnonzero(calls.handed_by >= 0)
    kept = wanted | (previous < 0) | (calls.handed_by >= 0)
    for rows in (graph.waits.call, calls.handed_by[handed], previous[handed][previous[handed] >= 0]):
        kept[rows] = True
    base = np.empty(len(calls), np.int64)
    for _, rows in graph.by_thread():
        base[rows] = rows[np.maximum.accumulate(np.where(kept[rows], np.arange(len(rows)), 0))]
    number = np.cumsum(kept) - 1
    kept_rows = np.flatnonzero(kept)
    since = pick(base, previous[kept_rows])
    chained = (since >= 0) & (calls.handed_by[kept_rows] < 0)
    before = np.where(
        chained,
        replayed.call_start_ns[kept_rows] - pick(replayed.call_end_ns, since, 0),
        calls.before_ns[kept_rows],
    )
    columns = {name: getattr(calls, name)[kept_rows] for name in ("row", "thread", "length_ns", "release_ns")}
    reduced = Calls.filled(
        **columns,
        before_ns=before,
        handed_by=pick(number, calls.handed_by[kept_rows]),
        maybe_by=-1,
        since_ns=replayed.call_start_ns[kept_rows] - before,
        start_ns=replayed.call_start_ns[kept_rows],
        end_ns=replayed.call_end_ns[kept_rows],
    )
    items = graph.items
    caller_base = pick(base, items.call)
    apart = (items.call >= 0) & (caller_base != items.call)
    called_ns = np.where(
        items.after_call, pick(replayed.call_end_ns, items.call), pick(replayed.call_start_ns, items.call)
    )
    host = np.where(apart, called_ns - pick(replayed.call_end_ns, caller_base), 0)
    key = np.where(items.call >= 0, 2 * pick(number, caller_base) + (items.after_call | apart), -1)
    return _Called(key, items.launch_lag_ns + host, host), reduced, kept_rows


def _engine_orders(graph: Graph, replayed: Replay) -> Orders:
    """Return the order of the copies on each engine."""
    items, parts = graph.items, []
    on_engine = items.on_engine
    for device in distinct(items.device[on_engine]).tolist():
        for kind in (Kind.H2D, Kind.D2H):
            rows = np.flatnonzero(on_engine & (items.device == device) & (items.kind == kind))
            rows = rows[np.lexsort((rows, replayed.end_ns[rows], replayed.start_ns[rows]))]
            lag = np.maximum(items.engine_lag_ns[rows[1:]], 0)
            parts.append(
                Orders.filled(first=rows[:-1], then=rows[1:], lag_ns=lag, why=int(OrderReason.EVENT), confidence=2)
            )
    return Orders.joined(parts)


class _Reducer:
    """Items of a graph in the order of their lanes, which are kept or joined into stretches."""

    def __init__(
        self, graph: Graph, replayed: Replay, orders: Orders, kept: Bool, divided: Bool, rows: I64, called: _Called
    ) -> None:
        items = graph.items
        self._graph, self._replayed, self._orders, self._rows, self._called = graph, replayed, orders, rows, called
        self._kept, self._divided = kept[rows], divided[rows]
        recorded_length = np.rint(np.where(items.gone, 0, items.duration_ns)).astype(np.int64)
        self._length = np.where(items.on_engine, replayed.end_ns - replayed.start_ns, recorded_length)[rows]
        gap = items.queue_lag_ns[rows]
        self._end = np.cumsum(gap + self._length)
        """End of each item if it waited only for the item before it."""
        self._compute = np.where(items.kind[rows] == Kind.COMPUTE, self._length, 0)

    def condensed(self, calls: Calls, call_rows: I64) -> Condensed:
        graph, parts = self._graph, (self._stretches(), self._whole())
        row = np.concatenate([part.row for part in parts])
        whole = np.repeat((False, True), [len(part.row) for part in parts])
        # Items of a stretch come before the kept item that ends it.
        order = np.lexsort((whole, np.concatenate([part.at for part in parts])))
        row, is_whole = row[order], np.flatnonzero(whole[order])
        first_part, last_part = np.full((2, len(graph.items)), -1)
        last_part[row[is_whole]] = is_whole
        first_part[row[is_whole][::-1]] = is_whole[::-1]
        orders, waits = self._orders, graph.waits
        return Condensed(
            network=Network(
                DeviceItems.joined([part.items for part in parts]).take(order),
                calls,
                replace(orders, first=last_part[orders.first], then=first_part[orders.then]),
                Waits(np.searchsorted(call_rows, waits.call), last_part[waits.item], waits.lag_ns, waits.confidence),
                graph.constants,
            ),
            item=row,
            call=call_rows,
            place=last_part,
            work=ItemWork.joined([part.work for part in parts]).take(order),
        )

    def _emitted(
        self, at: I64, last: I64, key: I64, columns: dict[str, I64], work: Mapping[str, I64 | int]
    ) -> _Emitted:
        """Return items, given the place of the last one of each, its launch as in `_Called`, and other columns."""
        row, items = self._rows[last], self._graph.items
        made = DeviceItems.of(
            lane=items.lane[row],
            call=np.where(key >= 0, key // 2, -1),
            after_call=(key >= 0) & (key % 2 == 1),
            start_ns=self._replayed.start_ns[row],
            end_ns=self._replayed.end_ns[row],
            **columns,
        )
        recorded = {"recorded_start_ns": items.start_ns[row], "recorded_end_ns": items.end_ns[row]}
        return _Emitted(at, row, made, ItemWork.filled(**work, **recorded))

    def _whole(self) -> _Emitted:
        """Return the kept items, of divided ones both parts."""
        at = np.repeat(np.flatnonzero(self._kept), 1 + self._divided[self._kept])
        second = np.append(False, at[1:] == at[:-1])[: len(at)]
        first_of_two = self._divided[at] & ~second
        row, called = self._rows[at], self._called
        length = np.where(first_of_two, 0, self._length[at])
        columns = {
            "launch_lag_ns": np.where(second, 0, called.lag_ns[row]),
            "queue_lag_ns": np.where(second, 0, self._graph.items.queue_lag_ns[row]),
            "release_ns": np.where(second, EARLIEST_NS, self._graph.items.release_ns[row]),
            "duration_ns": length,
        }
        work: dict[str, I64 | int] = {
            "work_ns": length,
            "launched_work_ns": 0,
            "compute_ns": np.where(first_of_two, 0, self._compute[at]),
            "launched_compute_ns": 0,
            "launched_host_ns": np.where(second, 0, called.host_ns[row]),
        }
        return self._emitted(at, at, np.where(second, -1, called.key[row]), columns, work)

    def _stretches(self) -> _Emitted:
        """Return an item for each stretch and each call that it waits for."""
        inside = np.flatnonzero(~self._kept)
        ends = np.flatnonzero(self._kept)
        stop = ends[np.searchsorted(ends, inside)] if len(ends) else inside
        last, row = stop - 1, self._rows[inside]
        rest = self._end[last] - self._end[inside] + self._length[inside]
        key, bound = self._called.key[row], self._called.lag_ns[row] + rest
        # The latest bound of each call comes first.
        order = np.lexsort((-bound, key, stop))
        order = order[group_starts(stop[order], key[order])]
        launched = key[order] >= 0
        # A stretch without a recorded call still takes its time.
        alone = ~mask_of(stop[order][launched], len(self._rows) + 1)[stop[order]]
        order = order[launched | alone]
        first = mask_of(group_starts(stop[order]), len(order))
        start = np.zeros(len(self._rows) + 1, np.int64)
        start[stop[::-1]] = inside[::-1]
        begin, at = start[stop[order]], last[order]
        release = np.full(len(self._rows) + 1, EARLIEST_NS)
        recorded_release = self._graph.items.release_ns[row]
        np.maximum.at(release, stop, np.where(recorded_release > EARLIEST_NS, recorded_release + rest, EARLIEST_NS))
        work, compute = np.cumsum(self._length), np.cumsum(self._compute)
        gap = self._end[at] - self._end[begin] + self._length[begin] + self._graph.items.queue_lag_ns[self._rows[begin]]
        member = inside[order]
        has = key[order] >= 0
        columns = {
            "launch_lag_ns": np.where(has, bound[order], 0),
            "queue_lag_ns": np.where(first, gap, 0),
            "release_ns": np.where(first, release[stop[order]], EARLIEST_NS),
            "duration_ns": np.zeros_like(gap),
        }
        work_in = {
            "work_ns": np.where(first, work[at] - work[begin] + self._length[begin], 0),
            "launched_work_ns": np.where(has, work[at] - work[member] + self._length[member], 0),
            "compute_ns": np.where(first, compute[at] - compute[begin] + self._compute[begin], 0),
            "launched_compute_ns": np.where(has, compute[at] - compute[member] + self._compute[member], 0),
            "launched_host_ns": np.where(has, self._called.host_ns[row[order]], 0),
        }
        return self._emitted(stop[order], at, key[order], columns, work_in)
