"""The order of GPU ops that a program demands, whatever time they take: which op can't begin before another has ended.

It follows from the host's calls in the order in which they were made:

- Ops of a stream run one after the other, in the order of their launches (`lane_items`).
- After a wait for an event, a stream runs later launches only when everything before the event's record has ended,
  and everything that the recording stream itself had waited for (`holds`).
- Calls of a thread follow each other, and a thread that another hands over to follows the call that did (`host_order`).
- A blocking call returns after the ops it waits for, so later launches come after them (`host_order`, `holds`).

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

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from msgspec.structs import asdict

from overlapscope.analysis.event_waits import EventWaits, event_waits
from overlapscope.analysis.holds import Holds, Reading, find_holds
from overlapscope.analysis.host_order import HostCalls, find_calls, find_polls
from overlapscope.analysis.lane_items import ItemLanes, find_lanes
from overlapscope.base.kept import kept
from overlapscope.base.words import plural
from overlapscope.errors import UnreadableTrace
from overlapscope.trace.model import I64, Trace

_MAX_ENDS = 1 << 27
"""Maximum number of waits, times the streams, because each wait may note what has ended on every stream."""

_Clock = tuple[int, ...]
"""Number of items of each lane that have ended."""
_Added = list[tuple[int, _Clock]]
"""Event waits and host clocks at a place of a lane: the waiting call, -1 for the host, and what had ended."""


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


class HappensBefore(ItemLanes, frozen=True, weakref=True):
    """Items of a trace by lane and place, and their order."""

    places: tuple[I64, ...]
    """Places of each lane from which more items of other lanes have ended."""
    clocks: tuple[I64, ...]
    """Number of items of each lane that have ended, before the first of these places and from each on."""
    added: tuple[tuple[_Added, ...], ...]
    """Items that added to them at each of these places."""
    blocks: tuple[int, ...]
    """Calls in which the host waited."""
    host_clocks: I64
    """Number of items of each lane that had ended when each of these, or one before it, returned."""
    waits: EventWaits

    def length(self, lane: int) -> int:
        """Return the number of a lane's items."""
        return len(self.rows[lane])

    def before(self, lane: int, places: I64, other: int) -> I64:
        """Return how many items of another lane have ended before each of a lane's places begins."""
        if lane == other:
            return places
        ended: I64 = self.clocks[lane][np.searchsorted(self.places[lane], places, side="right"), other]
        return ended

    def after(self, lane: int, places: I64, other: int) -> I64:
        """Return the first place of another lane that begins after each of a lane's places has ended.

        It is the lane's length if there is none.
        """
        if lane == other:
            return places + 1
        number = np.searchsorted(self.clocks[other][1:, lane], places, side="right")
        return np.append(self.places[other], self.length(other))[number]

    def cause(self, first: tuple[int, int], then: tuple[int, int]) -> OrderedBy | None:
        """Return what orders two items, given by lane and place; None if nothing does."""
        (lane, place), (later, at) = first, then
        if lane == later:
            return OrderedBy(-1, -1, on_host=False) if place < at else None
        number = int(np.searchsorted(self.clocks[later][1:, lane], place, side="right"))
        if number == len(self.places[later]) or self.places[later][number] > at:
            return None
        wait = next(call for call, clock in self.added[later][number] if clock[lane] > place)
        if wait < 0:
            number = int(np.searchsorted(self.host_clocks[:, lane], place, side="right"))
            return OrderedBy(self.blocks[number] if number < len(self.blocks) else -1, -1, on_host=True)
        row = int(np.flatnonzero(self.waits.call == wait)[0])
        stated = bool(self.waits.stated[row])
        return OrderedBy(wait, int(self.waits.record[row]) if stated else -1, on_host=False, stated=stated)


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
    walk = _HostWalk(trace, lanes, find_holds(trace, reading))
    walk.run(find_calls(trace), strictest=reading == Reading.STRICTEST)
    return HappensBefore(
        **asdict(lanes),
        places=tuple(np.array(places, np.int64) for places in walk.places),
        clocks=tuple(np.array(clocks, np.int64) for clocks in walk.clocks),
        added=tuple(map(tuple, walk.added)),
        blocks=tuple(walk.blocks),
        host_clocks=np.maximum.accumulate(
            np.array(walk.host_clocks, np.int64).reshape(len(walk.host_clocks), len(lanes.keys))
        ),
        waits=event_waits(trace),
    )


def _by_key(keys: I64, *columns: I64) -> dict[int, list[tuple[int, ...]]]:
    """Return the rows of some columns by another one."""
    rows: dict[int, list[tuple[int, ...]]] = {}
    for key, *row in zip(keys.tolist(), *(column.tolist() for column in columns), strict=True):
        rows.setdefault(key, []).append(tuple(row))
    return rows


class _HostWalk:
    """Walk through the host's calls in order, with what has ended when each is made."""

    def __init__(self, trace: Trace, lanes: ItemLanes, holds: Holds) -> None:
        self._trace, streams, count = trace, holds.streams, len(lanes.keys)
        waits = len(streams.then) + len(holds.host.item)
        if count * waits > _MAX_ENDS:
            raise UnreadableTrace(
                trace.source,
                f"has {plural(count, 'stream')} and {plural(waits, 'wait')} for them, too many to find their order; "
                "record fewer steps.",
            )
        self._nothing: _Clock = (0,) * count
        self._lane, self._place = lanes.items.lane.tolist(), lanes.items.place.tolist()
        self._begins = [self._nothing] * len(self._lane)
        """Items that have ended before each item begins; those of its own lane are not counted."""
        self._ended = [self._nothing] * count
        """The same for the next item of each lane."""
        self._heard = [self._nothing] * count
        """The host clock that each lane has taken over last."""
        self._last = [-1] * count
        """The last item of each lane, of those launched so far; -1 if there is none."""
        for item in np.flatnonzero(lanes.items.call < 0).tolist():
            self._last[self._lane[item]] = item
        self._threads: dict[int, _Clock] = {}
        self._launched_by = _by_key(lanes.items.call, np.arange(len(self._lane)))
        self._by_event = _by_key(streams.then, streams.first, streams.wait, streams.record)
        self._blocks = _by_key(holds.host.call, holds.host.item)
        self._at_record = dict.fromkeys(streams.record[streams.record >= 0].tolist(), self._nothing)
        """Items that had ended when the host recorded an event."""
        self.places: list[list[int]] = [[] for _ in lanes.keys]
        self.clocks: list[list[_Clock]] = [[self._nothing] for _ in lanes.keys]
        self.added: list[list[_Added]] = [[] for _ in lanes.keys]
        self.blocks: list[int] = []
        self.host_clocks: list[_Clock] = []

    def run(self, host: HostCalls, *, strictest: bool) -> None:
        """Go through all calls; with `strictest`, a thread also follows calls and polls that it may have followed."""
        calls, thread = host.calls, self._trace.runtime_calls.thread
        number_of = dict(zip(calls.row.tolist(), range(len(calls)), strict=True))
        polls = {*find_polls(self._trace).tolist()} if strictest else set[int]()
        givers = [calls.handed_by.tolist(), *([calls.maybe_by.tolist()] if strictest else [])]
        returned = [self._nothing] * len(calls)
        for row in sorted({*number_of, *self._at_record, *polls}):
            of_thread = int(thread[row])
            clock = self._threads.get(of_thread, self._nothing)
            if row in self._at_record:
                self._at_record[row] = clock
            if row in polls:
                clock = self._waited(row, clock, self._last)
            number = number_of.get(row)
            if number is not None:
                for giver in (each[number] for each in givers):
                    clock = _join(clock, returned[giver]) if giver >= 0 else clock
                self._launch(row, clock)
                if row in self._blocks:
                    clock = self._waited(row, clock, [item for (item,) in self._blocks[row]])
                returned[number] = clock
            self._threads[of_thread] = clock

    def _waited(self, row: int, clock: _Clock, items: Iterable[int]) -> _Clock:
        """Return what has ended when a call has waited for items."""
        for item in items:
            clock = _join(clock, self._ended_with(item) if item >= 0 else clock)
        self.blocks.append(row)
        self.host_clocks.append(clock)
        return clock

    def _launch(self, row: int, clock: _Clock) -> None:
        for (item,) in self._launched_by.get(row, ()):
            lane, since = self._lane[item], _Added()
            for first, wait, record in self._by_event.get(item, ()):
                reached = self._ended_with(first) if first >= 0 else self._nothing
                self._hold(lane, wait, _join(reached, self._at_record.get(record, reached)), since)
            if self._heard[lane] is not clock:
                self._heard[lane] = clock
                self._hold(lane, -1, clock, since)
            if since:
                self.places[lane].append(self._place[item])
                self.clocks[lane].append(self._ended[lane])
                self.added[lane].append(since)
            self._begins[item], self._last[lane] = self._ended[lane], item

    def _hold(self, lane: int, by: int, clock: _Clock, since: _Added) -> None:
        """Let later launches on a lane begin only when the items of a clock have ended."""
        held = _join(self._ended[lane], clock)
        if held is not self._ended[lane]:
            self._ended[lane] = held
            since.append((by, clock))

    def _ended_with(self, item: int) -> _Clock:
        """Return what has ended when an item has."""
        lane, ended = self._lane[item], self._begins[item]
        return (*ended[:lane], self._place[item] + 1, *ended[lane + 1 :])


def _join(clock: _Clock, other: _Clock) -> _Clock:
    """Return what has ended if both have; the first itself if the other adds nothing."""
    if clock is other:
        return clock
    joined = tuple(map(max, clock, other))
    return clock if joined == clock else joined
