"""Collects decoded events as columns, batch by batch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
from msgspec import Raw

from overlapscope.reading._batch import Batch, doubles
from overlapscope.reading._categories import Table, table_of
from overlapscope.reading._events import ABSENT, NOTHING, OpArgs, decoded_text
from overlapscope.reading._times import to_ns
from overlapscope.trace.model import I32, I64, Index, Sync

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
_MOST_DEVICES = 256
_FIRST_LARGE_STREAM = 1_000_000_000

_name = attrgetter("name")


class Numbered(dict[Any, int]):
    """Numbers what it is asked for in the order of the first question: `numbered[text]`."""

    def __missing__(self, thing: Any) -> int:
        number = self[thing] = len(self)
        return number


Part = tuple[I32, I32, I64, I64, I64, I32]
"""Columns of all rows of a batch: category, name, start, duration, thread, place in the list of events."""
Values = tuple[Index, I64]
"""Rows with more columns, and these, one row each."""

_STREAMS = {Table.GPU: (1,), Table.SYNC: (2, 5), Table.DEVICE_ANNOTATION: (1,)}
"""Which of a table's further columns hold streams."""
_TEXTS = {Table.COLLECTIVE: (0, 1, 2, 3)}
"""Which hold texts."""


@dataclass(slots=True)
class Share:
    """The columns of one stretch of a file, numbered by the process that read it."""

    new: list[list[Any]]
    """Names, texts, categories and large streams that it had not met in an earlier stretch, in the order of their
    numbers."""
    repaired: int
    markers: list[tuple[str, int]]
    rows: int
    events: int
    parts: list[Part]
    values: dict[Table, list[Values]]


Renumbering = tuple[list[int], list[int], list[int], list[int]]
"""What the numbers of one process' shares stand for in the columns that its shares are added to: those of names, texts,
categories and large streams."""


class Columns:
    """All complete events read so far, as parallel columns in the order of the file."""

    def __init__(self) -> None:
        self.names = Numbered()
        self.texts = Numbered()
        """What arguments say in words; apart, as their order among the names would depend on the batches."""
        self.categories = Numbered()
        self._large_streams = Numbered()
        self._numbered = self.names, self.texts, self.categories, self._large_streams
        self._shared = [0, 0, 0, 0]
        """How many of each have been shared."""
        self.repaired = 0
        """Events with a value of a wrong type among their arguments, or without a duration."""
        self.markers: list[tuple[str, int]] = []
        """Instants that bound the recording: (name, ns)."""
        self.parts: list[Part] = []
        self.values: dict[Table, list[Values]] = {}
        """What some tables have besides, in the order of the columns that `_tables` gives them."""
        self._rows = 0
        self._events = 0

    def add(self, batch: Batch) -> None:
        """Takes over a batch of events."""
        self.markers.extend(batch.markers)
        self.repaired += batch.repaired
        rows, place = batch.rows, batch.place + np.int32(self._events)
        self._events += batch.count
        count = len(rows)
        if not count:
            return
        number = np.array([self.categories[category] for category in batch.categories], dtype=np.int32)
        name = np.fromiter(map(self.names.__getitem__, map(_name, rows)), np.int32, count)
        dur_us = doubles([row.dur for row in rows])
        missing = np.isnan(dur_us)
        if missing.any():
            self.repaired += int(missing.sum())
            dur_us[missing] = 0.0
        self.parts.append((number[batch.category], name, batch.start_ns, to_ns(dur_us), _column(rows, "tid"), place))
        for table, (at, args) in batch.parts.items():
            match table:
                case Table.RUNTIME:
                    self._add(table, at, _column(args, "correlation"))
                case Table.GPU:
                    self._add(table, at, self._ops(args, [rows[i] for i in at.tolist()]))
                    self._add_collectives(args, at)
                case Table.SYNC:
                    self._add(table, at, self._syncs(args, [rows[i] for i in at.tolist()]))
                case Table.DEVICE_ANNOTATION:
                    self._add(table, at, self._device_annotations([rows[i] for i in at.tolist()]))
        self._rows += count

    def _add(self, table: Table, at: Index, values: I64) -> None:
        self.values.setdefault(table, []).append((at + self._rows, values))

    def share(self) -> Share:
        """Hands over the columns collected since the last share; strings keep their numbers."""
        new = [list(islice(known, count, None)) for known, count in zip(self._numbered, self._shared, strict=True)]
        self._shared = list(map(len, self._numbered))
        share = Share(
            new=new,
            repaired=self.repaired,
            markers=self.markers,
            rows=self._rows,
            events=self._events,
            # Few large arrays travel faster than many small ones.
            parts=[joined(self.parts)] if self.parts else [],
            values={table: [joined(parts)] for table, parts in self.values.items()},
        )
        self.repaired = self._rows = self._events = 0
        self.markers, self.parts, self.values = [], [], {}
        return share

    def add_share(self, share: Share, numbers: Renumbering) -> None:
        """Adds what another process read, as if its events had been added here.

        `numbers` goes with the process, whose shares must come in the order in which it made them.
        """
        for known, number, new in zip(self._numbered, numbers, share.new, strict=True):
            number.extend(map(known.__getitem__, new))
        name_of, text_of, category_of, stream_of = (np.array(number, dtype=np.int64) for number in numbers)
        for category, name, start, dur, thread, place in share.parts:
            names, categories = name_of[name].astype(np.int32), category_of[category].astype(np.int32)
            self.parts.append((categories, names, start, dur, thread, place + np.int32(self._events)))
        for table, parts in share.values.items():
            for at, values in parts:
                for column in _STREAMS.get(table, ()):
                    large = np.flatnonzero(values[:, column] >= _FIRST_LARGE_STREAM)
                    local = values[large, column] - _FIRST_LARGE_STREAM
                    values[large, column] = stream_of[local] + _FIRST_LARGE_STREAM
                for column in _TEXTS.get(table, ()):
                    known_text = np.flatnonzero(values[:, column] >= 0)
                    values[known_text, column] = text_of[values[known_text, column]]
                self._add(table, at, values)
        self.repaired += share.repaired
        self.markers.extend(share.markers)
        self._rows += share.rows
        self._events += share.events

    def tables(self) -> I32:
        """The table of each category number."""
        return np.array([table_of[category] for category in self.categories], dtype=np.int32)

    def _ops(self, args: list[OpArgs], ops: list[Any]) -> I64:
        devices, streams = self._devices(args, ops), self._op_streams(args, ops)
        # The bits of doubles, as all columns are of one type.
        bandwidth = np.array([_bandwidth(said.bandwidth) for said in args], dtype=np.float64).view(np.int64)
        return np.column_stack((devices, streams, _column(args, "correlation"), _column(args, "bytes"), bandwidth))

    def _add_collectives(self, args: list[OpArgs], at: Index) -> None:
        chosen = [i for i, said in enumerate(args) if said.collective]
        if not chosen:
            return
        told = [args[i] for i in chosen]
        values = np.empty((len(chosen), 8), dtype=np.int64)
        for row, said in enumerate(told):
            texts = (said.collective, decoded_text(said.group), decoded_text(said.ranks), said.dtype)
            values[row, :4] = [self.texts[text] if text else -1 for text in texts]
        for column, attribute in enumerate(("group_size", "elements_in", "elements_out", "sequence"), 4):
            values[:, column] = _column(told, attribute)
        self._add(Table.COLLECTIVE, at[chosen], values)

    def _device_annotations(self, rows: list[Any]) -> I64:
        """A device's annotations stand in the lanes of their streams and say nothing of them in their arguments."""
        devices = _column(rows, "pid")
        possible = (devices >= 0) & (devices < _MOST_DEVICES)
        return np.column_stack((np.where(possible, devices, -1), self._streams(_column(rows, "tid"))))

    def _syncs(self, args: list[OpArgs], syncs: list[Any]) -> I64:
        values = np.empty((len(args), 7), dtype=np.int64)
        values[:, 0] = [_sync_kind(said, sync.name) for said, sync in zip(args, syncs, strict=True)]
        values[:, 1] = self._devices(args, syncs)
        # Never the row's thread: since kineto #1356 it is the stream + 1,000,000, and on XPU a host
        # thread.
        values[:, 2] = self._streams(_column(args, "stream"))
        values[:, 3] = _column(args, "correlation")
        values[:, 4] = _column(args, "event")
        values[:, 5] = self._streams(_column(args, "source_stream"))
        values[:, 6] = _column(args, "record_correlation")
        return values

    @staticmethod
    def _devices(args: list[OpArgs], rows: list[Any]) -> I64:
        """A GPU op's process is its device. Copies between devices name three and no `device`."""
        devices = _column(args, "device")
        for i in np.flatnonzero((devices < 0) | (devices >= _MOST_DEVICES)).tolist():
            candidates = (args[i].in_device, _number(rows[i].pid), args[i].from_device)
            devices[i] = next((device for device in candidates if 0 <= device < _MOST_DEVICES), -1)
        return devices

    def _op_streams(self, args: list[OpArgs], rows: list[Any]) -> I64:
        streams = _column(args, "stream")
        for i in np.flatnonzero(streams == ABSENT).tolist():
            queue = args[i].sycl_queue
            streams[i] = _wrapped(_number(rows[i].tid) if queue == ABSENT else queue)
        return self._streams(streams)

    def _streams(self, streams: I64) -> I64:
        """-1 for each way to write that there is none: -1, its unsigned forms, or nothing."""
        streams[(streams < 0) | (streams == _UNSIGNED_NONE)] = -1
        for i in np.flatnonzero(streams >= _FIRST_LARGE_STREAM).tolist():
            # Some backends print a queue's address. It does not fit the column, so it gets a number of its
            # own.
            streams[i] = _FIRST_LARGE_STREAM + self._large_streams[int(streams[i])]
        return streams


_Columns = TypeVar("_Columns", Part, Values)


def joined(parts: list[_Columns]) -> _Columns:
    """The same columns in one part. There must be a part."""
    whole: Any = tuple(np.concatenate(column) for column in zip(*parts, strict=True))
    return whole  # type: ignore[no-any-return]


def _bandwidth(raw: Raw) -> float:
    """GB/s; -1 where there is none."""
    if raw is NOTHING:
        return -1.0
    try:
        value = float(bytes(raw))
    except ValueError:
        return -1.0
    return value if 0 <= value < math.inf else -1.0


def _sync_kind(args: OpArgs, name: str) -> Sync:
    for text in (args.sync_kind, args.sync_type, name):
        kind = _SYNCS.get(text.lower())
        if kind is not None:
            return kind
    # What waits for an unknown thing waits, at worst, for everything.
    return Sync.CONTEXT


def _number(identity: int | str) -> int:
    """A process or thread id; the number in `stream 7`, as kineto once wrote it; -1 where there is none."""
    if isinstance(identity, int):
        return identity
    digits = identity.removeprefix("stream ").strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else -1


def _column(items: list[Any], attribute: str) -> I64:
    """What each of them has there: a whole number, or the number in a text."""
    try:
        return np.fromiter(map(attrgetter(attribute), items), np.int64, len(items))
    except (TypeError, ValueError, OverflowError):
        return np.array([_wrapped(_number(getattr(item, attribute))) for item in items], dtype=np.int64)


def _wrapped(value: int) -> int:
    """Unsigned 64-bit ids keep their bits; anything longer is not an id."""
    if -(1 << 63) <= value < 1 << 63:
        return value
    return value - (1 << 64) if 0 <= value < 1 << 64 else -1
