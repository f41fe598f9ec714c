"""Ops of a trace put together into items, and the order in which the host launched them on each stream.

All ops that a launch starts on one device are one item, since the order inside a graph isn't recorded. An item is named
by its row, or by its lane (a stream) and its place there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise

import numpy as np
from msgspec import Struct

from overlapscope.analysis.event_waits import event_waits
from overlapscope.analysis.host_order import awaited_streams, find_calls
from overlapscope.base.columns import I64, Columns, pick
from overlapscope.base.grouping import distinct
from overlapscope.base.kept import kept
from overlapscope.trace.model import Kind, Trace, split_stream_key, stream_keys


class LaneItems(Columns, frozen=True):
    """Items by measured start."""

    lane: I64
    place: I64
    """Place on its lane, in the order of the launches."""
    call: I64
    """Row of `Trace.runtime_calls` of the launch; -1 if it lies before the recording."""
    op: I64
    """First op, a row of `Trace.gpu_ops`."""
    last_op: I64
    """Op that ends last."""
    compute: I64
    """Number of its ops that compute."""
    ops: I64
    """Number of its ops."""


class ItemLanes(Struct, frozen=True, eq=False):
    """Items of a trace by lane and place."""

    items: LaneItems
    keys: tuple[int, ...]
    """Stream of each lane, one of `stream_keys`, ascending."""
    rows: tuple[I64, ...]
    """Rows of `items` on each lane, in the order of their launches."""
    item_of_op: I64
    """Row of `items` for each row of `Trace.gpu_ops`."""
    launches: tuple[list[int], ...]
    """`LaneItems.call` of each lane's items, in order."""

    @property
    def streams(self) -> tuple[tuple[int, int], ...]:
        """Device and stream of each lane."""
        return tuple(map(split_stream_key, self.keys))

    def count(self, lane: int, call: int) -> int:
        """Return the number of items launched on a lane before a runtime call."""
        return bisect_left(self.launches[lane], call)

    def last(self, lane: int, call: int) -> int:
        """Return the last item launched on a lane before a runtime call or by it; -1 if there is none."""
        place = bisect_right(self.launches[lane], call) - 1
        return int(self.rows[lane][place]) if place >= 0 else -1


@kept()
def find_lanes(trace: Trace) -> ItemLanes:
    """Return the items of a trace.

    A stream without ops is a lane if others wait for its events or the host waits for it, since it passes on its own
    waits.
    """
    ops, host, waits = trace.gpu_ops, find_calls(trace), event_waits(trace)
    call, devices = pick(host.of_runtime_call, ops.launch), distinct(ops.device)
    launch = call * len(devices) + np.searchsorted(devices, ops.device)
    # An op without a call is an item by itself.
    _, first, item_of_op = np.unique(
        np.where(call >= 0, launch, -1 - np.arange(len(ops))), return_index=True, return_inverse=True
    )
    by_start = np.argsort(first, kind="stable")
    row = np.empty(len(by_start), np.int64)
    row[by_start] = np.arange(len(by_start))
    op, item_of_op = first[by_start], row[item_of_op.ravel()]
    stream, launched = stream_keys(ops.device, ops.stream)[op], pick(host.calls.row, call)[op]
    passing = np.concatenate([waits.stream, waits.source, awaited_streams(trace)])
    keys = distinct(np.concatenate([stream, passing[passing >= 0]]))
    lane = np.searchsorted(keys, stream)
    by_launch = np.lexsort((launched, lane))
    bounds = np.searchsorted(lane[by_launch], np.arange(len(keys) + 1))
    place = np.empty(len(op), np.int64)
    place[by_launch] = np.arange(len(op)) - bounds[lane[by_launch]]
    by_end = np.argsort(ops.end_ns, kind="stable")
    last_op = np.empty(len(op), np.int64)
    last_op[item_of_op[by_end]] = by_end
    compute = np.bincount(item_of_op, weights=ops.kind == Kind.COMPUTE, minlength=len(op)).astype(np.int64)
    count = np.bincount(item_of_op, minlength=len(op))
    rows = tuple(by_launch[begin:end] for begin, end in pairwise(bounds.tolist()))
    return ItemLanes(
        LaneItems(lane, place, launched, op, last_op, compute, count),
        tuple(keys.tolist()),
        rows,
        item_of_op,
        tuple(launched[of_lane].tolist() for of_lane in rows),
    )
