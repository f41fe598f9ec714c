"""Events of a Chrome trace as rows and as columns, their conversion from JSON, and losses while reading.

The analysis needs only complete events (`ph` X) and the instants that bound the recording.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from enum import IntEnum
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import Raw, Struct, field
from numpy.typing import NDArray

from overlapscope.base.grouping import numbered
from overlapscope.reading._times import UNREADABLE, decimal, number_to_ns, to_number
from overlapscope.trace import op_names
from overlapscope.trace.model import I32, I64, Index

_T = TypeVar("_T", bound=np.generic)

# -- Tables by category ------------------------------------------------------------------------------


class EventTable(IntEnum):
    """Table for events of some categories."""

    IGNORED = 0
    GPU = 1
    SYNC = 2
    RUNTIME = 3
    CPU = 4
    ANNOTATION = 5
    PYTHON = 6
    OVERHEAD = 7
    SPAN = 8
    DEVICE_ANNOTATION = 9
    COLLECTIVE = 10
    """Further columns of some GPU ops. No category belongs to this table."""


# From kineto's `ActivityType.h`, whose comments state that glow, hpu, mtia, xpu and privateuse1 runtime and driver
# events are on the host. Its first releases wrote `Operator`, `Runtime`, `Kernel`, `Memcpy`, `Memset`.
TABLES = {
    **dict.fromkeys(op_names.GPU_CATEGORIES, EventTable.GPU),
    **dict.fromkeys(("cuda_sync", "xpu_sync"), EventTable.SYNC),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "xpu_runtime", "xpu_driver"), EventTable.RUNTIME),
    **dict.fromkeys(("privateuse1_runtime", "privateuse1_driver", "mtia_runtime"), EventTable.RUNTIME),
    **dict.fromkeys(("glow_runtime", "hpu_op", "runtime"), EventTable.RUNTIME),
    **dict.fromkeys(("cpu_op", "operator"), EventTable.CPU),
    "user_annotation": EventTable.ANNOTATION,
    "gpu_user_annotation": EventTable.DEVICE_ANNOTATION,
    "python_function": EventTable.PYTHON,
    "overhead": EventTable.OVERHEAD,
    "trace": EventTable.SPAN,
}
"""Lower-case categories of complete events that are read. All other categories are ignored."""


class _TableOf(dict[str, EventTable]):
    def __missing__(self, category: str) -> EventTable:
        table = self[category] = TABLES.get(category.lower(), EventTable.IGNORED)
        return table


table_of = _TableOf()
"""Table of a category in any case: `table_of[category]`."""


NOTHING = Raw(b"null")
"""Value of a field that an event lacks; an explicit `null` is another object."""
NAN = math.nan
END_SIGHT = 2000
"""A bracket with another event in this many characters after it does not end the events."""
ABSENT = -2
"""Stream of an op that states none; -1 is a stated "no stream"."""


class OpArgs(Struct, gc=False, frozen=True):
    """Arguments of GPU ops and synchronization records; -1 where missing, ABSENT for streams."""

    device: int = -1
    in_device: int = field(default=-1, name="inDevice")
    from_device: int = field(default=-1, name="fromDevice")
    to_device: int = field(default=-1, name="toDevice")
    stream: int = ABSENT
    sycl_queue: int = field(default=ABSENT, name="sycl queue")
    correlation: int = -1
    bytes: int = -1
    size: int = -1
    direction: str = ""
    bandwidth: Raw = field(default=NOTHING, name="memory bandwidth (GB/s)")
    sync_kind: str = field(default="", name="cuda_sync_kind")
    sync_type: str = field(default="", name="Type")
    event: int = field(default=-1, name="wait_on_cuda_event_id")
    source_stream: int = field(default=-1, name="wait_on_stream")
    record_correlation: int = field(default=-1, name="wait_on_cuda_event_record_corr_id")
    collective: str = field(default="", name="Collective name")
    group: Raw = field(default=NOTHING, name="Process Group Name")
    ranks: Raw = field(default=NOTHING, name="Process Group Ranks")
    group_size: int = field(default=-1, name="Group size")
    elements_in: int = field(default=-1, name="In msg nelems")
    elements_out: int = field(default=-1, name="Out msg nelems")
    dtype: str = ""
    sequence: int = field(default=-1, name="Seq")
    description: Raw = field(default=NOTHING, name="Process Group Description")
    parts_in: Raw = field(default=NOTHING, name="In split size")
    parts_out: Raw = field(default=NOTHING, name="Out split size")
    grid: Raw = NOTHING
    block: Raw = NOTHING
    graph_node: int = field(default=-1, name="graph node id")


class CallArgs(Struct, gc=False, frozen=True):
    """Arguments of runtime calls; -1 where missing."""

    correlation: int = -1


class NamedRow(Struct, gc=False):
    """A complete event, as Kineto would write it."""

    category: str
    name: str
    tid: int | str
    start_ns: int
    dur_ns: int
    pid: int | str = -1
    args: Any = None
    """`OpArgs` of a GPU op or a synchronization record, `CallArgs` of a runtime call, None for others."""
    repaired: int = 0
    """Number of its faults that cost nothing but a value: arguments of a wrong type, no duration."""


class BoundingInstant(NamedTuple):
    """An instant that bounds the recording."""

    name: str
    ns: int


_ARGS: dict[EventTable, type[CallArgs | OpArgs]] = {
    EventTable.RUNTIME: CallArgs,
    EventTable.GPU: OpArgs,
    EventTable.SYNC: OpArgs,
}
"""Argument types of the tables whose events' arguments are read."""
any_events = msgspec.json.Decoder(float_hook=decimal)

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions that msgspec raises for bad JSON."""


def decoded_text(raw: Raw) -> str:
    """Return the text in a JSON string, or the JSON of another value; empty for null and invalid JSON."""
    try:
        value = msgspec.json.decode(raw)
    except UNDECODABLE:
        return ""
    if value is None:
        return ""
    if isinstance(value, list):
        # Written as PyTorch writes a list in a string, `[0, 1]`, whatever the spacing in the file.
        return str(value)
    return valid_text(value) if isinstance(value, str) else bytes(raw).decode("utf-8", "replace")


def convert(event: Any) -> tuple[NamedRow | BoundingInstant | None, bool] | None:
    """Return the event in a JSON value, and whether it needed repair.

    The event is None where no table takes it. Returns None where the value is not an event.
    """
    if not isinstance(event, dict):
        return None
    phase = event.get("ph")
    repaired = False
    if phase is None and "ts" in event and "dur" in event:
        phase, repaired = "X", True
    if phase == "i":
        return _marker(event), False
    if phase != "X":
        return (None, False) if isinstance(phase, str) else None
    category = valid_text(event.get("cat"))
    bad_category = "cat" in event and not isinstance(event["cat"], str)
    table = table_of[category]
    # Damage in an event that no table takes costs nothing, so it does not count as repaired.
    if table == EventTable.IGNORED:
        return None, bad_category
    start_ns, bad_start = _time_ns(event, "ts")
    dur_ns, bad_dur = _time_ns(event, "dur")
    args, bad_args = _args_of(_ARGS[table], event.get("args")) if table in _ARGS else (None, False)
    row = NamedRow(
        category=category,
        name=valid_text(event.get("name")),
        tid=_identity(event.get("tid")),
        start_ns=start_ns,
        dur_ns=dur_ns if "dur" in event else 0,
        pid=_identity(event.get("pid")),
        args=args,
        repaired=bad_args + ("dur" not in event),
    )
    bad_name = "name" in event and not isinstance(event["name"], str)
    return row, repaired or bad_category or bad_start or bad_dur or bad_name


def _marker(event: dict[str, Any]) -> BoundingInstant | None:
    name, ts = valid_text(event.get("name")), event.get("ts")
    # The compiled scanner passes over this category.
    if event.get("cat") == "cpu_instant_event" or not bounds_recording(name):
        return None
    return BoundingInstant(name, number_to_ns(None if isinstance(ts, str) else to_number(ts)))


def bounds_recording(name: str) -> bool:
    """Return whether an instant of this name bounds the recording."""
    return name.startswith(("Iteration Start", "Record Window End"))


def _time_ns(event: dict[str, Any], key: str) -> tuple[int, bool]:
    """Return a time, and whether its value is not a number."""
    value = event.get(key)
    number = to_number(value)
    return number_to_ns(number), key in event and (number is None or isinstance(value, str))


def _args_of(kind: type[CallArgs | OpArgs], args: Any) -> tuple[CallArgs | OpArgs, bool]:
    """Return the arguments that are read, and whether one of them is of a wrong type."""
    if not isinstance(args, dict):
        return kind(), args is not None
    values: dict[str, Any] = {}
    repaired = False
    fields = zip(kind.__struct_fields__, kind.__struct_encode_fields__, kind.__struct_defaults__, strict=True)
    for attribute, key, default in fields:
        if key not in args:
            continue
        value = args[key]
        if isinstance(default, str):
            values[attribute] = valid_text(value) if isinstance(value, str) else ""
            repaired |= not isinstance(value, str)
        elif isinstance(default, Raw):
            values[attribute] = Raw(msgspec.json.encode(_strict(value)))
        elif isinstance(value, int) and not isinstance(value, bool):
            values[attribute] = value
        else:
            number = to_number(value)
            if number is not None:
                values[attribute] = int(number)
            repaired = True
    return kind(**values), repaired


def valid_text(value: Any) -> str:
    """Return a value as text that UTF-8 can encode."""
    if not isinstance(value, str):
        return "" if value is None else str(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        try:
            # Escapes stand for bytes that were not UTF-8.
            return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        except UnicodeEncodeError:
            # Half of a surrogate pair, written as `\ud800`.
            return value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return value


def _identity(value: Any) -> int | str:
    if isinstance(value, int | str):
        return value
    number = to_number(value)
    return -1 if number is None else int(number)


def _strict(value: Any) -> Any:
    """Return a value without the parts that JSON cannot hold."""
    match value:
        case float() | Decimal():
            return float(value) if math.isfinite(value) else None
        case str():
            return valid_text(value)
        case list():
            return [_strict(item) for item in value]
        case bool() | int() if -(1 << 63) <= value < 1 << 64:
            return value
    return None


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
    """Text of each event, for readers that ask for it instead of columns (`raw_events.RawEvents`)."""


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


# -- Losses ------------------------------------------------------------------------------------------

_MAX_EXAMPLES = 3


class Losses(Struct):
    """Losses while reading a file; they become `trace.Damage`."""

    truncated: bool = False
    """True if the file ends too early."""
    lost_bytes: int = 0
    lost_events: int = 0
    repaired_events: int = 0
    examples: list[str] = field(default_factory=list)
    """The first few losses, in words."""

    def remember(self, example: str) -> None:
        """Keep an example, unless there are enough."""
        if len(self.examples) < _MAX_EXAMPLES:
            self.examples.append(example)

    def lose(self, text: str) -> None:
        """Count the text of an event that cannot be read."""
        self.lost_events += 1
        self.lost_bytes += len(text.encode("utf-8", "surrogateescape"))
        self.remember(f"lost: {_shortened(text)}")

    def repair(self, text: str) -> None:
        """Count the text of an event that could be read after a repair."""
        self.repaired_events += 1
        self.remember(f"repaired: {_shortened(text)}")

    def skip_bracket(self, text: str) -> None:
        """Count a bracket between the events, with the text that it begins."""
        self.lost_bytes += 1
        self.remember(f"lost: a bracket amid the events: {_shortened(text)}")


def _shortened(text: str) -> str:
    return " ".join(text[:200].split())[:100]
