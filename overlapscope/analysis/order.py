"""The order of GPU ops that a program demands, whatever time they take: which op can't begin before another has ended.

It follows from the host's calls in the order in which they were made:

- Ops of a stream run one after the other, in the order of their launches (`lane_items`).
- After a wait for an event, a stream runs later launches only when everything before the event's record has ended,
  and everything that the recording stream itself had waited for (`holds`).
- Calls of a thread follow each other, and a thread that another hands over to follows the call that did (`host_order`).
- A blocking call returns after the ops it waits for, so later launches come after them (`host_waits`, `holds`).

These four are the relation. Edges of causes and the graph of a replay take them from the same modules. This module
follows them from any op to any other.

No time on the device is used, so the same program has the same order on a faster or a busier machine. Some
recordings don't state which event a stream waits for, and none which one the host queries (`find_polls`).
`stated_order` leaves such a wait out, `strictest_order` takes it as a wait for everything launched before. The order of
two ops is known if both agree.

A device synchronize of an unstated device is of the only device in the recording, unless ops that were launched before
it began after it had returned.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from overlapscope.analysis.event_waits import EventWaits, event_waits
from overlapscope.analysis.holds import Reading, find_holds
from overlapscope.analysis.host_order import HostCalls, find_calls
from overlapscope.analysis.host_waits import find_polls
from overlapscope.analysis.lane_items import ItemLanes, LaneItems, find_lanes
from overlapscope.base.kept import kept
from overlapscope.base.words import plural
from overlapscope.errors import UnreadableTrace
from overlapscope.trace.model import I64, Trace

_MOST_ENDS = 1 << 27
"""Maximum number of waits, times the streams, because each wait may note what has ended on every stream."""

_Clock = tuple[int, ...]
"""Number of items of each lane that have ended."""


class OrderedBy(NamedTuple):
    """Reason why an item begins only after another."""

    call: int
    """Row of `Trace.runtime_calls`: the call that made the stream wait, or in which the host waited; -1 on one lane."""
    record: int
    """Row of the call that recorded the event; -1 if unknown or not an event."""
    on_host: bool
    """True if the host waited."""
    stated: bool = True
    """False if it is only possible, because the recording doesn't state the event."""


class _Step(NamedTuple):
    """A place of a lane from which more items of other lanes have ended."""

    place: int
    clock: _Clock
    by: tuple[tuple[int, _Clock], ...]
    """Event waits and host clocks since the step before: the waiting call, -1 for the host, and what had ended."""


class _HostStep(NamedTuple):
    """A blocking call, and what had ended when it returned."""

    call: int
    clock: _Clock


class HappensBefore(Struct, frozen=True, eq=False, weakref=True):
    """Order of the items of a trace, by lane and place."""

    streams: tuple[tuple[int, int], ...]
    """Device and stream of each lane."""
    items: LaneItems
    first: I64
    """Row of each lane's first item; a last entry has the number of items."""
    item_of_op: I64
    """Row of `items` for each row of `Trace.gpu_ops`."""
    steps: tuple[tuple[_Step, ...], ...]
    host: tuple[_HostStep, ...]
    waits: EventWaits

    def length(self, lane: int) -> int:
        """Return the number of a lane's items."""
        return int(self.first[lane + 1] - self.first[lane])

    def before(self, lane: int, places: I64, other: int) -> I64:
        """Return how many items of another lane have ended before each of a lane's places begins."""
        if lane == other:
            return places
        begins, clocks = _clocks(self, lane)
        ended: I64 = clocks[np.searchsorted(begins, places, side="right"), other]
        return ended

    def after(self, lane: int, places: I64, other: int) -> I64:
        """Return the first place of another lane that begins after each of a lane's places has ended.

        It is the lane's length if there is none.
        """
        if lane == other:
            return places + 1
        begins, clocks = _clocks(self, other)
        return np.append(begins, self.length(other))[np.searchsorted(clocks[1:, lane], places, side="right")]

    def cause(self, first: tuple[int, int], then: tuple[int, int]) -> OrderedBy | None:
        """Return what orders two items, given by lane and place; None if nothing does."""
        (lane, place), (later, at) = first, then
        if lane == later:
            return OrderedBy(-1, -1, on_host=False) if place < at else None
        number = int(np.searchsorted(_clocks(self, later)[1][1:, lane], place, side="right"))
        if number == len(self.steps[later]) or self.steps[later][number].place > at:
            return None
        wait = next(call for call, clock in self.steps[later][number].by if clock[lane] > place)
        return self._host_cause(lane, place) if wait < 0 else self._event_cause(wait)

    def _host_cause(self, lane: int, place: int) -> OrderedBy | None:
        number = int(np.searchsorted(_host_clocks(self)[:, lane], place, side="right"))
        return OrderedBy(self.host[number].call if number < len(self.host) else -1, -1, on_host=True)

    def _event_cause(self, wait: int) -> OrderedBy:
        row = int(np.flatnonzero(self.waits.call == wait)[0])
        stated = bool(self.waits.stated[row])
        return OrderedBy(wait, int(self.waits.record[row]) if stated else -1, on_host=False, stated=stated)


@kept()
def _clocks(order: HappensBefore, lane: int) -> tuple[I64, I64]:
    """Return the place of each of a lane's steps; and what has ended, before the first step and from each on."""
    steps = order.steps[lane]
    nothing = (0,) * len(order.streams)
    return (
        np.array([step.place for step in steps], np.int64),
        np.array([nothing, *(step.clock for step in steps)], np.int64),
    )


@kept()
def _host_clocks(order: HappensBefore) -> I64:
    """Return what has ended when each blocking call, or one before it, returned."""
    clocks = np.array([step.clock for step in order.host], np.int64).reshape(-1, len(order.streams))
    return np.maximum.accumulate(clocks)


@kept()
def stated_order(trace: Trace) -> HappensBefore:
    """Return the order that a recording states."""
    return _find_order(trace, Reading.STATED)


@kept()
def strictest_order(trace: Trace) -> HappensBefore:
    """Return the strictest order that a recording allows: `stated_order` and whatever its other waits may be for.

    Raises:
        UnreadableTrace: It has too many streams and waits.
    """
    return _find_order(trace, Reading.STRICTEST)


def _find_order(trace: Trace, reading: Reading) -> HappensBefore:
    lanes = find_lanes(trace)
    walk = _HostWalk(trace, lanes, reading)
    walk.run(find_calls(trace), strictest=reading == Reading.STRICTEST)
    return HappensBefore(
        streams=lanes.streams,
        items=lanes.items,
        first=lanes.first,
        item_of_op=lanes.item_of_op,
        steps=tuple(map(tuple, walk.steps)),
        host=tuple(walk.host),
        waits=event_waits(trace),
    )


class _EventHold(NamedTuple):
    """An item that ends before an event, for which another item waits."""

    item: int
    wait: int
    record: int


class _HostWalk:
    """Walk through the host's calls in order, with what has ended when each is made."""

    def __init__(self, trace: Trace, lanes: ItemLanes, reading: Reading) -> None:
        self._trace = trace
        nothing: _Clock = (0,) * len(lanes.keys)
        self._first, self._lane = lanes.first.tolist(), lanes.items.lane.tolist()
        self._ended: list[_Clock] = [nothing] * len(lanes.keys)
        """Items that have ended before the next item of each lane begins; the lane's own are not counted."""
        self._next = lanes.first[:-1].tolist()
        """The next item of each lane."""
        self._heard: list[_Clock] = [nothing] * len(lanes.keys)
        """The host clock that each lane has taken over last."""
        self._threads: dict[int, _Clock] = {}
        self._nothing = nothing
        self.steps: list[list[_Step]] = [[] for _ in lanes.keys]
        self._places: list[list[int]] = [[] for _ in lanes.keys]
        """Place of each step."""
        self.host: list[_HostStep] = []
        self._items_of: dict[int, list[int]] = {}
        for lane, call in zip(self._lane, lanes.items.call.tolist(), strict=True):
            if call < 0:
                self._next[lane] += 1
            else:
                self._items_of.setdefault(call, []).append(lane)
        holds = find_holds(trace, reading)
        streams = holds.streams
        if len(lanes.keys) * (len(streams.then) + len(holds.host.item)) > _MOST_ENDS:
            raise UnreadableTrace(
                trace.source,
                f"has {plural(len(lanes.keys), 'stream')} and "
                f"{plural(len(streams.then) + len(holds.host.item), 'wait')} for them, too many to find their order; "
                "record fewer steps.",
            )
        self._by_event: dict[int, list[_EventHold]] = {}
        columns = streams.then, streams.first, streams.wait, streams.record
        for then, *hold in zip(*(column.tolist() for column in columns), strict=True):
            self._by_event.setdefault(then, []).append(_EventHold(*hold))
        self._blocks: dict[int, list[int]] = {}
        for call, item in zip(holds.host.call.tolist(), holds.host.item.tolist(), strict=True):
            self._blocks.setdefault(call, []).append(item)
        self._at_record: dict[int, _Clock] = dict.fromkeys(streams.record[streams.record >= 0].tolist(), nothing)
        """Items that had ended when the host recorded an event."""
        self._polls = {*find_polls(trace).tolist()} if reading == Reading.STRICTEST else set[int]()

    def run(self, host: HostCalls, *, strictest: bool) -> None:
        """Go through all calls; with `strictest`, a thread also follows calls that it may have followed."""
        calls, thread = host.calls, self._trace.runtime_calls.thread
        number_of = dict(zip(calls.row.tolist(), range(len(calls)), strict=True))
        handed, maybe = calls.handed_by.tolist(), calls.maybe_by.tolist()
        returned: list[_Clock] = [self._nothing] * len(calls)
        for row in sorted({*number_of, *self._at_record, *self._polls}):
            of_thread = int(thread[row])
            clock = self._threads.get(of_thread, self._nothing)
            if row in self._at_record:
                self._at_record[row] = clock
            if row in self._polls:
                for lane, item in enumerate(self._next):
                    clock = _join(clock, self._ended_with(item - 1) if item > self._first[lane] else clock)
                self._threads[of_thread] = clock
                self.host.append(_HostStep(row, clock))
            number = number_of.get(row)
            if number is None:
                continue
            for giver in (handed[number], maybe[number] if strictest else -1):
                if giver >= 0:
                    clock = _join(clock, returned[giver])
            self._launch(row, clock)
            if row in self._blocks:
                for item in self._blocks[row]:
                    clock = _join(clock, self._ended_with(item))
                self.host.append(_HostStep(row, clock))
            self._threads[of_thread] = returned[number] = clock

    def _launch(self, row: int, clock: _Clock) -> None:
        for lane in self._items_of.get(row, ()):
            item, since = self._next[lane], list[tuple[int, _Clock]]()
            for hold in self._by_event.get(item, ()):
                self._hold(lane, hold.wait, self._reached(hold), since)
            if self._heard[lane] is not clock:
                self._heard[lane] = clock
                self._hold(lane, -1, clock, since)
            if since:
                self.steps[lane].append(_Step(item - self._first[lane], self._ended[lane], tuple(since)))
                self._places[lane].append(item - self._first[lane])
            self._next[lane] += 1

    def _hold(self, lane: int, by: int, clock: _Clock, since: list[tuple[int, _Clock]]) -> None:
        """Let later launches on a lane begin only when the items of a clock have ended."""
        held = _join(self._ended[lane], clock)
        if held is not self._ended[lane]:
            self._ended[lane] = held
            since.append((by, clock))

    def _reached(self, hold: _EventHold) -> _Clock:
        """Return what has ended when an event is reached."""
        clock = self._nothing if hold.item < 0 else self._ended_with(hold.item)
        return _join(clock, self._at_record.get(hold.record, clock))

    def _ended_with(self, item: int) -> _Clock:
        """Return what has ended when an item has."""
        lane = self._lane[item]
        place = item - self._first[lane]
        step = bisect_right(self._places[lane], place) - 1
        ended = self.steps[lane][step].clock if step >= 0 else self._nothing
        return (*ended[:lane], place + 1, *ended[lane + 1 :])


def _join(clock: _Clock, other: _Clock) -> _Clock:
    """Return what has ended if both have; the first itself if the other adds nothing."""
    if clock is other:
        return clock
    joined = tuple(map(max, clock, other))
    return clock if joined == clock else joined
