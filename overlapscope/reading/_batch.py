"""Decoded events as parallel columns, one row per event that ends up in a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from msgspec import Raw, field

from overlapscope.reading._arguments import DecodedArguments, EventArguments, column
from overlapscope.reading._categories import EventTable, table_of
from overlapscope.reading._events import NOTHING, UNDECODABLE, CallArgs, Complete, Instant, OpArgs, decoded_args
from overlapscope.reading._times import DOUBLES_BELOW_US, text_to_ns, to_ns
from overlapscope.trace.model import F64, I32, I64, Index

_NUMBER_BEGINS = frozenset(b"-0123456789")

_floats = msgspec.json.Decoder(list[float])
_packer = msgspec.msgpack.Encoder()
_PACKED = np.dtype([("mark", np.uint8), ("double", ">f8")])
_ARGS: dict[EventTable, type[CallArgs | OpArgs]] = {
    EventTable.RUNTIME: CallArgs,
    EventTable.GPU: OpArgs,
    EventTable.SYNC: OpArgs,
}
"""Argument types of the tables whose events' arguments are read."""

_name = attrgetter("name")


def _none() -> I32:
    return np.empty(0, dtype=np.int32)


def _no_times() -> I64:
    return np.empty(0, dtype=np.int64)


class Batch(msgspec.Struct):
    """Consecutive events of a file, as parallel columns with a row for each event that ends up in a table."""

    words: Sequence[str] = ()
    """Distinct names of the rows, in the order of their first use."""
    name: I32 = field(default_factory=_none)
    """Index of each row's name in `words`."""
    categories: Sequence[str] = ()
    """Categories that the rows refer to."""
    category: I32 = field(default_factory=_none)
    """Index of each row's category in `categories`."""
    place: I32 = field(default_factory=_none)
    """Index of each row among the batch's events of any phase."""
    start_ns: I64 = field(default_factory=_no_times)
    """Starts without the file's base time; `_times.UNREADABLE` where missing."""
    dur_ns: I64 = field(default_factory=_no_times)
    """Durations; 0 where missing."""
    thread: I64 = field(default_factory=_no_times)
    """Thread ids."""
    parts: dict[EventTable, tuple[Index, EventArguments]] = field(default_factory=dict)
    """Rows and arguments of each table that has more columns than those above."""
    repaired: int = 0
    """Number of rows with an argument of a wrong type, or without a duration."""
    markers: list[tuple[str, int, int]] = field(default_factory=list)
    """Instants that bound the recording: (name, nanoseconds, place among the batch's events)."""
    count: int = 0
    """Number of events of any phase."""


class Numbered(dict[Any, int]):
    """Numbers given to things in the order in which they are first looked up: `numbered[text]`."""

    def __missing__(self, thing: Any) -> int:
        number = self[thing] = len(self)
        return number


def batch_of_rows(
    rows: list[Any], categories: Sequence[str], category: I32, place: I32, start_ns: I64, dur_ns: I64, count: int
) -> Batch:
    """Return a batch of rows that have a `name` and a `tid`, among `count` events, with `parts` still empty."""
    words = Numbered()
    name = np.fromiter(map(words.__getitem__, map(_name, rows)), np.int32, len(rows))
    thread = column(rows, "tid")
    return Batch(tuple(words), name, categories, category, place, start_ns, dur_ns, thread, count=count)


def batch_of_events(events: Sequence[Any]) -> Batch:
    """Return a batch of typed events; None among them stands for an event of a phase that is not needed.

    Raises:
        msgspec.ValidationError: A start is not a number, so the events have to be converted from untyped JSON.
    """
    place = [i for i, event in enumerate(events) if type(event) is Complete and table_of[event.cat]]
    rows = [events[i] for i in place]
    categories = Numbered()
    category = np.fromiter((categories[row.cat] for row in rows), np.int32, len(rows))
    dur_us = _doubles([row.dur for row in rows])
    missing = np.isnan(dur_us)
    dur_us[missing] = 0.0
    start_ns = _starts_ns([row.ts for row in rows])
    places = np.array(place, dtype=np.int32)
    batch = batch_of_rows(rows, tuple(categories), category, places, start_ns, to_ns(dur_us), len(events))
    batch.markers = [(event.name, text_to_ns(event.ts), i) for i, event in enumerate(events) if _is_marker(event)]
    batch.repaired = int(missing.sum())
    tables = np.array([table_of[name] for name in categories], dtype=np.int32)
    for table, at in rows_of(tables[category]):
        chosen = [rows[i] for i in at.tolist()]
        args: list[Any] = []
        if table in _ARGS:
            args, repaired = decoded_args(_ARGS[table], [row.args for row in chosen])
            batch.repaired += repaired
        batch.parts[table] = at, DecodedArguments(chosen, args)
    return batch


def _starts_ns(texts: list[Raw]) -> I64:
    try:
        start_us = _doubles(_floats.decode(b"[" + b",".join(texts) + b"]"))
    except UNDECODABLE:
        if any(text is not NOTHING and bytes(text)[0] not in _NUMBER_BEGINS for text in texts):
            raise msgspec.ValidationError("a start is not a number") from None
    else:
        if not (start_us >= DOUBLES_BELOW_US).any():
            return to_ns(start_us)
    return np.fromiter(map(text_to_ns, texts), np.int64, len(texts))


def _doubles(values: list[float]) -> F64:
    # MessagePack writes each double after a marker byte, in half the time that numpy takes to read a list.
    packed = _packer.encode(values)
    begin = len(packed) - len(values) * _PACKED.itemsize
    return np.frombuffer(packed, _PACKED, len(values), begin)["double"].astype(np.float64)


def rows_of(table: I32) -> Iterator[tuple[EventTable, Index]]:
    """Yield each table with columns of its own that some rows belong to, and the indices of these rows."""
    for number in (EventTable.RUNTIME, EventTable.GPU, EventTable.SYNC, EventTable.DEVICE_ANNOTATION):
        at = np.flatnonzero(table == number)
        if len(at):
            yield number, at


def _is_marker(event: Any) -> bool:
    if type(event) is not Instant or not event.name.startswith(("Iteration Start", "Record Window End")):
        return False
    # The compiled scanner passes over this category.
    return event.cat != "cpu_instant_event"
