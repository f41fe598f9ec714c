"""Windows of concurrency: the kernels beside which an op may run, by the order that the program demands."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from overlapscope.analysis.grouping import distinct
from overlapscope.analysis.host import around
from overlapscope.analysis.order import HappensBefore, OrderedBy, stated_order, strictest_order
from overlapscope.base.columns import Columns, pick
from overlapscope.base.kept import kept
from overlapscope.trace.model import I64, Trace


class Windows(Columns, frozen=True):
    """Windows of some ops, one row each, as far as they are certain; -1 where unknown."""

    before: I64
    """Number of kernels launched before the op that may still run beside it; of each stream at most those of a step."""
    after: I64
    """Number of kernels launched after it that may begin while it runs; of each stream at most those of a step."""
    up_to: I64
    """Number of kernels beside which it may run at best, if no wait for an unknown event is for it or holds it."""

    @property
    def kernels(self) -> I64:
        """Number of kernels beside which each op may run for certain; -1 where unknown."""
        return np.where((self.before < 0) | (self.after < 0), -1, self.before + self.after)


class Neighbours(Struct, frozen=True):
    """Kernels between which an op may run, as rows of `Trace.gpu_ops`, -1 for none, and what orders them."""

    earlier: int
    begins: OrderedBy | None
    later: int
    ends: OrderedBy | None


@kept()
def counted(trace: Trace) -> I64:
    """Return how many kernels each item of the order counts as.

    All kernels of one op of PyTorch's library count as one, since their number depends on the GPU, the version of the
    library and the size of the batch.
    """
    items = stated_order(trace).items
    kernels, place = items.compute.copy(), library_ops(trace, items.call)
    rows = np.flatnonzero((kernels > 0) & (place >= 0) & (items.ops == 1))
    first = rows[np.unique(place[rows], return_index=True)[1]]
    kernels[rows] = 0
    kernels[first] = 1
    return kernels


def library_ops(trace: Trace, calls: I64) -> I64:
    """Return the row in `Trace.cpu_ops` of the op of PyTorch's library around each runtime call; -1 if none."""
    runtime = trace.runtime_calls
    op = around(trace.cpu_ops, pick(runtime.thread, calls), pick(runtime.start_ns, calls))
    return np.where(pick(trace.cpu_ops.named(_of_library), op, False), op, -1)


def _of_library(op: str) -> bool:
    return op.startswith("aten::")


def find_windows(trace: Trace, ops: I64, of_step: Mapping[tuple[int, int], int]) -> Windows:
    """Return the windows of some ops.

    A window is certain as far as no order that the recording allows cuts it. It is unknown if the recording begins or
    ends within it, or if the op belongs to a graph, whose inner order isn't recorded.

    Args:
        trace: The recording.
        ops: Rows of `Trace.gpu_ops`.
        of_step: Number of `counted` kernels in a typical step of each device and stream, to which each side is limited.
    """
    before, after, _ = _sides(strictest_order(trace), trace, ops, of_step)
    return Windows(before, after, _sides(stated_order(trace), trace, ops, of_step)[2])


def _sides(
    order: HappensBefore, trace: Trace, ops: I64, of_step: Mapping[tuple[int, int], int]
) -> tuple[I64, I64, I64]:
    """Return both sides of the windows by one order; -1 where it is cut off by the recording's begin or end.

    The third column has the kernels of both sides together, with the largest possible number where they are cut off.
    """
    items = order.items
    rows = order.item_of_op[ops]
    started, kernels = trace.runtime_calls.start_ns, counted(trace)
    before, after, most_of_both = np.zeros((3, len(ops)), np.int64)
    # The order inside a graph, and that of an op launched before the recording, is unknown.
    unknown_before = (items.ops[rows] > 1) | (items.call[rows] < 0)
    unknown_after = unknown_before.copy()
    for lane in distinct(items.lane[rows]).tolist():
        mine = np.flatnonzero(items.lane[rows] == lane)
        places, called = items.place[rows[mine]], started[items.call[rows[mine]]]
        for other in _computing(order, lane):
            of_other = slice(int(order.first[other]), int(order.first[other + 1]))
            most = of_step.get(order.streams[other], 0)
            computing = np.concatenate([[0], np.cumsum(kernels[of_other])])
            calls = items.call[of_other]
            launched = np.searchsorted(np.where(calls < 0, -1, started[calls]), called)
            ended, begins = order.before(lane, places, other), order.after(lane, places, other)
            earlier = np.maximum(computing[launched] - computing[np.minimum(ended, launched)], 0)
            later = computing[np.maximum(begins, launched)] - computing[launched]
            before[mine] += np.minimum(earlier, most)
            after[mine] += np.minimum(later, most)
            cut_before = (ended == 0) & (earlier < most)
            cut_after = (begins == order.length(other)) & (later < most)
            unknown_before[mine] |= cut_before
            unknown_after[mine] |= cut_after
            most_of_both[mine] += np.where(cut_before, most, np.minimum(earlier, most))
            most_of_both[mine] += np.where(cut_after, most, np.minimum(later, most))
    return np.where(unknown_before, -1, before), np.where(unknown_after, -1, after), most_of_both


def _computing(order: HappensBefore, lane: int) -> list[int]:
    """Return the other lanes of a lane's device on which kernels compute."""
    device = order.streams[lane][0]
    return [
        other
        for other, (on_device, _) in enumerate(order.streams)
        if other != lane
        and on_device == device
        and order.items.compute[int(order.first[other]) : int(order.first[other + 1])].any()
    ]


def find_neighbours(trace: Trace, op: int, order: HappensBefore) -> Neighbours:
    """Return the kernels between which an op may run by an order, on the lane of its device that computes most."""
    items, row = order.items, int(order.item_of_op[op])
    lane, place = int(items.lane[row]), int(items.place[row])
    device = order.streams[lane][0]
    weights = [
        int(items.compute[int(order.first[other]) : int(order.first[other + 1])].sum()) if on_device == device else -1
        for other, (on_device, _) in enumerate(order.streams)
    ]
    main = int(np.argmax(weights))
    computes = items.compute[int(order.first[main]) : int(order.first[main + 1])] > 0
    ended = int(order.before(lane, np.array([place]), main)[0])
    begins = int(order.after(lane, np.array([place]), main)[0])
    earlier = np.flatnonzero(computes[:ended])
    later = begins + np.flatnonzero(computes[begins:])
    first, then = (int(earlier[-1]) if len(earlier) else -1), (int(later[0]) if len(later) else -1)
    start = int(order.first[main])
    return Neighbours(
        earlier=int(items.op[start + first]) if first >= 0 else -1,
        begins=order.cause((main, first), (lane, place)) if first >= 0 else None,
        later=int(items.op[start + then]) if then >= 0 else -1,
        ends=order.cause((lane, place), (main, then)) if then >= 0 else None,
    )
