"""Collects decoded events as columns, batch by batch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from operator import attrgetter
from typing import Any

import numpy as np

from overlapscope import op_names
from overlapscope.sources._events import ABSENT, OpArgs, call_args, op_args
from overlapscope.sources._stream import Batch
from overlapscope.sources._times import to_ns
from overlapscope.trace import I32, I64, Index, Sync


class Table(IntEnum):
    """Where an event of some category goes."""

    IGNORED = 0
    GPU = 1
    SYNC = 2
    RUNTIME = 3
    CPU = 4
    ANNOTATION = 5
    PYTHON = 6
    OVERHEAD = 7
    SPAN = 8


# From kineto's `ActivityType.h`, whose comments say that glow, hpu, mtia, xpu and privateuse1 runtime and
# driver events are on the host. Its first releases wrote `Operator`, `Runtime`, `Kernel`, `Memcpy`, `Memset`.
_TABLES = {
    **dict.fromkeys(op_names.GPU_CATEGORIES, Table.GPU),
    **dict.fromkeys(("cuda_sync", "xpu_sync"), Table.SYNC),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver"), Table.RUNTIME),
    **dict.fromkeys(("privateuse1_runtime", "privateuse1_driver", "mtia_runtime"), Table.RUNTIME),
    **dict.fromkeys(("glow_runtime", "hpu_op", "runtime"), Table.RUNTIME),
    **dict.fromkeys(("cpu_op", "operator"), Table.CPU),
    "user_annotation": Table.ANNOTATION,
    "python_function": Table.PYTHON,
    "overhead": Table.OVERHEAD,
    "trace": Table.SPAN,
}

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

_category = attrgetter("cat")
_name = attrgetter("name")
_tid = attrgetter("tid")
_dur = attrgetter("dur")


class Numbered(dict[str, int]):
    """Numbers strings in the order of their first use: `numbered[text]`."""

    def __missing__(self, text: str) -> int:
        number = self[text] = len(self)
        return number


@dataclass(slots=True)
class Share:
    """The columns of one stretch of a file, numbered by the process that read it.

    The strings and streams are those it had not met in an earlier stretch, in the order of their numbers.
    """

    names: list[str]
    categories: list[str]
    large_streams: list[int]
    repaired: int
    markers: list[tuple[str, int]]
    rows: int
    parts: list[tuple[I32, I32, I64, I64, I64]]
    calls: list[tuple[Index, I64]]
    ops: list[tuple[Index, I64]]
    syncs: list[tuple[Index, I64]]


class Renumbering:
    """What the numbers of one process' shares stand for in the columns that its shares are added to."""

    def __init__(self) -> None:
        self.names: list[int] = []
        self.categories: list[int] = []
        self.large_streams: list[int] = []


class Columns:
    """All complete events read so far, as parallel columns in the order of the file."""

    def __init__(self) -> None:
        self.names = Numbered()
        self.categories = Numbered()
        self.repaired = 0
        """Events with a value of a wrong type among their arguments, or without a duration."""
        self.markers: list[tuple[str, int]] = []
        """Instants that bound the recording: (name, ns)."""
        self.parts: list[tuple[I32, I32, I64, I64, I64]] = []
        self._rows = 0
        self._large_streams: dict[int, int] = {}
        self.call_parts: list[tuple[Index, I64]] = []
        self.op_parts: list[tuple[Index, I64]] = []
        self.sync_parts: list[tuple[Index, I64]] = []
        self._table_of: list[Table] = []
        self._shared = (0, 0, 0)

    def add(self, batch: Batch) -> None:
        """Takes over a batch of events."""
        self.markers.extend(batch.markers)
        rows = batch.rows
        count = len(rows)
        if not count:
            return
        category = np.fromiter(map(self.categories.__getitem__, map(_category, rows)), np.int32, count)
        name = np.fromiter(map(self.names.__getitem__, map(_name, rows)), np.int32, count)
        dur_us = np.fromiter(map(_dur, rows), np.float64, count)
        missing = np.isnan(dur_us)
        if missing.any():
            self.repaired += int(missing.sum())
            dur_us[missing] = 0.0
        self.parts.append((category, name, batch.start_ns, to_ns(dur_us), _threads(rows)))

        table = self.tables()[category]
        self._add_calls(rows, np.flatnonzero(table == Table.RUNTIME))
        self._add_ops(rows, np.flatnonzero(table == Table.GPU))
        self._add_syncs(rows, np.flatnonzero(table == Table.SYNC))
        self._rows += count

    def share(self) -> Share:
        """Hands over the columns collected since the last share; strings keep their numbers."""
        names, categories, streams = self._shared
        self._shared = len(self.names), len(self.categories), len(self._large_streams)
        share = Share(
            names=list(islice(self.names, names, None)),
            categories=list(islice(self.categories, categories, None)),
            large_streams=list(islice(self._large_streams, streams, None)),
            repaired=self.repaired,
            markers=self.markers,
            rows=self._rows,
            parts=self.parts,
            calls=self.call_parts,
            ops=self.op_parts,
            syncs=self.sync_parts,
        )
        self.repaired = self._rows = 0
        self.markers, self.parts, self.call_parts, self.op_parts, self.sync_parts = [], [], [], [], []
        return share

    def add_share(self, share: Share, numbers: Renumbering) -> None:
        """Adds what another process read, as if its events had been added here.

        `numbers` goes with the process, whose shares must come in the order in which it made them.
        """
        numbers.names.extend(map(self.names.__getitem__, share.names))
        numbers.categories.extend(map(self.categories.__getitem__, share.categories))
        numbers.large_streams.extend(map(self._large_stream, share.large_streams))
        name_of = np.array(numbers.names, dtype=np.int32)
        category_of = np.array(numbers.categories, dtype=np.int32)
        stream_of = np.array(numbers.large_streams, dtype=np.int64)
        for category, name, start, dur, thread in share.parts:
            self.parts.append((category_of[category], name_of[name], start, dur, thread))
        self.call_parts.extend((at + self._rows, values) for at, values in share.calls)
        for shared, parts, streams in ((share.ops, self.op_parts, (1,)), (share.syncs, self.sync_parts, (2, 5))):
            for at, values in shared:
                for column in streams:
                    large = np.flatnonzero(values[:, column] >= _FIRST_LARGE_STREAM)
                    values[large, column] = stream_of[values[large, column] - _FIRST_LARGE_STREAM]
                parts.append((at + self._rows, values))
        self.repaired += share.repaired
        self.markers.extend(share.markers)
        self._rows += share.rows

    def tables(self) -> I32:
        """The table of each category number."""
        known = len(self._table_of)
        if known < len(self.categories):
            for category in list(self.categories)[known:]:
                self._table_of.append(_TABLES.get(category.lower(), Table.IGNORED))
        return np.array(self._table_of, dtype=np.int32)

    def _add_calls(self, rows: list[Any], at: Index) -> None:
        if len(at):
            args, repaired = call_args([rows[i].args for i in at.tolist()])
            self.repaired += repaired
            self.call_parts.append((at + self._rows, _column(args, "correlation")))

    def _add_ops(self, rows: list[Any], at: Index) -> None:
        if len(at):
            ops = [rows[i] for i in at.tolist()]
            args, repaired = op_args([op.args for op in ops])
            self.repaired += repaired
            values = np.empty((len(at), 4), dtype=np.int64)
            values[:, 0] = self._devices(args, ops)
            values[:, 1] = self._op_streams(args, ops)
            values[:, 2] = _column(args, "correlation")
            values[:, 3] = _column(args, "bytes")
            self.op_parts.append((at + self._rows, values))

    def _add_syncs(self, rows: list[Any], at: Index) -> None:
        if len(at):
            syncs = [rows[i] for i in at.tolist()]
            args, repaired = op_args([sync.args for sync in syncs])
            self.repaired += repaired
            values = np.empty((len(at), 7), dtype=np.int64)
            values[:, 0] = [_sync_kind(one, sync.name) for one, sync in zip(args, syncs, strict=True)]
            values[:, 1] = self._devices(args, syncs)
            # Never the row's thread: since kineto #1356 it is the stream + 1,000,000, and on XPU a host
            # thread.
            values[:, 2] = self._streams(_column(args, "stream"))
            values[:, 3] = _column(args, "correlation")
            values[:, 4] = _column(args, "event")
            values[:, 5] = self._streams(_column(args, "source_stream"))
            values[:, 6] = _column(args, "record_correlation")
            self.sync_parts.append((at + self._rows, values))

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
            streams[i] = self._large_stream(int(streams[i]))
        return streams

    def _large_stream(self, stream: int) -> int:
        return self._large_streams.setdefault(stream, _FIRST_LARGE_STREAM + len(self._large_streams))


def _sync_kind(args: OpArgs, name: str) -> Sync:
    for text in (args.sync_kind, args.sync_type, name):
        kind = _SYNCS.get(text.lower())
        if kind is not None:
            return kind
    # What waits for an unknown thing waits, at worst, for everything.
    return Sync.CONTEXT


def _threads(rows: list[Any]) -> I64:
    try:
        return np.fromiter(map(_tid, rows), np.int64, len(rows))
    except (TypeError, ValueError, OverflowError):
        return _int64([_number(row.tid) for row in rows])


def _number(identity: int | str) -> int:
    """A process or thread id; the number in `stream 7`, as kineto once wrote it; -1 where there is none."""
    if isinstance(identity, int):
        return identity
    digits = identity.removeprefix("stream ").strip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else -1


def _int64(values: list[int]) -> I64:
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        # Unsigned 64-bit ids keep their bits; anything longer is not an id.
        return np.array([_wrapped(value) for value in values], dtype=np.int64)


def _column(args: list[Any], attribute: str) -> I64:
    values = map(attrgetter(attribute), args)
    try:
        return np.fromiter(values, np.int64, len(args))
    except OverflowError:
        return _int64([getattr(one, attribute) for one in args])


def _wrapped(value: int) -> int:
    if -(1 << 63) <= value < 1 << 63:
        return value
    return value - (1 << 64) if 0 <= value < 1 << 64 else -1
