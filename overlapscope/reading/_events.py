"""Events of a Chrome trace as typed structs, their conversion from untyped JSON, and losses while reading.

The analysis needs only complete events (`ph` X) and instants (`i`). The other phases are listed, so that decoding their
events costs nothing. Stretches with an unlisted phase or a value of an unexpected type are decoded without types, and
`convert` turns each value into the struct that the typed decoder would have made.
"""

from __future__ import annotations

import math
from decimal import Decimal
from enum import IntEnum
from typing import Any, TypeVar, Union

import msgspec
from msgspec import Raw, Struct, field

from overlapscope.reading._times import decimal, to_number
from overlapscope.trace import op_names

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


class Complete(Struct, tag="X", tag_field="ph", gc=False):
    """A complete event.

    The start keeps its text, because a double cannot hold the nanoseconds of a large one. Only some tables need the
    arguments, so they stay text too.
    """

    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: Raw = NOTHING
    """Start in microseconds."""
    dur: float = NAN
    """Duration in microseconds; NaN where missing."""
    args: Raw = NOTHING


class Instant(Struct, tag="i", tag_field="ph", gc=False):
    """An instant event."""

    cat: str = ""
    name: str = ""
    ts: Raw = NOTHING
    """Time in microseconds."""


_OTHER_PHASES = "MstfBECbneNODPpRcvVSTFI"
_OTHERS: list[Any] = [
    msgspec.defstruct(f"Other_{phase}", [], tag=phase, tag_field="ph", gc=False) for phase in _OTHER_PHASES
]
_EVENT: Any = Union[(Complete, Instant, *_OTHERS)]
typed_events: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[_EVENT])
any_events = msgspec.json.Decoder(float_hook=decimal)
_args: dict[type, msgspec.json.Decoder[list[Any]]] = {
    kind: msgspec.json.Decoder(list[kind | None])  # type: ignore[valid-type]
    for kind in (OpArgs, CallArgs)
}

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions that msgspec raises for bad JSON."""


_ArgsT = TypeVar("_ArgsT", bound="OpArgs | CallArgs")


def decoded_args(kind: type[_ArgsT], texts: list[Raw]) -> tuple[list[_ArgsT], int]:
    """Return the arguments of many events, and the number of events with a value of a wrong type among them."""
    decoder, nothing = _args[kind], kind()
    try:
        return [args or nothing for args in decoder.decode(b"[" + b",".join(texts) + b"]")], 0
    except UNDECODABLE:
        converted = [_convert_args(kind, _loose(args)) for args in texts]
        return [args for args, _ in converted], sum(repaired for _, repaired in converted)


def _loose(raw: Raw) -> Any:
    try:
        return any_events.decode(raw)
    except UNDECODABLE:
        pass
    # The typed decoder skips arguments without checking their encoding, so bad UTF-8 shows only here.
    import json

    try:
        return json.loads(bytes(raw).decode("utf-8", "replace"), strict=False, parse_float=decimal)
    except (ValueError, RecursionError):
        return "unreadable"


def _convert_args(kind: type[_ArgsT], args: Any) -> tuple[_ArgsT, bool]:
    if not isinstance(args, dict):
        return kind(), args is not None
    values: dict[str, Any] = {}
    repaired = False
    for attribute, key in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True):
        if key not in args:
            continue
        value = args[key]
        if attribute in _TEXTS:
            values[attribute] = value if isinstance(value, str) else ""
            repaired |= not isinstance(value, str)
        elif attribute in _RAWS:
            values[attribute] = Raw(msgspec.json.encode(_strict(value)))
        elif isinstance(value, int) and not isinstance(value, bool):
            values[attribute] = value
        else:
            number = to_number(value)
            if number is not None:
                values[attribute] = int(number)
            repaired = True
    return kind(**values), repaired


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


_TEXTS = ("direction", "sync_kind", "sync_type", "collective", "dtype")
_RAWS = ("bandwidth", "group", "ranks", "description", "parts_in", "parts_out", "grid", "block")


def convert(event: Any) -> tuple[Complete | Instant | None, bool] | None:
    """Return the typed event in a JSON value and whether it needed repair.

    The event is None for a phase that the analysis does not need. Returns None where the value is not an event.
    """
    if not isinstance(event, dict):
        return None
    phase = event.get("ph")
    repaired = False
    if phase is None and "ts" in event and "dur" in event:
        phase, repaired = "X", True
    if phase == "i":
        # The typed decoder does not accept a string as an instant's time either.
        ts = NOTHING if isinstance(event.get("ts"), str) else _time_text(event)[0]
        return Instant(cat=valid_text(event.get("cat")), name=valid_text(event.get("name")), ts=ts), False
    if phase != "X":
        return (None, False) if isinstance(phase, str) else None
    ts, bad_ts = _time_text(event)
    dur, bad_dur = _duration(event)
    repaired |= bad_ts or bad_dur
    repaired |= "name" in event and not isinstance(event["name"], str)
    bad_category = "cat" in event and not isinstance(event["cat"], str)
    args = event.get("args")
    complete = Complete(
        cat=valid_text(event.get("cat")),
        name=valid_text(event.get("name")),
        pid=_identity(event.get("pid")),
        tid=_identity(event.get("tid")),
        ts=ts,
        dur=dur,
        args=_encode(args) if isinstance(args, dict) else NOTHING,
    )
    # Damage in an event that no table takes costs nothing, so it does not count as repaired.
    return complete, bad_category or (repaired and table_of[complete.cat] != EventTable.IGNORED)


def _time_text(event: dict[str, Any]) -> tuple[Raw, bool]:
    """Return the text of an event's start, and whether the start is not a number."""
    value = event.get("ts")
    number = to_number(value)
    readable = number is not None and abs(number) < _ABSURD
    text = Raw(format(number, "f").encode()) if readable else NOTHING
    return text, "ts" in event and (number is None or isinstance(value, str))


def _duration(event: dict[str, Any]) -> tuple[float, bool]:
    """Return a duration in microseconds, and whether it is not a number.

    The duration is NaN where it is missing, and infinite where the value is not a number.
    """
    if "dur" not in event:
        return NAN, False
    value = event["dur"]
    number = to_number(value)
    if number is None:
        return math.inf, True
    return float(number) if abs(number) < _ABSURD else math.copysign(math.inf, number), isinstance(value, str)


_ABSURD = Decimal(10) ** 30


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


def _encode(args: dict[str, Any]) -> Raw:
    """Return the arguments that the analysis reads as strict JSON."""
    return Raw(msgspec.json.encode({key: _strict(args[key]) for key in args.keys() & _WANTED}))


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


_WANTED = frozenset(OpArgs.__struct_encode_fields__)


# -- Losses ------------------------------------------------------------------------------------------

_MOST_EXAMPLES = 3


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
        if len(self.examples) < _MOST_EXAMPLES:
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
