"""The dependency graph of a recording: the events that must precede each GPU op and each host call.

An item is a unit of device work: a GPU op, or all ops of one graph launch, which keep their places relative to each
other. A call is a host call that launches work or blocks. Between two calls of a thread lies host work of a fixed
length.

An item begins once all of this has happened, each with its lag:
- Its call has been made.
- The previous item on its lane has ended. A lane is a stream of a device, or a stream that an intervention makes.
- The items that `Orders` put before it have ended.
- For a copy, its copy engine is free. An engine takes copies in the order in which they become ready.

A call begins when the previous call on its thread has ended and the host work between them is done. Where another
thread handed over to this one, it begins after that thread's last call instead. It ends after its own length, and not
before the items it waits for.

Daydream (Zhu et al., USENIX ATC 2020) predicts from such a graph at the level of kernels and launches. Engines,
blocking calls and the intervals are this package's own.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from overlapscope.analysis.event_waits import EXACT, LOW
from overlapscope.analysis.host_order import EARLIEST_NS, Calls, find_calls
from overlapscope.analysis.lane_items import find_lanes
from overlapscope.base.columns import Columns, mask_of
from overlapscope.base.grouping import rows_by
from overlapscope.base.kept import kept
from overlapscope.prediction.calibration import Constants
from overlapscope.trace.model import F64, I8, I64, Bool, Kind, Memory, Trace

_H2D, _D2H, _PAGEABLE = int(Kind.H2D), int(Kind.D2H), int(Memory.PAGEABLE)
"""Numpy compares a column with a plain number in a fifth of the time."""


class DeviceItems(Columns, frozen=True):
    """Items by measured start."""

    device: I64
    lane: I64
    """Lane that the item runs on; `Graph.streams` has the stream of each."""
    kind: I8
    """`trace.Kind` of its ops; `OTHER` for a graph launch with several kinds."""
    host_memory: I8
    """`trace.Memory` of a copy's host side."""
    bytes: I64
    duration_ns: F64
    """Length; for a copy, with the other direction's engine idle."""
    call: I64
    """Row of `Calls`; -1 if it was launched before the recording."""
    launch_lag_ns: I64
    after_call: Bool
    """True if the launch lag counts from the call's end instead of its start."""
    queue_lag_ns: I64
    """Lag after the end of the previous item on its lane."""
    engine_lag_ns: I64
    """Lag after its copy engine is free."""
    release_ns: I64
    """Earliest start: the measured start of an item launched before the recording."""
    moved: Bool
    """True if an intervention put it on another lane."""
    gone: Bool
    """True if an intervention removed it."""
    start_ns: I64
    """Measured start."""
    end_ns: I64

    @classmethod
    def of(cls, **columns: NDArray[Any] | int) -> DeviceItems:
        """Return items of some columns; the others are those of ops that no call launches."""
        usual = {"device": 0, "kind": int(Kind.OTHER), "host_memory": 0, "bytes": -1, "call": -1, "launch_lag_ns": 0}
        usual |= {"after_call": False, "queue_lag_ns": 0, "engine_lag_ns": 0, "release_ns": EARLIEST_NS}
        return cls.filled(**usual | {"moved": False, "gone": False} | columns)

    @property
    def is_copy(self) -> Bool:
        """Mask of the copies between host and device."""
        copies: Bool = (self.kind == _H2D) | (self.kind == _D2H)
        return copies

    @property
    def on_engine(self) -> Bool:
        """Mask of the copies that occupy a copy engine.

        Copies from or to pageable memory don't: the driver moves them in pieces, and other copies run in between.
        """
        exclusive: Bool = self.is_copy & (self.host_memory != _PAGEABLE) & ~self.gone
        return exclusive

    def without(self, rows: I64) -> DeviceItems:
        """Return the items after some of them are removed: those take no time, on the device or in a queue."""
        left = self.copied("duration_ns", "queue_lag_ns", "gone")
        left.duration_ns[rows] = left.queue_lag_ns[rows] = 0
        left.gone[rows] = True
        return left


class OrderReason(IntEnum):
    """Reason why an item comes after another."""

    EVENT = 0
    """An event wait, as stated or rebuilt."""
    SEEN = 1
    """The later item began right when the earlier ended, and nothing else in the trace explains its start."""
    DATA = 2
    """The later item is assumed to need the earlier item's data."""


class Orders(Columns, frozen=True):
    """Items that wait for items of other lanes."""

    first: I64
    then: I64
    lag_ns: I64
    why: I8
    confidence: I8
    """Confidence in it, as in `analysis.event_waits`."""

    @classmethod
    def of(cls, first: I64, then: I64, lag_ns: int, why: OrderReason) -> Orders:
        """Return orders of the same kind and lag."""
        return cls.filled(first=first, then=then, lag_ns=lag_ns, why=why, confidence=EXACT)


class Waits(Columns, frozen=True):
    """Pairs of a call and an item: the call returns only after the item has ended."""

    call: I64
    item: I64
    lag_ns: I64
    confidence: I8
    """`EXACT` if the recording states it, else that of the guess (`graph_builder`)."""

    @classmethod
    def of(cls, call: I64, item: I64, lag_ns: I64 | int) -> Waits:
        """Return waits that are certain."""
        return cls.filled(call=call, item=item, lag_ns=lag_ns, confidence=EXACT)


@kept()
def by_thread(trace: Trace) -> list[tuple[int, I64]]:
    """Return the id of each thread of a recording with its calls in order."""
    host = find_calls(trace)
    return [(host.threads[number], rows) for number, rows in rows_by(host.calls.thread)]


class Network(Struct, frozen=True, eq=False):
    """Items and calls with everything that they wait for: what a replay needs."""

    items: DeviceItems
    calls: Calls
    orders: Orders
    waits: Waits
    constants: Constants
    """Constants of the hardware."""

    def by_thread(self) -> list[tuple[int, I64]]:
        """Return each thread with its calls in order."""
        return rows_by(self.calls.thread)


class Graph(Network, frozen=True, eq=False, kw_only=True, weakref=True):
    """A recording's dependency graph, or what interventions made of it; results of it alone are kept (`base.kept`).

    Rows of items and calls are those of the recording (`find_lanes`, `find_calls`). Interventions change only handovers
    and lengths of calls, and the work before them.
    """

    trace: Trace
    stated: Orders
    """Orders of items of one lane with an event wait between them.

    The recording itself states that the second needs the first, which the order on a lane does not.
    """
    streams: tuple[tuple[int, int], ...]
    """Device and stream of each lane; lanes that interventions make have stream numbers that the trace does not use."""
    unexplained_ns: I64
    """Unexplained delay of each item: time between the last event that the graph knows of and its start."""
    devices_with_kept_delays: frozenset[int]
    """Devices with few unexplained delays: these are parts of lags there, so that a replay repeats them."""

    def by_thread(self) -> list[tuple[int, I64]]:
        """Return each thread's id with its calls in order."""
        return by_thread(self.trace)

    @property
    def threads(self) -> tuple[int, ...]:
        """Operating-system id of each thread number."""
        return find_calls(self.trace).threads

    @property
    def item_of_op(self) -> I64:
        """Row of `items` for each row of `Trace.gpu_ops`."""
        return find_lanes(self.trace).item_of_op

    @property
    def is_single_op(self) -> Bool:
        """Mask of the items that are a single op."""
        single: Bool = find_lanes(self.trace).items.ops == 1
        return single

    def without_guesses(self) -> Graph:
        """Return the graph without the waits that are guesses of low confidence."""
        orders, waits = self.orders, self.waits
        return replace(self, orders=orders.take(orders.confidence > LOW), waits=waits.take(waits.confidence > LOW))

    def callers(self, items: I64) -> I64:
        """Return the recorded calls that launched the items, one for each item."""
        called = self.items.call[items]
        return called[called >= 0]

    def launching(self, items: I64 | Bool) -> Bool:
        """Return a mask of the calls that launched any of the items, given as rows or as a mask."""
        called = self.items.call[items]
        return mask_of(called[called >= 0], len(self.calls))
