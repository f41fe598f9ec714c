"""Builds a recording's dependency graph.

Waits that the recording doesn't state (`analysis.holds`) are guessed from the times of ops:

- An item that began right when another ended, and for no other reason, waited for it (`_seen_orders`). If the other one
  is short and began when this one could have begun, they competed for the device, and this one is only delayed.
- A copy call from or to memory that isn't pinned, which returned after its copy had ended, waited for it.
- A synchronize of an unknown event or stream waited for the last item launched before the call that is likely to have
  recorded the event, or else for the item that ended last before it returned. One of an unknown device waited for
  everything that had ended, and a call that frees memory too, unless nothing was running.
- A long launch call while the queue was full waited for the item that ended right before it returned.

The recording's times show that something of the kind happened. The `low` end of an interval leaves out the guesses that
nothing else supports (`Graph.without_guesses`).

The lag between an item and the event it waited for last is the measured time. For every other event that precedes it,
the lag is the usual one of this hardware, or the measured time if that is shorter. A wait longer than launches, queues
and events explain is in no lag. The replay then begins the item earlier than recorded, which shows how wrong the graph
is.
"""

from __future__ import annotations

from itertools import groupby

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.event_waits import EXACT, HANDOVER_NS, HIGH, LOW
from overlapscope.analysis.holds import Reading, find_holds, own_stream_waits
from overlapscope.analysis.host_order import EARLIEST_NS, Calls, find_calls, frees_memory, waits_for_device
from overlapscope.analysis.lane_items import find_lanes
from overlapscope.base.columns import mask_of, pick
from overlapscope.base.grouping import among, distinct, distinct_rows, rows_by
from overlapscope.base.intervals import Bool, covered, union
from overlapscope.prediction.calibration import Constants
from overlapscope.prediction.graph import DeviceItems, Graph, OrderReason, Orders, Waits
from overlapscope.trace import calls as call_kinds
from overlapscope.trace.model import F64, I64, Kind, Memory, Sync, Trace

AFTER_CALL_NS = 50_000
"""Maximum time from the end of an item's launch call to its start if nothing else holds it; up to 46 us on an H200, for
the first launches of a recording."""
QUEUE_NS = 20_000
"""Maximum time from the end of the previous item on its lane or engine to its start; 1 to 12 us on an H200."""
MAX_UNEXPLAINED = 0.02
"""Maximum fraction of a device's window for unexplained waits that become parts of lags. More of them early in a
recording would move every later op."""
_STAGING_NS = 60_000
"""Time from a pageable copy's call to its start; 60 to 160 us for copies of 4 MB and more."""


def build(trace: Trace, constants: Constants) -> Graph:
    """Build the dependency graph of all devices of a trace."""
    calls, lanes = find_calls(trace).calls, find_lanes(trace)
    items = _find_items(trace)
    orders = _event_orders(trace, items)
    items, orders, unexplained, keeping = _with_lags(items, calls, orders, constants)
    calls, waits = find_waits(trace, items, constants)
    # Streams on which nothing runs are no lanes of a replay.
    used, streams = distinct(items.lane), lanes.streams
    return Graph(
        trace=trace,
        items=replace(items, lane=np.searchsorted(used, items.lane)),
        calls=calls,
        orders=orders,
        waits=waits,
        stated=Orders.of(*own_stream_waits(trace), 0, OrderReason.EVENT),
        streams=tuple(streams[lane] for lane in used.tolist()),
        constants=constants,
        unexplained_ns=unexplained,
        devices_with_kept_delays=keeping,
    )


def _find_items(trace: Trace) -> DeviceItems:
    """Return the items, without lags."""
    ops, items, item_of_op = trace.gpu_ops, find_lanes(trace).items, find_lanes(trace).item_of_op
    size = np.zeros(len(items), np.int64)
    np.add.at(size, item_of_op, np.maximum(ops.bytes, 0))
    same = np.ones(len(items), np.bool_)
    np.logical_and.at(same, item_of_op, ops.kind == ops.kind[items.op][item_of_op])
    start, end = ops.start_ns[items.op], ops.end_ns[items.last_op]
    return DeviceItems.of(
        device=ops.device[items.op],
        lane=items.lane,
        kind=np.where(same, ops.kind[items.op], Kind.OTHER),
        host_memory=ops.host_memory[items.op],
        bytes=size,
        duration_ns=end - start,
        call=pick(find_calls(trace).of_runtime_call, items.call),
        release_ns=np.where(items.call < 0, start, EARLIEST_NS),
        start_ns=start,
        end_ns=end,
    )


def _event_orders(trace: Trace, items: DeviceItems) -> Orders:
    """Return the event waits, without lags; guessed waits only where they explain the start of the held item."""
    holds = find_holds(trace, Reading.LIKELY).streams
    holds = holds.take(holds.first >= 0)
    first, then = holds.first, holds.then
    waited = items.start_ns[then] - items.end_ns[first]
    is_plausible = (waited >= 0) & ((holds.confidence >= HIGH) | (waited <= HANDOVER_NS))
    ties = distinct_rows([first[is_plausible], then[is_plausible], holds.confidence[is_plausible]])
    first, then, confidence = np.array(ties, np.int64).reshape(-1, 3).T
    return replace(Orders.of(first, then, 0, OrderReason.EVENT), confidence=confidence.astype(np.int8))


def _with_lags(
    items: DeviceItems, calls: Calls, orders: Orders, constants: Constants
) -> tuple[DeviceItems, Orders, I64, frozenset[int]]:
    """Return items and orders with their lags, the unexplained wait of each item, and the devices that keep such waits.

    An item that began right at the end of an item of another lane, for no other reason, gets an order.
    """
    launched, returned = items.call >= 0, pick(calls.end_ns, items.call, 0)
    after_call = launched & (items.start_ns >= returned)
    called = np.where(after_call, returned, pick(calls.start_ns, items.call, 0))
    called = np.where(launched, called, items.release_ns)
    queued = _ends_before(items, items.lane, running=False)
    engine_of = np.where(items.on_engine, items.device << 8 | items.kind, -1)
    free = np.where(items.on_engine, _ends_before(items, engine_of, running=True), EARLIEST_NS)
    # The latest start that launches, queues and engines explain.
    by_call = np.where(launched, returned + AFTER_CALL_NS, items.start_ns)
    explained = np.maximum.reduce([by_call, queued + QUEUE_NS, free + QUEUE_NS])
    held = _held_until(orders, items)
    late = items.start_ns > np.maximum(explained, held + HANDOVER_NS)
    ready = np.maximum.reduce([called, queued, free, held])
    seen, competed = _seen_orders(items, np.flatnonzero(late), ready)
    orders = Orders.joined([orders, seen])
    held = _held_until(orders, items)
    explained = np.maximum(explained, held + HANDOVER_NS)
    explained[competed] = items.start_ns[competed]
    unexplained = np.maximum(items.start_ns - explained, 0)
    keeping = set[int]()
    for device, rows in rows_by(items.device):
        window = int(items.end_ns[rows].max() - items.start_ns[rows].min())
        if 0 < unexplained[rows].sum() <= MAX_UNEXPLAINED * window:
            keeping.add(device)
    begins = items.start_ns - np.where(among(items.device, list(keeping)), 0, unexplained)
    over = np.stack([called, queued, free, held])
    return *_lagged(items, orders, over, after_call, begins, constants), unexplained, frozenset(keeping)


def _lagged(
    items: DeviceItems, orders: Orders, over: I64, after_call: Bool, begins: I64, constants: Constants
) -> tuple[DeviceItems, Orders]:
    """Return the items and orders with their lags.

    The last event that an item waited for has the measured lag. Every other event has at most the usual lag.

    Args:
        items: Items without lags.
        orders: Orders without lags.
        over: When what each item waited for was over, a row for each kind: its launch call's end, or the call's start
            if the item began during the call; the previous item on its lane; the copies before it on its engine; the
            items that orders put before it. `EARLIEST_NS` for none.
        after_call: Mask of the items that began after their call had returned.
        begins: Start of each item in the replay.
        constants: Constants of the hardware.
    """
    called, queued, free, held = over
    latency = np.where(items.is_copy, constants.copy_latency_ns or 0, constants.launch_latency_ns or 0)
    # A pageable copy starts after a copy on the host.
    staged = items.is_copy & (items.host_memory == Memory.PAGEABLE)
    at_once = staged & (items.call >= 0) & (queued <= called)
    staging = int(np.median((items.start_ns - called)[at_once])) if at_once.any() else _STAGING_NS
    latency = np.where(after_call, 0, np.where(staged, staging, latency))
    gap, handover = (np.full(len(items), usual or 0) for usual in (constants.kernel_gap_ns, constants.handover_ns))
    usual = np.stack([latency, gap, gap, handover])
    is_last, measured = np.argmax(over + usual, axis=0) == np.arange(len(over))[:, None], begins - over
    launch_lag, queue_lag, engine_lag, _ = np.where(is_last, measured, np.minimum(measured, usual))
    ended = items.end_ns[orders.first]
    binding = is_last[-1][orders.then] & (ended == held[orders.then])
    gaps = begins[orders.then] - ended
    items = replace(
        items,
        duration_ns=_alone(items, constants),
        after_call=after_call,
        launch_lag_ns=np.where(items.call >= 0, launch_lag, 0),
        queue_lag_ns=np.where(queued > EARLIEST_NS, queue_lag, 0),
        engine_lag_ns=np.where(free > EARLIEST_NS, engine_lag, 0),
    )
    return items, replace(orders, lag_ns=np.where(binding, gaps, np.minimum(gaps, constants.handover_ns or 0)))


def _ends_before(items: DeviceItems, group: I64, *, running: bool) -> I64:
    """Return the end of the previous item of each item's group; with `running`, the latest end of all before.

    `EARLIEST_NS` for the first item of a group.
    """
    result = np.full(len(items), EARLIEST_NS)
    for _, rows in rows_by(group):
        ends = items.end_ns[rows]
        result[rows[1:]] = (np.maximum.accumulate(ends) if running else ends)[:-1]
    return result


def _held_until(orders: Orders, items: DeviceItems) -> I64:
    held = np.full(len(items), EARLIEST_NS)
    np.maximum.at(held, orders.then, items.end_ns[orders.first])
    return held


def _alone(items: DeviceItems, constants: Constants) -> F64:
    """Return the length of each copy with the other direction idle."""
    duration = items.duration_ns.copy()
    for device in distinct(items.device).tolist():
        for kind, other, beside in (
            (Kind.H2D, Kind.D2H, constants.h2d_two_way),
            (Kind.D2H, Kind.H2D, constants.d2h_two_way),
        ):
            copies = np.flatnonzero(items.on_engine & (items.device == device) & (items.kind == kind))
            others = items.on_engine & (items.device == device) & (items.kind == other)
            both = covered(
                union(items.start_ns[others], items.end_ns[others]), items.start_ns[copies], items.end_ns[copies]
            )
            duration[copies] -= both * (1 - (beside or 1.0))
    return duration


# -- Calls of the host: their own length, and what they wait for -------------------------------------


def find_waits(trace: Trace, items: DeviceItems, constants: Constants) -> tuple[Calls, Waits]:
    """Find the items that each call waits for, and reduce the calls to their lengths without waiting."""
    calls, holds = find_calls(trace).calls, find_holds(trace, Reading.LIKELY)
    call, item = np.searchsorted(calls.row, holds.host.call), holds.host.item
    # The times may contradict what is known.
    is_plausible = items.end_ns[item] <= calls.end_ns[call] + _SKEW_NS
    pairs = distinct_rows([call[is_plausible], item[is_plausible]])
    known = np.array(pairs, np.int64).reshape(-1, 2).T
    guessed = _guess_waits(trace, items, among(calls.row, holds.known_calls))
    call, item = np.concatenate([known, guessed], axis=1)
    waited = items.end_ns[item] > calls.start_ns[call]
    after = calls.end_ns[call] - items.end_ns[item]
    lag = np.where(waited, after, np.minimum(after, constants.return_ns or 0))
    directly = waited & (after <= HANDOVER_NS)
    guess = np.arange(len(call)) >= len(known[0])
    confidence = np.where(~guess, EXACT, np.where(directly, HIGH, LOW)).astype(np.int8)
    length = calls.length_ns.copy()
    # The call's own length is hidden under its wait.
    length[call[waited]] = np.minimum(length[call[waited]], constants.sync_call_ns or 0)
    return replace(calls, length_ns=length), Waits(call, item, lag, confidence)


# -- Guesses by the times of ops ---------------------------------------------------------------------

_SKEW_NS = 2_000
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


def _seen_orders(items: DeviceItems, late: I64, ready_ns: I64) -> tuple[Orders, I64]:
    """Find the item of another lane of the same device that let each unexplained item begin.

    An item that ended right before is preferred. Otherwise, for a kernel, it is the running kernel that ends first:
    a kernel that fills the GPU lets another begin while its own last blocks still run.

    Args:
        items: All items.
        late: Unexplained items.
        ready_ns: Time at which each item could have begun.

    Returns:
        One order of low confidence for each item that could be explained this way, and the items that were delayed by
        one that they competed with.
    """
    kernel = ~items.is_copy
    by_end = np.argsort(items.end_ns, kind="stable")
    ends, starts = items.end_ns[by_end], items.start_ns
    first = []
    for item in late.tolist():
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
    delay_ns = starts[late] - ready_ns[late]
    competed = (earlier >= 0) & (delay_ns <= _COMPETED_NS) & (pick(starts, earlier) >= ready_ns[late])
    earlier[competed] = -1
    orders = Orders.of(earlier[earlier >= 0], late[earlier >= 0], 0, OrderReason.SEEN)
    return replace(orders, confidence=np.full(len(orders), LOW, np.int8)), late[competed]


def _guess_waits(trace: Trace, items: DeviceItems, known: Bool) -> tuple[I64, I64]:
    """Pair calls with the items that they are likely to have waited for, except those whose waits are known."""
    calls = find_calls(trace).calls
    # Copy calls that returned after their copy waited for it, if the memory is not known to be pinned.
    copies = np.flatnonzero(items.is_copy & (items.call >= 0) & (items.host_memory != Memory.PINNED))
    of_copies = items.call[copies]
    own = ~known[of_copies] & (items.end_ns[copies] <= calls.end_ns[of_copies])
    guesses = ((of_copies[own], copies[own]), _synchronized(trace, items, ~known), _queue_full(calls, items))
    call, item = (np.concatenate(rows) for rows in zip(*guesses, strict=True))
    return call, item


def _synchronized(trace: Trace, items: DeviceItems, free: Bool) -> tuple[I64, I64]:
    """Pair synchronizes and calls that free memory with the items that they waited for."""
    runtime, calls, lanes = trace.runtime_calls, find_calls(trace).calls, find_lanes(trace)
    frees, whole = frees_memory(runtime)[calls.row], waits_for_device(runtime)[calls.row]
    waits = np.flatnonzero((call_kinds.synchronises(runtime)[calls.row] | frees) & free)
    record = _paired_events(trace) if len(waits) else {}
    launched = np.flatnonzero(items.call >= 0)
    launched = launched[np.lexsort((items.call[launched], calls.start_ns[items.call[launched]]))]
    called_ns = calls.start_ns[items.call[launched]]
    pairs: list[tuple[int, int]] = []
    for call in waits.tolist():
        begin_ns, end_ns = int(calls.start_ns[call]), int(calls.end_ns[call])
        before = launched[: np.searchsorted(called_ns, begin_ns)]
        if not len(before):
            continue
        if frees[call] or whole[call]:
            row = int(calls.row[call])
            launched_last = [item for lane in range(len(lanes.keys)) if (item := lanes.last(lane, row)) >= 0]
            # A device whose work outlasts the call is not the synchronized device.
            last = [item for item in launched_last if items.end_ns[item] <= end_ns + _SKEW_NS]
            if whole[call] or any(items.end_ns[item] > begin_ns for item in last):
                pairs += [(call, item) for item in last]
            continue
        recorded_by = record.get(int(calls.row[call]), -1)
        recorded_ns = int(runtime.start_ns[recorded_by]) if recorded_by >= 0 else EARLIEST_NS
        ended = launched[: np.searchsorted(called_ns, recorded_ns)][-1:]
        if not len(ended) or items.end_ns[ended[0]] > end_ns + _SKEW_NS:
            ended = before[-4 * _QUEUE_DEPTH :]
            ended = ended[items.end_ns[ended] <= end_ns - _RETURN_NS]
            ended = ended[np.argmax(items.end_ns[ended], keepdims=True)] if len(ended) else ended
        pairs += [(call, item) for item in ended.tolist()]
    call_of_wait, item_of_wait = np.array(pairs, np.int64).reshape(-1, 2).T
    return call_of_wait, item_of_wait


def _paired_events(trace: Trace) -> dict[int, int]:
    """Return the call that is likely to have recorded the event of each event synchronize.

    Both are rows of `Trace.runtime_calls`. A synchronize names its event, but the call that records an event does not.
    If a thread waits for as many different events as it has recorded since its last wait, these events are paired in
    order.
    """
    runtime, syncs, calls = trace.runtime_calls, trace.syncs, find_calls(trace).calls.row
    stated = syncs.take((syncs.kind == Sync.EVENT) & (syncs.event >= 0) & (syncs.correlation > 0))
    event_of = dict(zip(stated.correlation.tolist(), stated.event.tolist(), strict=True))
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
