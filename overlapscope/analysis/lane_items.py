"""Ops of a trace put together into items, in the order in which the host launched them on each stream.

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
from overlapscope.trace.model import GpuOps, Kind, Trace, split_stream_key, stream_keys


class LaneItems(Columns, frozen=True):
    """Items in the order of their lanes, and on a lane in the order of their launches."""

    lane: I64
    place: I64
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
    first: I64
    """Row of each lane's first item; a last entry has the number of items."""
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
        return int(self.first[lane]) + place if place >= 0 else -1


@kept()
def find_lanes(trace: Trace) -> ItemLanes:
    """Return the items of a trace.

    A stream without ops is a lane if others wait for its events or the host waits for it, since it passes on its own
    waits.
    """
    ops, host, waits = trace.gpu_ops, find_calls(trace), event_waits(trace)
    call = pick(host.of_runtime_call, ops.launch)
    row = pick(host.calls.row, call)
    op, of_op = launched_together(ops, call)
    stream = stream_keys(ops.device, ops.stream)[op]
    passing = np.concatenate([waits.stream, waits.source, awaited_streams(trace)])
    keys = distinct(np.concatenate([stream, passing[passing >= 0]]))
    lane, launched = np.searchsorted(keys, stream), row[op]
    order = np.lexsort((op, launched, lane))
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    item_of_op = position[of_op]
    lane, launched = lane[order], launched[order]
    first = np.searchsorted(lane, np.arange(len(keys) + 1))
    by_end = np.argsort(ops.end_ns, kind="stable")
    last_op = np.empty(len(order), np.int64)
    last_op[item_of_op[by_end]] = by_end
    compute = np.bincount(of_op, weights=ops.kind == Kind.COMPUTE, minlength=len(op)).astype(np.int64)
    items = LaneItems(
        lane=lane,
        place=np.arange(len(lane)) - first[lane],
        call=launched,
        op=op[order],
        last_op=last_op,
        compute=compute[order],
        ops=np.bincount(of_op, minlength=len(op))[order],
    )
    launches = tuple(launched[begin:end].tolist() for begin, end in pairwise(first.tolist()))
    return ItemLanes(items, tuple(keys.tolist()), first, item_of_op, launches)


def launched_together(ops: GpuOps, call: I64) -> tuple[I64, I64]:
    """Put ops together into items: those that a call starts on one device. An op without a call is an item by itself.

    Args:
        ops: The ops of a trace.
        call: The call that launched each op; -1 if unknown.

    Returns:
        The first op of each item, ascending, and the item of each op.
    """
    devices = distinct(ops.device)
    launch = call * len(devices) + np.searchsorted(devices, ops.device)
    key = np.where(call >= 0, launch, -1 - np.arange(len(ops)))
    _, first, item_of_op = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return first[order], place[item_of_op.ravel()]
