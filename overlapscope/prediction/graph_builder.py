"""Builds a recording's dependency graph.

The lag between an item and the event it waited for last is the measured time. For every other event that precedes it,
the lag is the usual one of this hardware, or the measured time if that is shorter. A wait longer than launches, queues
and events explain is in no lag. The replay then begins the item earlier than recorded, which shows how wrong the graph
is.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.event_waits import EXACT, HANDOVER_NS, HIGH, LOW
from overlapscope.analysis.holds import Reading, find_holds, own_stream_waits
from overlapscope.analysis.host_order import EARLIEST_NS, Calls, find_calls
from overlapscope.analysis.lane_items import find_lanes, launched_together
from overlapscope.base.columns import pick
from overlapscope.base.grouping import among, distinct, distinct_rows, rows_by
from overlapscope.base.intervals import Bool, covered, union
from overlapscope.prediction.calibration import Constants
from overlapscope.prediction.graph import DeviceItems, Graph, OrderReason, Orders, RecordedParts, Waits
from overlapscope.prediction.guesses import SKEW_NS, guess_waits, seen_orders
from overlapscope.trace.model import F64, I64, Kind, Memory, Trace, split_stream_key, stream_keys

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
    calls, of_runtime_call, threads = find_calls(trace)
    items, item_of_op = _find_items(trace, of_runtime_call)
    orders = _event_orders(trace, items, item_of_op)
    items, orders, unexplained, keeping = _with_lags(items, calls, orders, constants)
    recorded = RecordedParts(trace, calls, threads, item_of_op)
    calls, waits = find_waits(recorded, items, constants)
    lanes = distinct(items.lane)
    source, held = own_stream_waits(trace)
    return Graph(
        trace=trace,
        recorded=recorded,
        items=replace(items, lane=np.searchsorted(lanes, items.lane)),
        calls=calls,
        orders=orders,
        waits=waits,
        stated=Orders.of(item_of_op[source], item_of_op[held], 0, OrderReason.EVENT),
        streams=tuple(map(split_stream_key, lanes.tolist())),
        constants=constants,
        unexplained_ns=unexplained,
        devices_with_kept_delays=keeping,
    )


def _find_items(trace: Trace, of_runtime_call: I64) -> tuple[DeviceItems, I64]:
    """Return the items, without lags, and the item of each op."""
    ops = trace.gpu_ops
    call = pick(of_runtime_call, ops.launch)
    first, item_of_op = launched_together(ops, call)
    end = np.full(len(first), EARLIEST_NS)
    np.maximum.at(end, item_of_op, ops.end_ns)
    alone = np.bincount(item_of_op, minlength=len(first)) == 1
    size = np.zeros(len(first), np.int64)
    np.add.at(size, item_of_op, np.maximum(ops.bytes, 0))
    same = np.ones(len(first), np.bool_)
    np.logical_and.at(same, item_of_op, ops.kind == ops.kind[first][item_of_op])
    start = ops.start_ns[first]
    items = DeviceItems.of(
        device=ops.device[first],
        lane=stream_keys(ops.device[first], ops.stream[first]),
        kind=np.where(alone | same, ops.kind[first], Kind.OTHER),
        host_memory=ops.host_memory[first],
        bytes=size,
        duration_ns=end - start,
        call=call[first],
        release_ns=np.where(call[first] < 0, start, EARLIEST_NS),
        start_ns=start,
        end_ns=end,
    )
    return items, item_of_op


def _event_orders(trace: Trace, items: DeviceItems, item_of_op: I64) -> Orders:
    """Return the event waits, without lags; guessed waits only where they explain the start of the held item."""
    holds, op = find_holds(trace, Reading.LIKELY).streams, find_lanes(trace).items.op
    holds = holds.take(holds.first >= 0)
    first, then = item_of_op[op[holds.first]], item_of_op[op[holds.then]]
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
    seen, competed = seen_orders(items, np.flatnonzero(late), ready)
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


def find_waits(recorded: RecordedParts, items: DeviceItems, constants: Constants) -> tuple[Calls, Waits]:
    """Find the items that each call waits for, and reduce the calls to their lengths without waiting."""
    calls, op = recorded.calls, find_lanes(recorded.trace).items.op
    holds = find_holds(recorded.trace, Reading.LIKELY)
    call, item = np.searchsorted(calls.row, holds.host.call), recorded.item_of_op[op[holds.host.item]]
    # The times may contradict what is known.
    is_plausible = items.end_ns[item] <= calls.end_ns[call] + SKEW_NS
    pairs = distinct_rows([call[is_plausible], item[is_plausible]])
    known = np.array(pairs, np.int64).reshape(-1, 2).T
    guessed = guess_waits(recorded, items, among(calls.row, holds.known_calls))
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
