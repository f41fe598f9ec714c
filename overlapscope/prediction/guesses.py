"""Guesses by the times of ops, for waits that a recording doesn't state (`analysis.holds` has those that it states).

- An item that began right when another ended, and for no other reason, waited for it (`seen_orders`). If the other one
  is short and began when this one could have begun, they competed for the device, and this one is only delayed.
- A copy call from or to memory that isn't pinned, which returned after its copy had ended, waited for it.
- A synchronize of an unknown event or stream waited for the last item launched before the call that is likely to have
  recorded the event, or else for the item that ended last before it returned. One of an unknown device waited for
  everything that had ended, and a call that frees memory too, unless nothing was running.
- A long launch call while the queue was full waited for the item that ended right before it returned.

A replay includes them, because the recording's times show that something of the kind happened. The `low` end of an
interval leaves out those that nothing else supports (`noise.spread`).
"""

from __future__ import annotations

from itertools import groupby

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis import calls as call_kinds
from overlapscope.analysis.event_waits import HANDOVER_NS, LOW
from overlapscope.analysis.host_order import EARLIEST_NS, Calls, frees_memory, waits_for_device
from overlapscope.analysis.lane_items import find_lanes
from overlapscope.base.columns import mask_of, pick
from overlapscope.base.grouping import among, distinct
from overlapscope.base.intervals import Bool
from overlapscope.prediction.graph import DeviceItems, Graph, OrderReason, Orders, RecordedParts
from overlapscope.trace.model import I64, Memory, Sync

SKEW_NS = 2_000
"""Maximum time by which an op may end after the return of a call that waited for it: clocks disagree a little."""
_RETURN_NS = 500
"""Minimum time from the end of an item to the return of the call that waits for it: the host has to notice."""
_MAX_SEARCHED_ITEMS = 256
"""Number of earlier items to search for the item that let another begin."""
_QUEUE_DEPTH = 256
"""Minimum number of pending launches for a long launch call to mean that the queue was full. CUDA's queue holds 1024.
"""
_LONG_CALL_NS = 50_000


_COMPETED_NS = 50_000
"""Maximum delay of an item by one that it competed with."""


def seen_orders(items: DeviceItems, unexplained: I64, ready_ns: I64) -> tuple[Orders, I64]:
    """Find the item of another lane of the same device that let each unexplained item begin.

    An item that ended right before is preferred. Otherwise, for a kernel, it is the running kernel that ends first:
    a kernel that fills the GPU lets another begin while its own last blocks still run.

    Args:
        items: All items.
        unexplained: Rows of the unexplained items.
        ready_ns: Time at which each item could have begun.

    Returns:
        One order of low confidence for each item that could be explained this way, and the items that were delayed by
        one that they competed with.
    """
    kernel = ~items.is_copy
    by_end = np.argsort(items.end_ns, kind="stable")
    ends, starts = items.end_ns[by_end], items.start_ns
    first = []
    for item in unexplained.tolist():
        at = int(starts[item])
        low, high = np.searchsorted(ends, (at - HANDOVER_NS, at + 1)).tolist()
        before = by_end[max(low, high - _MAX_SEARCHED_ITEMS) : high]
        before = before[(items.lane[before] != items.lane[item]) & (items.device[before] == items.device[item])]
        if len(before):
            first.append(int(before[-1]))
            continue
        beside = np.arange(max(0, item - _MAX_SEARCHED_ITEMS), item)
        beside = beside[kernel[beside] & (items.lane[beside] != items.lane[item]) & (items.end_ns[beside] > at)]
        beside = beside[(items.device[beside] == items.device[item]) & (starts[beside] < at)]
        first.append(int(beside[np.argmin(items.end_ns[beside])]) if len(beside) and kernel[item] else -1)
    earlier = np.array(first, np.int64)
    delay_ns = starts[unexplained] - ready_ns[unexplained]
    competed = (earlier >= 0) & (delay_ns <= _COMPETED_NS) & (pick(starts, earlier) >= ready_ns[unexplained])
    earlier[competed] = -1
    orders = Orders.of(earlier[earlier >= 0], unexplained[earlier >= 0], 0, OrderReason.SEEN)
    return replace(orders, confidence=np.full(len(orders), LOW, np.int8)), unexplained[competed]


def guess_waits(recorded: RecordedParts, items: DeviceItems, stated: Bool) -> tuple[I64, I64]:
    """Pair calls with the items that they are likely to have waited for.

    Calls whose waits the recording states, given by a mask, are left out.

    Returns:
        The calls, and the item of each.
    """
    calls = recorded.calls
    # Copy calls that returned after their copy waited for it, if the memory is not known to be pinned.
    copies = np.flatnonzero(items.is_copy & (items.call >= 0) & (items.host_memory != Memory.PINNED))
    of_copies = items.call[copies]
    waited = ~stated[of_copies] & (items.end_ns[copies] <= calls.end_ns[of_copies])
    guesses = ((of_copies[waited], copies[waited]), _synchronized(recorded, items, ~stated), _queue_full(calls, items))
    call, item = (np.concatenate(rows) for rows in zip(*guesses, strict=True))
    return call, item


def without_guesses(graph: Graph) -> Graph:
    """Return the graph without the waits that are guesses of low confidence."""
    orders, waits = graph.orders, graph.waits
    return replace(graph, orders=orders.take(orders.confidence > LOW), waits=waits.take(waits.confidence > LOW))


def _synchronized(recorded: RecordedParts, items: DeviceItems, unstated: Bool) -> tuple[I64, I64]:
    """Pair synchronizes and calls that free memory with the items that they waited for.

    `unstated` is a mask of the calls whose waits the recording does not state.

    Returns:
        The calls, and the item of each.
    """
    runtime, calls, lanes = recorded.trace.runtime_calls, recorded.calls, find_lanes(recorded.trace)
    frees, of_device = frees_memory(runtime)[calls.row], waits_for_device(runtime)[calls.row]
    waits = np.flatnonzero((call_kinds.synchronises(runtime)[calls.row] | frees) & unstated)
    record_of_synchronize = _paired_events(recorded) if len(waits) else {}
    launched = np.flatnonzero(items.call >= 0)
    launched = launched[np.lexsort((items.call[launched], calls.start_ns[items.call[launched]]))]
    called_ns = calls.start_ns[items.call[launched]]
    pairs: list[tuple[int, int]] = []
    for call in waits.tolist():
        begin_ns, end_ns = int(calls.start_ns[call]), int(calls.end_ns[call])
        before = launched[: np.searchsorted(called_ns, begin_ns)]
        if not len(before):
            continue
        if frees[call] or of_device[call]:
            row = int(calls.row[call])
            of_lanes = [place for lane in range(len(lanes.keys)) if (place := lanes.last(lane, row)) >= 0]
            launched_last = recorded.item_of_op[lanes.items.op[of_lanes]].tolist()
            # A device whose work outlasts the call is not the synchronized device.
            last = [item for item in launched_last if items.end_ns[item] <= end_ns + SKEW_NS]
            if of_device[call] or any(items.end_ns[item] > begin_ns for item in last):
                pairs += [(call, item) for item in last]
            continue
        recorded_by = record_of_synchronize.get(int(calls.row[call]), -1)
        recorded_ns = int(runtime.start_ns[recorded_by]) if recorded_by >= 0 else EARLIEST_NS
        ended = launched[: np.searchsorted(called_ns, recorded_ns)][-1:]
        if not len(ended) or items.end_ns[ended[0]] > end_ns + SKEW_NS:
            ended = before[-4 * _QUEUE_DEPTH :]
            ended = ended[items.end_ns[ended] <= end_ns - _RETURN_NS]
            ended = ended[np.argmax(items.end_ns[ended], keepdims=True)] if len(ended) else ended
        pairs += [(call, item) for item in ended.tolist()]
    call_of_wait, item_of_wait = np.array(pairs, np.int64).reshape(-1, 2).T
    return call_of_wait, item_of_wait


def _paired_events(recorded: RecordedParts) -> dict[int, int]:
    """Return the call that is likely to have recorded the event of each event synchronize.

    Both are rows of `Trace.runtime_calls`. A synchronize names its event, but the call that records an event does not.
    If a thread waits for as many different events as it has recorded since its last wait, these events are paired in
    order.
    """
    runtime, syncs = recorded.trace.runtime_calls, recorded.trace.syncs
    stated = syncs.take((syncs.kind == Sync.EVENT) & (syncs.event >= 0) & (syncs.correlation > 0))
    event_of = dict(zip(stated.correlation.tolist(), stated.event.tolist(), strict=True))
    calls = recorded.calls.row
    waiting = calls[among(runtime.correlation[calls], stated.correlation)]
    synced = {row: event_of[int(runtime.correlation[row])] for row in waiting.tolist()}
    if not synced:
        return {}
    records = call_kinds.records_event(runtime)
    recorded_by: dict[int, int] = {}
    for thread in distinct(runtime.thread[list(synced)]).tolist():
        records_before: list[int] = []
        of_thread = np.flatnonzero(runtime.thread == thread)
        calls_of_events = of_thread[records[of_thread] | among(of_thread, list(synced))].tolist()
        for waits, rows in groupby(calls_of_events, key=synced.__contains__):
            if not waits:
                records_before = list(rows)
                continue
            synchronizes = list(rows)
            events = list(dict.fromkeys(synced[row] for row in synchronizes))
            if len(events) == len(records_before):
                recorded_by |= {row: records_before[events.index(synced[row])] for row in synchronizes}
    return recorded_by


def _queue_full(calls: Calls, items: DeviceItems) -> tuple[I64, I64]:
    """Pair long launch calls made while the queue was full with the item that ended right before they returned."""
    launches = mask_of(items.call[(items.call >= 0) & ~items.is_copy], len(calls))
    long = np.flatnonzero(launches & (calls.length_ns > _LONG_CALL_NS))
    if not len(long):
        return long, long
    launched = np.sort(calls.start_ns[items.call[items.call >= 0]])
    by_end = np.argsort(items.end_ns, kind="stable")
    ended = np.searchsorted(items.end_ns[by_end], calls.end_ns[long], side="right")
    pending = np.searchsorted(launched, calls.start_ns[long]) - ended
    full = (pending >= _QUEUE_DEPTH) & (ended > 0)
    return long[full], by_end[ended[full] - 1]
