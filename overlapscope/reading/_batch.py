"""Events as parallel columns, one row per event that ends up in a table, and their arguments."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from msgspec import Raw, Struct, field
from numpy.typing import NDArray

from overlapscope.base.grouping import numbered
from overlapscope.reading._events import BoundingInstant, EventTable, NamedRow, decoded_text, table_of
from overlapscope.reading._times import UNREADABLE
from overlapscope.trace.model import I32, I64, Index

_T = TypeVar("_T", bound=np.generic)

# -- Arguments of events -----------------------------------------------------------------------------


class EventArguments(Struct, frozen=True):
    """Arguments of GPU ops, synchronization records, runtime calls, or of the device's annotations."""

    thread: I64
    values: I64
    """One row per event, with a column for each of `places`. Texts are numbers of `texts`, -1 where missing."""
    places: dict[str, int]
    """Column of `pid` and of each attribute of `CallArgs` or `OpArgs`."""
    texts: Sequence[Raw]

    def number(self, attribute: str) -> I64:
        """Return whole numbers; of a text, the number in it."""
        return (self.thread if attribute == "tid" else self.values[:, self.places[attribute]]).copy()

    def text(self, attribute: str) -> list[str]:
        """Return texts, and other values as JSON; empty where missing."""
        numbers = self.values[:, self.places[attribute]].tolist()
        decoded = {at: decoded_text(self.texts[at]) if at >= 0 else "" for at in set(numbers)}
        return [decoded[at] for at in numbers]

    def of_text(self, attribute: str, judge: Callable[[str], object], dtype: type[_T]) -> NDArray[_T]:
        """Return what a function makes of each text (`text`), which it sees once."""
        numbers, place = numbered(self.values[:, self.places[attribute]])
        texts = (decoded_text(self.texts[at]) if at >= 0 else "" for at in numbers.tolist())
        return np.array([*map(judge, texts)], dtype)[place]

    def take(self, rows: Index) -> EventArguments:
        """Return the arguments of some of the rows."""
        return EventArguments(self.thread[rows], self.values[rows], self.places, self.texts)


def _arguments(rows: list[NamedRow], thread: I64) -> EventArguments:
    args, texts = [row.args for row in rows], Numbered()
    columns = {"pid": _numbers([row.pid for row in rows])}
    kind: type[Struct] | None = None if args[0] is None else type(args[0])
    for attribute, default in zip(kind.__struct_fields__, kind.__struct_defaults__, strict=True) if kind else ():
        values = list(map(attrgetter(attribute), args))
        if isinstance(default, str):
            values = [texts[msgspec.json.encode(value)] if value else -1 for value in values]
        elif isinstance(default, Raw):
            values = [texts[bytes(value)] if value is not default else -1 for value in values]
        columns[attribute] = _numbers(values)
    places = {name: place for place, name in enumerate(columns)}
    return EventArguments(thread, np.column_stack([*columns.values()]), places, [*map(Raw, texts)])


def _numbers(values: list[int | str]) -> I64:
    """Return whole numbers; of a text, the number in it."""
    try:
        # Unlike numpy, it takes no text such as `1_0` for a number.
        return np.array(array("q", values), dtype=np.int64)  # type: ignore[type-var]
    except (TypeError, OverflowError):
        return np.array(list(map(number, values)), dtype=np.int64)


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


_LARGEST_NS: Final = 1 << 62


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
    callers: set[int | str] = field(default_factory=set)
    """Processes of runtime calls, as written."""
    repaired: int = 0
    """Number of arguments of a wrong type, and of rows without a duration."""
    markers: list[tuple[str, int, int]] = field(default_factory=list)
    """Instants that bound the recording: (name, nanoseconds, place among the batch's events)."""
    count: int = 0
    """Number of events of any phase."""
    raw: list[Raw] = field(default_factory=list)
    """Text of each event, for readers that ask for it instead of columns (`_stream.RawEvents`)."""


class Numbered(dict[Any, int]):
    """Numbers given to things in the order in which they are first looked up: `numbered[text]`."""

    def __missing__(self, thing: Any) -> int:
        number = self[thing] = len(self)
        return number


def batch_of_events(events: Sequence[NamedRow | BoundingInstant | None]) -> Batch:
    """Return a batch of events; None among them stands for an event that no table takes."""
    place = [i for i, event in enumerate(events) if type(event) is NamedRow]
    rows: list[Any] = [events[i] for i in place]
    words, categories, count = Numbered(), Numbered(), len(rows)
    batch = Batch(
        name=np.fromiter((words[row.name] for row in rows), np.int32, count),
        category=np.fromiter((categories[row.category] for row in rows), np.int32, count),
        place=np.array(place, dtype=np.int32),
        start_ns=_times(row.start_ns for row in rows),
        dur_ns=_times(row.dur_ns for row in rows),
        thread=_numbers([row.tid for row in rows]),
        repaired=sum(row.repaired for row in rows),
        markers=[(*event, i) for i, event in enumerate(events) if type(event) is BoundingInstant],
        count=len(events),
    )
    batch.words, batch.categories = tuple(words), tuple(categories)
    tables = np.array([table_of[category] for category in categories], np.int32)
    for table, at in rows_of(tables[batch.category]):
        chosen = [rows[row] for row in at.tolist()]
        batch.parts[table] = at, _arguments(chosen, batch.thread[at])
        if table == EventTable.RUNTIME:
            batch.callers = {row.pid for row in chosen}
    return batch


def _times(times_ns: Iterable[int]) -> I64:
    return np.array([ns if abs(ns) < _LARGEST_NS else UNREADABLE for ns in times_ns], np.int64)


def rows_of(table: I32) -> Iterator[tuple[EventTable, Index]]:
    """Yield each table with columns of its own that some rows belong to, and the indices of these rows."""
    for number in (EventTable.RUNTIME, EventTable.GPU, EventTable.SYNC, EventTable.DEVICE_ANNOTATION):
        at = np.flatnonzero(table == number)
        if len(at):
            yield number, at
