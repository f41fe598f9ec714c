"""Windows of concurrency: the kernels beside which an op may run, by the order that the program demands."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from overlapscope.analysis.host_order import EARLIEST_NS
from overlapscope.analysis.lane_items import LaneItems
from overlapscope.analysis.order import HappensBefore, OrderedBy, stated_order, strictest_order
from overlapscope.base.columns import Bool, Columns, pick
from overlapscope.base.grouping import rows_by
from overlapscope.base.kept import kept
from overlapscope.trace.host import op_of
from overlapscope.trace.model import I64, Kind, Trace

SURE_NS = 2_000
"""Time for which two ops must have run side by side to be sure that neither waited for the other."""


class Windows(Columns, frozen=True):
    """Numbers of kernels beside which ops may run, one row each."""

    least: I64
    """Number beside which an op may run for certain: neither is ordered, or they were seen to run side by side."""
    most: I64
    """Number at best, if no wait for an unknown event is for the op or holds it."""
    closed: Bool
    """True if the recording neither begins nor ends within the window."""


Neighbour = tuple[int, OrderedBy | None]
"""Kernel before or after which an op runs, as a row of `Trace.gpu_ops`, and what orders them; -1 without one."""


@kept()
def counted(trace: Trace) -> I64:
    """Return how many kernels each item of the order counts as.

    All kernels of one op of PyTorch's library count as one, since their number depends on the GPU, the version of the
    library and the size of the batch.
    """
    items = stated_order(trace).items
    kernels, place = items.compute.copy(), library_ops(trace, items.call)
    rows = np.flatnonzero((kernels > 0) & (place >= 0) & (items.ops == 1))
    # No time on the device decides which one.
    rows = rows[np.lexsort((items.place[rows], items.lane[rows]))]
    first = rows[np.unique(place[rows], return_index=True)[1]]
    kernels[rows] = 0
    kernels[first] = 1
    return kernels


def library_ops(trace: Trace, calls: I64) -> I64:
    """Return the row in `Trace.cpu_ops` of the op of PyTorch's library around each runtime call; -1 if none."""
    op = op_of(trace, calls)
    return np.where(pick(trace.cpu_ops.named(lambda name: name.startswith("aten::")), op, False), op, -1)


def find_windows(trace: Trace, ops: I64, of_step: Mapping[tuple[int, int], int]) -> Windows:
    """Return the windows of some ops.

    Kernels are ordered neither before nor after an op for certain if no order that the recording allows does so, or if
    they ran beside it. The order inside a graph isn't recorded.

    Args:
        ops: Rows of `Trace.gpu_ops`.
        of_step: Number of `counted` kernels in a typical step of each device and stream, to which each side is limited.
    """
    order, stated = strictest_order(trace), stated_order(trace)
    items, rows, streams = order.items, order.item_of_op[ops], order.streams
    started, kernels = trace.runtime_calls.start_ns, counted(trace)
    begin_ns, end_ns = trace.gpu_ops.start_ns[ops] + SURE_NS, trace.gpu_ops.end_ns[ops] - SURE_NS
    least, most = np.zeros((2, len(ops)), np.int64)
    closed = items.call[rows] >= 0
    for lane, of_item in rows_by(items.lane[rows]):
        places, called = items.place[rows[of_item]], started[items.call[rows[of_item]]]
        for other in _computing(order, lane):
            of_other = order.rows[other]
            of_step_here = of_step.get(streams[other], 0)
            if not of_step_here:
                continue
            computing = np.concatenate([[0], np.cumsum(kernels[of_other])])
            calls = items.call[of_other]
            launched = np.searchsorted(np.where(calls < 0, EARLIEST_NS, started[calls]), called)
            first, after = stated.before(lane, places, other), stated.after(lane, places, other)
            ended, begins = order.before(lane, places, other), order.after(lane, places, other)
            seen, until = _seen(trace, items.take(of_other), begin_ns[of_item], end_ns[of_item])
            ended, begins = np.minimum(ended, np.maximum(seen, first)), np.maximum(begins, np.minimum(until, after))
            for sides, (low, high) in ((least, (ended, begins)), (most, (first, after))):
                earlier = computing[launched] - computing[np.minimum(low, launched)]
                later = computing[np.maximum(high, launched)] - computing[launched]
                cut_before = (low == 0) & (earlier < of_step_here)
                cut_after = (high == order.length(other)) & (later < of_step_here)
                if sides is most:
                    earlier = np.where(cut_before, of_step_here, earlier)
                    later = np.where(cut_after, of_step_here, later)
                sides[of_item] += np.minimum(earlier, of_step_here) + np.minimum(later, of_step_here)
                closed[of_item] &= ~cut_before & ~cut_after
    in_graph = np.flatnonzero((items.ops[rows] > 1) & (items.compute[rows] > 0))
    for item, of_item in rows_by(rows[in_graph]):
        of_item = in_graph[of_item]
        inside = np.flatnonzero((order.item_of_op == item) & (trace.gpu_ops.kind == Kind.COMPUTE))
        begun = np.searchsorted(np.sort(trace.gpu_ops.start_ns[inside]), end_ns[of_item])
        ended = np.searchsorted(np.sort(trace.gpu_ops.end_ns[inside]), begin_ns[of_item], side="right")
        least[of_item] += np.maximum(begun - ended, 0)
        most[of_item] += len(inside)
    return Windows(least, most, closed)


def _seen(trace: Trace, items: LaneItems, begin_ns: I64, end_ns: I64) -> tuple[I64, I64]:
    """Return the first item that ran in each time, and the first after those; without any, an empty run at the end."""
    ends = np.maximum.accumulate(trace.gpu_ops.end_ns[items.last_op])
    first = np.searchsorted(ends, begin_ns, side="right")
    until = np.searchsorted(np.maximum.accumulate(trace.gpu_ops.start_ns[items.op]), end_ns)
    any_ran = first < until
    return np.where(any_ran, first, len(items)), np.where(any_ran, until, 0)


@kept()
def _computing(order: HappensBefore, lane: int) -> list[int]:
    """Return the other lanes of a lane's device on which kernels compute."""
    computes = np.bincount(order.items.lane, order.items.compute, minlength=len(order.streams)) > 0
    device = order.streams[lane][0]
    return [
        other
        for other, (on_device, _) in enumerate(order.streams)
        if other != lane and on_device == device and computes[other]
    ]


def find_neighbours(ops: I64, order: HappensBefore) -> list[tuple[Neighbour, Neighbour]]:
    """Return the kernels between which each op may run by an order, on the lane of its device that computes most."""
    items, rows = order.items, order.item_of_op[ops]
    kernels = np.bincount(items.lane, items.compute, minlength=len(order.streams))
    device = np.array([on_device for on_device, _ in order.streams])
    found: dict[int, tuple[Neighbour, Neighbour]] = {}
    for lane, on_lane in rows_by(items.lane[rows]):
        main = int(np.argmax(np.where(device == device[lane], kernels, -1)))
        on_main = order.rows[main]
        computes = np.flatnonzero(items.compute[on_main])
        places = items.place[rows[on_lane]]
        earlier = pick(computes, np.searchsorted(computes, order.before(lane, places, main)) - 1)
        later = pick(computes, np.searchsorted(computes, order.after(lane, places, main)))
        columns = (on_lane, places, earlier, later)
        for number, place, first, then in zip(*(column.tolist() for column in columns), strict=True):
            begins: Neighbour = (-1, None)
            ends: Neighbour = (-1, None)
            if first >= 0:
                begins = int(items.op[on_main[first]]), order.cause((main, first), (lane, place))
            if then >= 0:
                ends = int(items.op[on_main[then]]), order.cause((lane, place), (main, then))
            found[number] = begins, ends
    return [found[number] for number in range(len(ops))]
