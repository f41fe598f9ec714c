"""From decoded events to the rows that are kept of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from operator import attrgetter
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import field

from overlapscope.reading._categories import Table, table_of
from overlapscope.reading._events import (
    CATEGORIES,
    NOTHING,
    NUMBER_OF,
    CallArgs,
    Complete,
    ExactComplete,
    Instant,
    OpArgs,
    decoded_args,
)
from overlapscope.reading._said import Said, SaidByStructs, column
from overlapscope.reading._times import DOUBLES_BELOW_US, UNREADABLE, text_to_ns, to_ns
from overlapscope.trace.model import F64, I32, I64, Index

_NUMBER_BEGINS = frozenset(bytes([byte]) for byte in b"-0123456789")

_packer = msgspec.msgpack.Encoder()
_PACKED = np.dtype([("mark", np.uint8), ("double", ">f8")])
_NO_ARGS: dict[Table, CallArgs | OpArgs] = {
    Table.RUNTIME: CallArgs(),
    Table.GPU: OpArgs(),
    Table.SYNC: OpArgs(),
}
"""What events without arguments have, by their table; of the others none are read."""
TABLE_OF: Final[I32] = np.array([table_of[category] for category in CATEGORIES], dtype=np.int32)


_name = attrgetter("name")


def _none() -> I32:
    return np.empty(0, dtype=np.int32)


def _no_times() -> I64:
    return np.empty(0, dtype=np.int64)


class Batch(msgspec.Struct):
    """Some of a file's events: those that end up in a table, as parallel columns."""

    words: Sequence[str] = ()
    """Their different names, in the order in which they first come."""
    name: I32 = field(default_factory=_none)
    """Each row's, as a place in `words`."""
    categories: Sequence[str] = ()
    category: I32 = field(default_factory=_none)
    """Each row's, as a place in `categories`."""
    place: I32 = field(default_factory=_none)
    """Each row's place among the batch's events of any phase."""
    start_ns: I64 = field(default_factory=_no_times)
    """Their starts, without the file's base; `_times.UNREADABLE` where there is none."""
    dur_ns: I64 = field(default_factory=_no_times)
    thread: I64 = field(default_factory=_no_times)
    parts: dict[Table, tuple[Index, Said]] = field(default_factory=dict)
    """For each table that has more columns than all have: which rows are its, and what they say."""
    repaired: int = 0
    """Rows with a value of a wrong type among their arguments, or without a duration."""
    markers: list[tuple[str, int]] = field(default_factory=list)
    """Instants that say when recording was on: (name, ns)."""
    count: int = 0
    """Events of any phase."""


class Numbered(dict[Any, int]):
    """Numbers what it is asked for in the order of the first question: `numbered[text]`."""

    def __missing__(self, thing: Any) -> int:
        number = self[thing] = len(self)
        return number


def batch_of_rows(
    rows: list[Any], categories: Sequence[str], category: I32, place: I32, start_ns: I64, dur_ns: I64, count: int
) -> Batch:
    """Of rows with at least `name` and `tid`, among `count` events; without what tables have besides."""
    words = Numbered()
    name = np.fromiter(map(words.__getitem__, map(_name, rows)), np.int32, len(rows))
    thread = column(rows, "tid")
    return Batch(tuple(words), name, categories, category, place, start_ns, dur_ns, thread, count=count)


def doubles(values: list[float]) -> F64:
    """An array of them, by way of MessagePack, which has each behind a byte: in half the time that numpy takes."""
    packed = _packer.encode(values)
    begin = len(packed) - len(values) * _PACKED.itemsize
    return np.frombuffer(packed, _PACKED, len(values), begin)["double"].astype(np.float64)


def usual_batch(events: list[Any]) -> Batch | None:
    """Of events decoded by category. None where a start is so large that a double does not hold its nanoseconds."""
    numbers = bytes(map(NUMBER_OF.__getitem__, map(type, events)))
    rows = list(compress(events, numbers))
    start_us = doubles([row.ts for row in rows])
    if (start_us >= DOUBLES_BELOW_US).any():
        return None
    number = np.frombuffer(numbers, np.uint8)
    place = np.flatnonzero(number).astype(np.int32)
    category = number[place].astype(np.int32) - 1
    dur_ns, repaired = _durations(rows)
    batch = batch_of_rows(rows, CATEGORIES, category, place, to_ns(start_us), dur_ns, len(events))
    batch.repaired = repaired
    for table, at in rows_of(TABLE_OF[category]):
        default, chosen = _NO_ARGS.get(table), [rows[i] for i in at.tolist()]
        batch.parts[table] = at, SaidByStructs(chosen, [row.args or default for row in chosen] if default else [])
    return batch


def _durations(rows: list[Any]) -> tuple[I64, int]:
    """In nanoseconds, and how many had none, which are 0 then."""
    dur_us = doubles([row.dur for row in rows])
    missing = np.isnan(dur_us)
    dur_us[missing] = 0.0
    return to_ns(dur_us), int(missing.sum())


def fast_batch(events: list[Any]) -> Batch | None:
    """Of events decoded by phase. None where a start is so large that a double does not hold its nanoseconds."""
    place = [i for i, event in enumerate(events) if type(event) is Complete and table_of[event.cat]]
    start_us = doubles([events[i].ts for i in place])
    if (start_us >= DOUBLES_BELOW_US).any():
        return None
    return _batch(events, place, to_ns(start_us))


def exact_batch(events: Sequence[Any]) -> Batch:
    """Of events decoded by phase, each start from its text. `None` among them stands for one of no interest."""
    place = [i for i, event in enumerate(events) if type(event) is ExactComplete and table_of[event.cat]]
    start = np.fromiter((text_to_ns(events[i].ts) for i in place), np.int64, len(place))
    return _batch(events, place, start)


def has_odd_starts(events: Sequence[Any], batch: Batch) -> bool:
    """Whether a start is no number: then the events have to be decoded leniently, as they are where doubles do."""
    starts = (events[place].ts for place in batch.place[batch.start_ns == UNREADABLE].tolist())
    return any(ts is not NOTHING and bytes(ts)[:1] not in _NUMBER_BEGINS for ts in starts)


def _batch(events: Sequence[Any], place: list[int], start_ns: I64) -> Batch:
    rows = [events[i] for i in place]
    numbers: dict[str, int] = {}
    category = np.fromiter((numbers.setdefault(row.cat, len(numbers)) for row in rows), np.int32, len(rows))
    dur_ns, repaired = _durations(rows)
    places = np.array(place, dtype=np.int32)
    batch = batch_of_rows(rows, tuple(numbers), category, places, start_ns, dur_ns, len(events))
    batch.markers, batch.repaired = _markers(events), repaired
    tables = np.array([table_of[name] for name in numbers], dtype=np.int32)
    for table, at in rows_of(tables[category]):
        chosen = [rows[i] for i in at.tolist()]
        args: list[Any] = []
        if table in _NO_ARGS:
            args, repaired = decoded_args(type(_NO_ARGS[table]), [row.args for row in chosen])
            batch.repaired += repaired
        batch.parts[table] = at, SaidByStructs(chosen, args)
    return batch


def rows_of(table: I32) -> Iterator[tuple[Table, Index]]:
    """The tables with columns of their own that some rows belong to, and which rows."""
    for number in (Table.RUNTIME, Table.GPU, Table.SYNC, Table.DEVICE_ANNOTATION):
        at = np.flatnonzero(table == number)
        if len(at):
            yield number, at


def _markers(events: Iterable[Any]) -> list[tuple[str, int]]:
    return [
        (event.name, text_to_ns(event.ts))
        for event in events
        if type(event) is Instant
        and event.name.startswith(("Iteration Start", "Record Window End"))
        # The same whichever way the instant was decoded.
        and event.cat != "cpu_instant_event"
    ]
