"""Items that must end before another item begins or a call returns: by a wait for an event, or by a blocking call.

A wait for an event holds the next item launched on its stream until the last item launched before the event's record
has ended. If the recording stream itself waited for an event, and launched nothing since, its own event is reached only
after that wait, so the waiting stream inherits it. A blocking call waits for the last items of the streams that it
waits for, and inherits their waits alike.

A recording may not state the event of a wait. A reading leaves such a wait out (`STATED`), takes it as a wait for
everything launched before (`STRICTEST`), or guesses from the times of ops (`LIKELY`). Only
guesses use times of the device, so whatever is stated is the same on a faster or a busier machine.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.event_waits import EXACT, HANDOVER_NS, HIGH, LOW, EventWaits, event_waits
from overlapscope.analysis.host_order import Block, find_blocks
from overlapscope.analysis.lane_items import ItemLanes, find_lanes
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import I8, I64, Columns, pick
from overlapscope.base.grouping import among, distinct
from overlapscope.base.kept import kept
from overlapscope.trace.model import Kind, Trace

# -- Guesses by the times of ops ---------------------------------------------------------------------


class _Hold(NamedTuple):
    """An item that must end first, or the place at which the event of a wait may have been recorded."""

    item: int
    """Last item before the event; -1 if there is none."""
    lane: int
    """Lane on which the event was recorded."""
    record: int
    """Call that recorded it; -1 if unknown."""
    confidence: int


def _guessed_sources(trace: Trace) -> dict[int, _Hold]:
    """Return guesses by the times of ops for the waits whose event the recording doesn't state, by row of `EventWaits`.

    - The event was recorded by the nearest `cudaEventRecord*` call before the wait on the same thread, or on any thread
      if that one has none.
    - It was recorded on a stream whose last op enqueued before had ended when the held op began, so that a guess never
      contradicts the timeline. Among several such streams, the last to finish before the held op is chosen, because it
      explains the start best.

    The confidence is `HIGH` if the record call directly precedes the wait (as in `wait_stream` and `record();
    wait_event()`), or if the stream is stated and only the record call lies before the recording; and if the held op
    began right when the source ended, or only one stream is possible. Otherwise it is `LOW`.

    If there are several devices, a stream that launched nothing is as good as unknown, since Kineto states no device.
    """
    lanes, all_waits, ops = find_lanes(trace), event_waits(trace), trace.gpu_ops
    items = lanes.items
    begins, ends = ops.start_ns[items.op], ops.end_ns[items.last_op]
    launches = items.call >= 0
    with_launches = np.array(lanes.keys, np.int64)[distinct(items.lane[launches])]
    known = among(all_waits.source, with_launches) | ((all_waits.source >= 0) & (len(trace.devices) == 1))
    rows = np.flatnonzero(~(all_waits.stated & known))
    waits = all_waits.take(rows)
    source = np.where(known[rows], waits.source, -1)
    recorded_at = np.where(waits.nearest >= 0, waits.nearest, waits.call)
    held = np.full(len(waits), -1, np.int64)
    for key, part in zip(lanes.keys, lanes.rows, strict=True):
        waiting = np.flatnonzero(waits.stream == key)
        held[waiting] = pick(part, np.searchsorted(items.call[part], waits.call[waiting]))
    held_begins = pick(begins, held, 0)
    item, end, record = np.full((3, len(waits)), -1, np.int64)
    candidates = np.zeros(len(waits), np.int64)
    for key, part in zip(lanes.keys, lanes.rows, strict=True):
        recorded = np.searchsorted(items.call[part], recorded_at) - 1
        # An event that is created once and recorded in every step has older records than the nearest one.
        over = np.searchsorted(np.maximum.accumulate(ends[part]), held_begins, side="right") - 1
        before = np.where(waits.adjacent, recorded, np.minimum(recorded, over))
        candidate = pick(part, before)
        ended = pick(ends, candidate)
        valid = pick(launches, candidate, False) & (held >= 0) & (waits.stream != key)
        valid &= (ended <= held_begins) & ((source < 0) | (source == key))
        candidates += valid
        better = valid & (ended > end)
        item[better], end[better] = candidate[better], ended[better]
        # An op before an older record was not recorded by the nearest record call.
        record[better] = np.where(before == recorded, waits.record, -1)[better]
    directly = held_begins - end <= HANDOVER_NS
    sure = (waits.adjacent | (source >= 0)) & (directly | (candidates == 1))
    guessed = np.flatnonzero(item >= 0)
    confidence = np.where(sure, HIGH, LOW)
    columns = (column[guessed].tolist() for column in (rows, item, pick(items.lane, item), record, confidence))
    return {wait: _Hold(*source) for wait, *source in zip(*columns, strict=True)}


# -- Holds -------------------------------------------------------------------------------------------


class Reading(IntEnum):
    """Ways to read a wait for an event, or a synchronize, whose event or stream the recording doesn't state."""

    STATED = 0
    LIKELY = 1
    STRICTEST = 2


class StreamHolds(Columns, frozen=True):
    """Items that hold an item of another lane, one row for each item and each wait for an event.

    A wait for everything launched before has no row for an item that an earlier such wait has.
    """

    first: I64
    """Row of `LaneItems`; -1 if the event comes after calls of its thread only."""
    then: I64
    """Row of `LaneItems`."""
    wait: I64
    """Row of `Trace.runtime_calls` of the call that made the stream of `then` wait."""
    record: I64
    """Row of the call that recorded the event after `first`; -1 if unknown or before the recording."""
    confidence: I8


class HostHolds(Columns, frozen=True):
    """Items that hold the return of a blocking call, one row each."""

    call: I64
    """Row of `Trace.runtime_calls`."""
    item: I64
    """Row of `LaneItems`."""


class Holds(Struct, frozen=True, eq=False):
    """All holds of a recording."""

    streams: StreamHolds
    host: HostHolds
    known_calls: I64
    """Rows of the blocking calls of which `host` has everything that they wait for, perhaps nothing."""


_Pending = dict[tuple[int, bool], _Hold]
"""Holds of the next item to be launched: the last item of each lane, by a guess of low confidence or more than that."""


@kept()
def find_holds(trace: Trace, reading: Reading) -> Holds:
    """Return what must end before items begin and calls return."""
    lanes, waits, strictest = find_lanes(trace), event_waits(trace), reading == Reading.STRICTEST
    lane_of = {key: lane for lane, key in enumerate(lanes.keys)}
    # What each wait is for, by row of `waits`, where the recording states it.
    stated = {}
    for row in np.flatnonzero(waits.stated).tolist():
        lane, record = lane_of[int(waits.source[row])], int(waits.record[row])
        stated[row] = _Hold(lanes.last(lane, record), lane, record, EXACT)
    guessed = _guessed_sources(trace) if reading == Reading.LIKELY else {}
    if strictest and not len(trace.syncs):
        # The waiting stream is a guess, too.
        waits = replace(waits, stream=np.where(waits.stated, waits.stream, -1))
    return _Walk(lanes, waits, strictest).run(stated, guessed, find_blocks(trace, lanes.keys, strictest=strictest))


class _Walk:
    """Walk through the calls that record events, wait for them or block, in the order in which they were made."""

    def __init__(self, lanes: ItemLanes, waits: EventWaits, strictest: bool) -> None:
        self._lanes, self._waits, self._strictest = lanes, waits, strictest
        self._lane_of = {key: lane for lane, key in enumerate(lanes.keys)}
        self._lane, self._place = lanes.items.lane.tolist(), lanes.items.place.tolist()
        self._waits_of: list[_Pending] = [{} for _ in lanes.keys]
        """Holds of each lane's next item."""
        self._pending_at = [0] * len(lanes.keys)
        """Number of items launched on each lane before them."""
        self._waits_for_all = [-1] * len(lanes.keys)
        """Last call that made each lane's next item wait for everything launched before; -1 if there is none."""
        by_call = np.argsort(lanes.items.call, kind="stable")
        self._launched = lanes.items.call[by_call].tolist(), lanes.items.lane[by_call].tolist()
        """Launching call and lane of all items, in the order of the calls."""
        self._recorded: dict[tuple[int, int], list[_Hold]] = {}
        """Items that have ended when an event is reached, by record call and lane."""
        self._on_streams: list[tuple[int, int, int, int, int]] = []
        self._on_host: list[tuple[int, int]] = []

    def run(self, stated: dict[int, _Hold], guessed: dict[int, _Hold], blocks: dict[int, Block]) -> Holds:
        """Walk through all calls; a guess counts where nothing is stated, or nothing but a stream without ops."""
        sources = [*stated.values(), *guessed.values()]
        records = {(source.record, source.lane) for source in sources if source.record >= 0}
        of_blocks = {call: [self._lane_of[key] for key in block.streams] for call, block in blocks.items()}
        records |= {(block.record, of_blocks[call][0]) for call, block in blocks.items() if block.record >= 0}
        calls_of_own_ops = np.array([call for call, block in blocks.items() if block.own_ops], np.int64)
        of_own = np.flatnonzero(among(self._lanes.items.call, calls_of_own_ops))
        events = [(record, 0, lane) for record, lane in records]
        events += [(call, 1, row) for row, call in enumerate(self._waits.call.tolist())]
        events += [(call, 2, 0) for call, block in blocks.items() if not block.own_ops]
        for call, what, which in sorted(events):
            if what == 0:
                self._recorded[call, which] = self._reached(which, call)
            elif what == 1:
                self._wait(call, which, stated.get(which), guessed.get(which))
            elif blocks[call].record >= 0:
                reached = self._recorded.get((blocks[call].record, of_blocks[call][0]), [])
                self._on_host += [(call, hold.item) for hold in reached]
            else:
                reached = [hold for lane in of_blocks[call] for hold in self._reached(lane, call)]
                self._on_host += [(call, hold.item) for hold in reached]
        first, then, wait, record, confidence = np.array(self._on_streams, np.int64).reshape(-1, 5).T
        on_host = np.array(self._on_host, np.int64).reshape(-1, 2)
        host = np.concatenate([on_host, np.stack([self._lanes.items.call[of_own], of_own], axis=1)])
        host = host[np.argsort(host[:, 0], kind="stable")].T
        return Holds(
            StreamHolds(first, then, wait, record, confidence.astype(np.int8)),
            HostHolds(*host),
            np.array(sorted(blocks), np.int64),
        )

    def _pending(self, lane: int, call: int) -> _Pending:
        """Return what holds the next item of a lane, given that the items launched before a call are past it."""
        count = self._lanes.count(lane, call)
        if self._pending_at[lane] != count:
            self._waits_of[lane], self._pending_at[lane], self._waits_for_all[lane] = {}, count, -1
        return self._waits_of[lane]

    def _reached(self, lane: int, call: int) -> list[_Hold]:
        """Return what must have ended when a lane has done all that was launched before a call, or by it."""
        last = self._lanes.last(lane, call)
        return [*([_Hold(last, lane, call, EXACT)] if last >= 0 else []), *self._pending(lane, call).values()]

    def _wait(self, call: int, row: int, stated: _Hold | None, guessed: _Hold | None) -> None:
        source, holds = stated, [] if stated is None else self._for(stated)
        if guessed is not None and not any(hold.item >= 0 for hold in holds):
            source, holds = guessed, self._for(guessed)
        # Even an event recorded right before the wait may not be the one it is for. An event recorded before the
        # recording stands for nothing in it.
        for_all = source is None and self._strictest and self._waits.record[row] >= 0
        waiting = self._lane_of.get(int(self._waits.stream[row]), -1)
        for lane in [waiting] if waiting >= 0 else range(len(self._waits_of)) if self._strictest else []:
            self._hold_next(lane, call, self._everything(lane, call) if for_all else holds)

    def _everything(self, lane: int, call: int) -> list[_Hold]:
        """Return the last item of each lane, except those that the next item of `lane` waits for already."""
        self._pending(lane, call)
        since, self._waits_for_all[lane] = self._waits_for_all[lane], call
        lanes: Iterable[int] = range(len(self._waits_of))
        if since >= 0:
            calls, launched_on = self._launched
            lanes = sorted({*launched_on[bisect_right(calls, since) : bisect_right(calls, call)]})
        last = (self._lanes.last(each, call) for each in lanes)
        return [_Hold(item, self._lane[item], -1, LOW) for item in last if item >= 0]

    def _for(self, source: _Hold) -> list[_Hold]:
        """Return what holds a stream that waits for a source."""
        reached = self._recorded.get((source.record, source.lane), ())
        others = (hold for hold in reached if hold.item != source.item)
        return [source, *(hold._replace(confidence=min(hold.confidence, source.confidence)) for hold in others)]

    def _hold_next(self, lane: int, call: int, holds: list[_Hold]) -> None:
        pending, following = self._pending(lane, call), self._lanes.rows[lane][self._pending_at[lane] :][:1].tolist()
        for hold in holds:
            key = self._lane[hold.item] if hold.item >= 0 else -1, hold.confidence >= HIGH
            if key[0] == lane:
                continue
            if hold.item >= 0 and (key not in pending or self._place[pending[key].item] <= self._place[hold.item]):
                pending[key] = hold
            self._on_streams += [(hold.item, then, call, hold.record, hold.confidence) for then in following]


# -- Edges between ops -------------------------------------------------------------------------------


class Edges(Columns, frozen=True):
    """Edges between ops: `held[i]` could not begin before `source[i]`, perhaps of another device, had ended."""

    held: I64
    """Row of `Timeline.ops`."""
    source: I64
    """Row of `Timeline.ops`; -1 for an op of another device."""
    source_end_ns: I64
    confidence: I8
    source_op: I64
    """Row of `Trace.gpu_ops`, whatever its device."""
    wait: I64
    """Row of `Trace.runtime_calls` of the call that made the stream wait."""
    record: I64
    """Row of `Trace.runtime_calls` of the call that recorded the event; -1 if unknown or before the recording."""

    def last_to_end(self, ops: int) -> I64:
        """Return for each of the device's ops the edge, a row, whose source ends last; -1 if none holds the op."""
        order, last = np.argsort(self.source_end_ns, kind="stable"), np.full(ops, -1, np.int64)
        last[self.held[order]] = order
        return last


@kept()
def find_edges(trace: Trace, timeline: Timeline) -> Edges:
    """Return all event-wait edges that hold ops of the device, by held op; none that the timeline contradicts."""
    ops = trace.gpu_ops
    if not len(event_waits(trace)) or not (ops.launch >= 0).any():
        return Edges.empty()
    items, holds = find_lanes(trace).items, find_holds(trace, Reading.LIKELY).streams
    holds = holds.take(holds.first >= 0)
    held, source = items.op[holds.then], items.last_op[holds.first]
    edges = np.flatnonzero((ops.device[held] == timeline.device) & (ops.end_ns[source] <= ops.start_ns[held]))
    edges = edges[np.argsort(held[edges], kind="stable")]
    held, source, holds = held[edges], source[edges], holds.take(edges)
    row_on_device = np.full(len(ops), -1, np.int64)
    here = np.flatnonzero(ops.device == timeline.device)
    row_on_device[here] = np.arange(len(here))
    return Edges(
        held=row_on_device[held],
        source=row_on_device[source],
        source_end_ns=ops.end_ns[source],
        confidence=holds.confidence,
        source_op=source,
        wait=holds.wait,
        record=holds.record,
    )


def own_stream_waits(trace: Trace) -> tuple[I64, I64]:
    """Return waits of a stream for an event of its own: the item before the event, and the item after the wait.

    Such waits hold nothing back, but show which copies and kernels belong together. The item before is the last one
    before the event was recorded; the item after is the first of another sort (upload, download, other) after the wait.
    Both are rows of `LaneItems`. Only waits are used for which the trace states the stream and the call that
    recorded the event.
    """
    waits = event_waits(trace)
    waits = waits.take(waits.stated & (waits.stream == waits.source))
    if not len(waits):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    lanes, ops = find_lanes(trace), trace.gpu_ops
    sort = np.where(ops.is_copy, ops.kind, -1)[lanes.items.op]
    source, held = [], []
    for lane, (key, of_lane) in enumerate(zip(lanes.keys, lanes.rows, strict=True)):
        others = {of: of_lane[sort[of_lane] != of] for of in (-1, Kind.H2D, Kind.D2H)}
        waits_of_lane = waits.take(waits.stream == key)
        for record, wait in zip(waits_of_lane.record.tolist(), waits_of_lane.call.tolist(), strict=True):
            before = lanes.last(lane, record)
            if before < 0 or lanes.items.call[before] < 0:
                continue
            candidates = others[int(sort[before])]
            behind = int(np.searchsorted(lanes.items.call[candidates], wait))
            if behind < len(candidates):
                source.append(before)
                held.append(int(candidates[behind]))
    return np.array(source, np.int64), np.array(held, np.int64)
