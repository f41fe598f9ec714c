"""Decoded events as parallel columns, one row per event that ends up in a table, and their arguments."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, Protocol, Self

import msgspec
import numpy as np
from msgspec import Raw, Struct, field

from overlapscope.reading._events import (
    NOTHING,
    UNDECODABLE,
    CallArgs,
    Complete,
    EventTable,
    Instant,
    OpArgs,
    decoded_args,
    decoded_text,
    table_of,
)
from overlapscope.reading._times import DOUBLES_BELOW_US, UNREADABLE, text_to_ns, to_ns
from overlapscope.trace.model import F64, I32, I64, Index

# -- Arguments of events -----------------------------------------------------------------------------


class EventArguments(Protocol):
    """Attributes of some rows (those of `CallArgs` or `OpArgs`, `pid` and `tid`), however the events were decoded."""

    def number(self, attribute: str) -> I64:
        """Return whole numbers; of a text, the number in it."""

    def text(self, attribute: str) -> list[str]:
        """Return texts, and other values as JSON; empty where missing."""

    def processes(self) -> set[int | str]:
        """Return the processes of calls, as written."""

    def take(self, rows: Index) -> Self:
        """Return the arguments of some of the rows."""


class DecodedArguments(Struct, frozen=True):
    """Arguments of events that were decoded to structs."""

    events: list[Any]
    """Events, for their `pid` and `tid`."""
    args: list[Any]
    """Arguments of each event; empty for tables that need none."""

    def number(self, attribute: str) -> I64:
        """Return an attribute as whole numbers."""
        return column(self.events if attribute in ("pid", "tid") else self.args, attribute)

    def text(self, attribute: str) -> list[str]:
        """Return an attribute as texts."""
        values = map(attrgetter(attribute), self.args)
        return [decoded_text(value) if isinstance(value, Raw) else value for value in values]

    def processes(self) -> set[int | str]:
        """Return the events' processes."""
        return {event.pid for event in self.events}

    def take(self, rows: Index) -> DecodedArguments:
        """Return the arguments of some of the rows."""
        chosen = rows.tolist()
        return DecodedArguments([self.events[row] for row in chosen], [self.args[row] for row in chosen])


def column(items: list[Any], attribute: str) -> I64:
    """Return an attribute of each item as whole numbers; of a text, the number in it."""
    try:
        # Unlike numpy, it takes no text such as `1_0` for a number.
        return np.array(array("q", list(map(attrgetter(attribute), items))), dtype=np.int64)
    except (TypeError, OverflowError):
        return np.array([number(getattr(item, attribute)) for item in items], dtype=np.int64)


def number(identity: int | str) -> int:
    """Return a process or thread id in 64 bits: 7 for `stream 7` or `[TP00] 7`; -1 where there is none."""
    if isinstance(identity, int):
        return _wrapped(identity)
    digits = identity.strip().rpartition(" ")[2]
    return _wrapped(int(digits)) if digits.isascii() and digits.isdigit() and len(digits) < 20 else -1


def _wrapped(value: int) -> int:
    """Return an unsigned 64-bit id with its bits unchanged, and -1 for a longer number."""
    if -(1 << 63) <= value < 1 << 63:
        return value
    return value - (1 << 64) if 0 <= value < 1 << 64 else -1


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


# -- Recordings of other formats ---------------------------------------------------------------------

_LARGEST_NS: Final = 1 << 62


class NamedRow(Struct, gc=False):
    """An event as Kineto would write it."""

    category: str
    name: str
    tid: int
    start_ns: int
    dur_ns: int
    pid: int = -1
    args: Any = None
    """`OpArgs` of a GPU op, `CallArgs` of a runtime call, None for others."""


def batch_of_named(rows: list[NamedRow]) -> Batch:
    """Return all rows of a Trace, as a batch."""
    categories = tuple(dict.fromkeys(row.category for row in rows))
    number = {category: place for place, category in enumerate(categories)}
    batch = batch_of_rows(
        rows,
        categories,
        category=np.fromiter((number[row.category] for row in rows), np.int32, len(rows)),
        place=np.arange(len(rows), dtype=np.int32),
        start_ns=np.fromiter((_time(row.start_ns) for row in rows), np.int64, len(rows)),
        dur_ns=np.fromiter((_time(row.dur_ns) for row in rows), np.int64, len(rows)),
        count=len(rows),
    )
    tables = np.array([table_of[category] for category in categories], np.int32)
    for table, at in rows_of(tables[batch.category]):
        chosen = [rows[row] for row in at.tolist()]
        batch.parts[table] = at, DecodedArguments(chosen, [row.args for row in chosen])
    return batch


def _time(ns: int) -> int:
    return ns if abs(ns) < _LARGEST_NS else int(UNREADABLE)
