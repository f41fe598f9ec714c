"""The dependency graph of a recording: what must have happened before each GPU op and each host call.

Items are what the device does at one go: a GPU op, or all ops of one graph launch, whose places relative to each other
are kept. Calls are what the host does to the device: launches, and whatever blocks. Between two calls of a thread lies
host work of a fixed length.

An item begins when all of this has happened, each with its lag:
- its call has been made;
- the item before it on its lane has ended (a lane is a stream of a device, or one that an intervention makes);
- the items that an `Order` puts before it have ended;
- for a copy: its copy engine is free. Copies take an engine in the order in which they become ready.
A call begins when the one before it on its thread has ended and the host work between them is done, or, where another
thread handed over to it, when that thread's last call has ended. It ends after its own length, and not before the items
it waits for have.

Daydream (Zhu et al., USENIX ATC 2020) predicts from such a graph at the level of kernels and launches; engines,
blocking calls and the intervals are this package's own.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import numpy as np
from msgspec import Struct

from overlapscope.analysis.grouping import rows_by
from overlapscope.base.columns import Columns
from overlapscope.base.kept import kept
from overlapscope.prediction.calibration import Constants
from overlapscope.prediction.shapes import Shapes
from overlapscope.trace.model import F64, I8, I64, Bool, Kind, Memory, Trace


class Items(Columns, frozen=True):
    """By measured start."""

    device: I64
    lane: I64
    """On which it takes its turn. Numbers of streams are in `Graph.streams`."""
    kind: I8
    """`trace.Kind` of its ops; `OTHER` for a graph launch that holds several."""
    host_memory: I8
    """`trace.Memory` of a copy's host side."""
    bytes: I64
    duration_ns: F64
    """Of a copy: with the other direction's engine at rest."""
    call: I64
    """Row of `Calls`; -1 where it was launched before the recording."""
    launch_lag_ns: I64
    after_call: Bool
    """The lag counts from the call's end, not its start."""
    queue_lag_ns: I64
    """From the end of the item before it on its lane."""
    engine_lag_ns: I64
    """From when its copy engine is free."""
    release_ns: I64
    """It begins no earlier, whatever else: the measured start of what was launched before the recording."""
    moved: Bool
    """An intervention put it on another lane."""
    gone: Bool
    """An intervention removed it."""
    start_ns: I64
    """As measured."""
    end_ns: I64

    @property
    def is_copy(self) -> Bool:
        """Which are copies between host and device."""
        copies: Bool = (self.kind == Kind.H2D) | (self.kind == Kind.D2H)
        return copies

    @property
    def on_engine(self) -> Bool:
        """Which take a copy engine for themselves. Copies from or to pageable memory do not: the driver moves them in
        pieces, and others run in between."""
        exclusive: Bool = self.is_copy & (self.host_memory != Memory.PAGEABLE) & ~self.gone
        return exclusive


class Calls(Columns, frozen=True):
    """By measured start."""

    row: I64
    """Of `Trace.runtime_calls`."""
    thread: I64
    """Number of the thread."""
    before_ns: I64
    """Host work between the call before it on its thread, or the one handing over to it, and this."""
    length_ns: I64
    """Without waiting."""
    handed_by: I64
    """The call of another thread that this one comes after; -1 for none."""
    maybe_by: I64
    """Where nothing ties its thread to another: the main thread's last call, which it may come after; else -1."""
    release_ns: I64
    """Measured start of a thread's first call; it begins no earlier."""
    since_ns: I64
    """When the work before it began, as measured. `before_ns` may have become shorter since."""
    start_ns: I64
    """As measured."""
    end_ns: I64

    @property
    def previous(self) -> I64:
        """Of each: the call before it on its thread; -1 for none."""
        order = np.argsort(self.thread, kind="stable")
        same = self.thread[order[1:]] == self.thread[order[:-1]]
        before = np.full(len(self), -1, np.int64)
        before[order[1:][same]] = order[:-1][same]
        return before


class Why(IntEnum):
    """Why one item comes after another."""

    EVENT = 0
    """An event wait, as stated or rebuilt."""
    SEEN = 1
    """The later began right when the earlier ended, and nothing else in the trace explains its start."""
    DATA = 2
    """It is taken to need the earlier's data."""


class Orders(Columns, frozen=True):
    """Items that wait for items of other lanes."""

    first: I64
    then: I64
    lag_ns: I64
    why: I8
    confidence: I8
    """That of `analysis.edges`."""

    @classmethod
    def of(cls, first: I64, then: I64, lag_ns: int, why: Why) -> Orders:
        """Orders of one kind, all with the same lag."""
        return cls.filled(first=first, then=then, lag_ns=lag_ns, why=why, confidence=2)


class Waits(Columns, frozen=True):
    """Calls that return only after an item has ended."""

    call: I64
    item: I64
    lag_ns: I64


class Recorded(Struct, frozen=True, eq=False, weakref=True):
    """What no intervention changes: what follows from nothing else is kept with it (`base.kept`)."""

    trace: Trace
    calls: Calls
    """Of which all stays but what they hand over and how long they and the work before them take."""
    threads: tuple[int, ...]
    """Operating-system id of each thread number."""
    item_of_op: I64
    """Row of `Graph.items` for each row of `Trace.gpu_ops`."""


@kept()
def by_thread(recorded: Recorded) -> list[tuple[int, I64]]:
    """The id of each thread, and its calls in order."""
    return [(recorded.threads[number], rows) for number, rows in rows_by(recorded.calls.thread)]


@kept()
def _previous(recorded: Recorded) -> I64:
    return recorded.calls.previous


class Graph(Struct, frozen=True, eq=False):
    """A recording's dependency graph, or what interventions made of it."""

    trace: Trace
    recorded: Recorded
    items: Items
    calls: Calls
    orders: Orders
    waits: Waits
    notes: tuple[I64, I64]
    """Pairs of items of one lane, the second of which was told to wait for the first: the recording's own word on what
    needs what, where being on one lane says nothing."""
    shapes: Callable[[], Shapes | None]
    """The shapes of inputs, looked up in the recording's file when first asked for; None where they are not known."""
    streams: tuple[tuple[int, int], ...]
    """Device and stream of each lane; lanes that interventions make get stream numbers that the trace does not use."""
    constants: Constants
    """What the hardware is taken to do where the recording does not show it."""
    unexplained_ns: I64
    """Of each item: how long it began after all that the graph knows of."""
    keeping: frozenset[int]
    """Devices of which those waits are few, and parts of lags, so that a replay repeats them."""

    def by_thread(self) -> list[tuple[int, I64]]:
        """The id of each thread, and its calls in order."""
        return by_thread(self.recorded)

    @property
    def previous(self) -> I64:
        """Of each call: the one before it on its thread; -1 for none."""
        return _previous(self.recorded)

    @property
    def item_of_op(self) -> I64:
        """Row of `items` for each row of `Trace.gpu_ops`."""
        return self.recorded.item_of_op

    def callers(self, items: I64) -> I64:
        """The calls that launched items, one for each whose launch was recorded."""
        called = self.items.call[items]
        return called[called >= 0]

    def launching(self, items: I64 | Bool) -> Bool:
        """Which calls launched any of some items: their rows, or a mask."""
        launches = np.zeros(len(self.calls), np.bool_)
        called = self.items.call[items]
        launches[called[called >= 0]] = True
        return launches
