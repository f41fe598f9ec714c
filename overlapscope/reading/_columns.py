"""Decoded events collected as columns, batch by batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

import msgspec
import numpy as np

from overlapscope.base.memory import check_room
from overlapscope.reading._events import ABSENT, UNDECODABLE, Batch, EventArguments, EventTable, Numbered, table_of
from overlapscope.trace import op_names
from overlapscope.trace.model import F64, I32, I64, Bool, Index, Sync

_SYNCS = {
    "event sync": Sync.EVENT,
    "stream wait event": Sync.STREAM_WAIT_EVENT,
    "stream sync": Sync.STREAM,
    "context sync": Sync.CONTEXT,
    # XPU: `getStringFromSynchronizationType` in kineto's plugin/xpupti.
    "host_event": Sync.EVENT,
    "host_fence": Sync.EVENT,
    "host_command_queue": Sync.STREAM,
    "host_command_list": Sync.STREAM,
    "gpu_barrier_execution": Sync.STREAM_WAIT_EVENT,
    "gpu_barrier_memory": Sync.STREAM_WAIT_EVENT,
}

_UNSIGNED_NONE = (1 << 32) - 1
MAX_DEVICES = 256
"""Larger numbers of devices are not of this machine. Each device costs time and memory of its own."""
_FIRST_LARGE_STREAM = 1_000_000_000
_MAX_ITEMS = 1 << 62
_Extent = Annotated[int, msgspec.Meta(gt=0, le=_MAX_ITEMS)]
_extents = msgspec.json.Decoder(Annotated[list[_Extent], msgspec.Meta(min_length=1, max_length=3)])
"""Without these limits, the product of a hostile list takes time quadratic in its length."""

COLLECTIVE_TEXTS = ("collective", "group", "ranks", "dtype", "description", "parts_in", "parts_out")
COLLECTIVE_NUMBERS = ("group_size", "elements_in", "elements_out", "sequence")
"""Attributes of `OpArgs` that describe a collective. The first ones become ids of texts."""

Part = tuple[I32, I32, I64, I64, I64, I32]
"""Columns of all rows of a batch: category, name, start, duration, thread, and place in the list of events."""
Values = tuple[Index, Mapping[str, I64 | F64]]
"""Indices of rows with more columns, and these columns by name; -1 where nothing is stated."""
FURTHER: dict[EventTable, tuple[str, ...]] = {
    EventTable.RUNTIME: ("correlation",),
    EventTable.GPU: (
        *("device", "stream", "correlation", "bytes", "stated_gb_per_s", "blocks", "block_threads"),
        *("source_device", "target_device", "graph_node"),
    ),
    EventTable.SYNC: (
        *("kind", "device", "stream", "correlation", "event", "source_stream", "record_correlation", "source_device"),
    ),
    EventTable.DEVICE_ANNOTATION: ("device", "stream"),
    EventTable.COLLECTIVE: (*COLLECTIVE_TEXTS, *COLLECTIVE_NUMBERS),
}
"""Further columns of some tables, named as those of the Trace's tables (`collective` is their `name_id`)."""


class EventColumns:
    """All complete events read so far, as parallel columns in the order of the file."""

    def __init__(self, source: str) -> None:
        """Begin the columns of a file. `source` is its name in errors."""
        self._source = source
        self.names = Numbered()
        self.texts = Numbered()
        """Texts in arguments. They are numbered apart from the names, because their order among these would depend on
        the batches."""
        self.categories = Numbered()
        self._large_streams = Numbered()
        self.repaired = 0
        """Number of events with an argument of a wrong type, or without a duration."""
        self.markers: list[tuple[str, int, int]] = []
        """Instants that bound the recording: (name, nanoseconds, place)."""
        self.callers: set[int | str] = set()
        """Processes that called the runtime, as written."""
        self.parts: list[Part] = []
        self.values: dict[EventTable, list[Values]] = {}
        """Further columns of some tables."""
        self._rows = 0
        self.events = 0
        """Number of events of any phase so far."""

    def add(self, batch: Batch) -> None:
        """Add a batch of events. Raises UnreadableTrace if the events need more memory than there is."""
        self.markers.extend((name, ns, place + self.events) for name, ns, place in batch.markers)
        self.repaired += batch.repaired
        self.callers |= batch.callers
        place = batch.place + np.int32(self.events)
        self.events += batch.count
        if not len(place):
            return
        category = np.array([self.categories[category] for category in batch.categories], dtype=np.int32)
        name = np.array([self.names[name] for name in batch.words], dtype=np.int32)
        names = name[batch.name]
        if op_names.MTIA_COPY in batch.words and EventTable.GPU in batch.parts:
            self._state_directions(*batch.parts[EventTable.GPU], names)
        self.parts.append((category[batch.category], names, batch.start_ns, batch.dur_ns, batch.thread, place))
        for table, (at, args) in batch.parts.items():
            match table:
                case EventTable.RUNTIME:
                    self._add(table, at, {"correlation": args.number("correlation")})
                case EventTable.GPU:
                    self._add(table, at, self._ops(args))
                    self._add_collectives(args, at)
                case EventTable.SYNC:
                    self._add(table, at, self._syncs(args, [batch.words[word] for word in batch.name[at].tolist()]))
                case EventTable.DEVICE_ANNOTATION:
                    # They are the process and thread of the event.
                    where = {"device": device_or_none(args.number("pid")), "stream": self._streams(args.number("tid"))}
                    self._add(table, at, where)
        self._rows += len(place)
        check_room(self._source, self._rows)

    def append(
        self,
        category: str,
        name: I32,
        start_ns: I64,
        dur_ns: I64,
        thread: I64 | None = None,
        **values: I64,
    ) -> None:
        """Add rows of one category from columns; `values` are those of `FURTHER`."""
        count = len(name)
        place = np.arange(self.events, self.events + count, dtype=np.int32)
        thread = np.full(count, -1) if thread is None else thread
        number = np.full(count, self.categories[category], np.int32)
        self.parts.append((number, name, start_ns, dur_ns, thread, place))
        if table_of[category] in FURTHER:
            self._add(table_of[category], np.arange(count), values)
        self._rows += count
        self.events += count

    def keep(self, kept: Bool) -> None:
        """Forget the rows and markers of events that are not kept, by their places in the file."""
        ignored = self.categories[""]
        self.parts = [(np.where(kept[part[-1]], part[0], np.int32(ignored)), *part[1:]) for part in self.parts]
        self.markers = [marker for marker in self.markers if kept[marker[-1]]]

    def _add(self, table: EventTable, at: Index, values: Mapping[str, I64 | F64]) -> None:
        none = np.full(len(at), -1)
        columns = {name: values.get(name, none) for name in FURTHER[table]}
        self.values.setdefault(table, []).append((at + self._rows, columns))

    def tables(self) -> I32:
        """Return the table of each category number."""
        return np.array([table_of[category] for category in self.categories], dtype=np.int32)

    def _state_directions(self, at: Index, args: EventArguments, names: I32) -> None:
        """Put the stated directions of an MTIA's copies into their names."""
        copies = np.flatnonzero(names[at] == self.names[op_names.MTIA_COPY])
        directions = args.take(copies).text("direction")
        named = [self.names[op_names.with_direction(op_names.MTIA_COPY, direction)] for direction in directions]
        names[at[copies]] = named

    def _ops(self, args: EventArguments) -> dict[str, I64 | F64]:
        source, target = (device_or_none(args.number(attribute)) for attribute in ("from_device", "to_device"))
        return {
            "device": self._devices(args),
            "stream": self._op_streams(args),
            "correlation": args.number("correlation"),
            "bytes": np.maximum(args.number("bytes"), args.number("size")),
            "stated_gb_per_s": args.of_text("bandwidth", _bandwidth, np.float64),
            "blocks": args.of_text("grid", _product, np.int64),
            "block_threads": args.of_text("block", _product, np.int64),
            "source_device": source,
            "target_device": target,
            "graph_node": args.number("graph_node"),
        }

    def _add_collectives(self, args: EventArguments, at: Index) -> None:
        chosen = np.flatnonzero(args.of_text("collective", bool, np.bool_))
        if not len(chosen):
            return
        stated = args.take(chosen)
        # The numbers of texts must not depend on the batches, so texts are numbered row by row.
        texts = zip(*map(stated.text, COLLECTIVE_TEXTS), strict=True)
        ids = np.array([[self.texts[text] if text else -1 for text in row] for row in texts], np.int64)
        numbers = {name: stated.number(name) for name in COLLECTIVE_NUMBERS}
        self._add(EventTable.COLLECTIVE, at[chosen], dict(zip(COLLECTIVE_TEXTS, ids.T, strict=True)) | numbers)

    def _syncs(self, args: EventArguments, names: list[str]) -> dict[str, I64]:
        kinds = map(_sync_kind, args.text("sync_kind"), args.text("sync_type"), names)
        # Never the row's thread: since kineto #1356 it is the stream + 1,000,000, and on XPU a host thread.
        streams, devices = self._streams(args.number("stream")), self._devices(args)
        source = self._streams(args.number("source_stream"))
        return {
            "kind": np.array([*kinds], dtype=np.int64),
            "device": devices,
            "stream": streams,
            "correlation": args.number("correlation"),
            "event": args.number("event"),
            "source_stream": source,
            "record_correlation": args.number("record_correlation"),
            # Kineto names a stream without its device; it means a stream of the waiting device.
            "source_device": np.where(source >= 0, devices, -1),
        }

    @staticmethod
    def _devices(args: EventArguments) -> I64:
        """Return devices. The process of a GPU op is its device; copies between devices name three, and no `device`."""
        devices = args.number("device")
        for attribute in ("in_device", "pid", "from_device"):
            missing = (devices < 0) | (devices >= MAX_DEVICES)
            if missing.any():
                devices[missing] = args.number(attribute)[missing]
        return device_or_none(devices)

    def _op_streams(self, args: EventArguments) -> I64:
        streams = args.number("stream")
        for attribute in ("sycl_queue", "tid"):
            missing = streams == ABSENT
            if missing.any():
                streams[missing] = args.number(attribute)[missing]
        return self._streams(streams)

    def _streams(self, streams: I64) -> I64:
        """Return streams, with -1 for each way to write that there is none: -1, its unsigned forms, or no value."""
        streams[(streams < 0) | (streams == _UNSIGNED_NONE)] = -1
        for i in np.flatnonzero(streams >= _FIRST_LARGE_STREAM).tolist():
            # Some backends print the address of a queue. It does not fit the column, so it gets a number of its own.
            streams[i] = _FIRST_LARGE_STREAM + self._large_streams[int(streams[i])]
        return streams


def device_or_none(devices: I64) -> I64:
    """Return devices, with -1 for numbers that no device has."""
    return np.where((devices >= 0) & (devices < MAX_DEVICES), devices, -1)


def _bandwidth(text: str) -> float:
    """Return a bandwidth in GB/s; -1 where there is none."""
    try:
        value = float(text)
    except ValueError:
        return -1.0
    return value if 0 <= value < math.inf else -1.0


def _product(text: str) -> int:
    """Return the number of items in a grid, such as 8 for `[4, 2, 1]`; -1 where there is none."""
    try:
        product = math.prod(_extents.decode(text))
    except UNDECODABLE:
        return -1
    return product if product <= _MAX_ITEMS else -1


def _sync_kind(*texts: str) -> Sync:
    for text in texts:
        kind = _SYNCS.get(text.lower())
        if kind is not None:
            return kind
    # A wait for something unknown is, at worst, a wait for everything.
    return Sync.CONTEXT
