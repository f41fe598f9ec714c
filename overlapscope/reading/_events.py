"""Events of a Chrome trace as typed structs, and the lenient way to get them out of untyped JSON.

Only complete events (`ph` X) and instants (`i`) carry anything the analysis needs. What Kineto writes all the time is
decoded by its category, with just the fields that are read. Stretches with anything else are decoded by phase, where
the phases of no interest are listed so that decoding them costs nothing; an unlisted one takes the lenient way. All
ways give the same rows.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any, Literal, TypeVar, Union

import msgspec
from msgspec import Raw, Struct, field

from overlapscope.reading._categories import Table, table_of
from overlapscope.reading._times import decimal, to_number

NOTHING = Raw(b"null")
NAN = math.nan
ABSENT = -2


class OpArgs(Struct, gc=False, frozen=True):
    """Arguments of GPU ops and synchronisation records. -1 where missing, but ABSENT for streams: -1 means
    none.
    """

    device: int = -1
    in_device: int = field(default=-1, name="inDevice")
    from_device: int = field(default=-1, name="fromDevice")
    stream: int = ABSENT
    sycl_queue: int = field(default=ABSENT, name="sycl queue")
    correlation: int = -1
    bytes: int = -1
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


class CallArgs(Struct, gc=False, frozen=True):
    """Arguments of runtime calls. -1 where missing."""

    correlation: int = -1


# -- by phase: whatever the events are


class Complete(Struct, tag="X", tag_field="ph", gc=False):
    """A complete event. Times are microseconds; NaN where missing."""

    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: float = NAN
    dur: float = NAN
    args: Raw = NOTHING


class ExactComplete(Struct, tag="X", tag_field="ph", gc=False):
    """A complete event whose `ts` keeps its text, for files where a double does not hold a nanosecond."""

    cat: str = ""
    name: str = ""
    pid: int | str = -1
    tid: int | str = -1
    ts: Raw = NOTHING
    dur: float = NAN
    args: Raw = NOTHING


class Instant(Struct, tag="i", tag_field="ph", gc=False):
    """An instant event; `ts` keeps its text."""

    cat: str = ""
    name: str = ""
    ts: Raw = NOTHING


_OTHER_PHASES = "MstfBECbneNODPpRcvVSTFI"
_IGNORED: list[Any] = [
    msgspec.defstruct(f"Ignored_{phase}", [], tag=phase, tag_field="ph", gc=False) for phase in _OTHER_PHASES
]

# -- by category: what Kineto writes all the time, with typed arguments


class _ByCategory(Struct, gc=False, kw_only=True):
    """A complete event of a category that is known. Anything unusual about one makes it undecodable, and it is
    decoded by its phase.
    """

    ph: Literal["X"]
    name: str = ""
    tid: int | str = -1
    ts: float = NAN
    dur: float = NAN


class Call(_ByCategory, gc=False):
    """A runtime call."""

    args: CallArgs | None = None


class Op(_ByCategory, gc=False):
    """An event of a device."""

    pid: int | str = -1
    args: OpArgs | None = None


SHAPES = {Table.GPU: Op, Table.SYNC: Op, Table.DEVICE_ANNOTATION: Op, Table.RUNTIME: Call}
"""Of the tables that have more columns than all have."""

CATEGORIES = (
    *("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cuda_driver", "cpu_op", "python_function"),
    *("user_annotation", "gpu_user_annotation", "cuda_sync", "overhead", "Trace", "xpu_runtime", "xpu_driver"),
)
"""The frequent categories, whose events are decoded by their category. Each costs time when this is imported."""

_KNOWN = [
    msgspec.defstruct(
        category, [], bases=(SHAPES.get(table_of[category], _ByCategory),), tag=category, tag_field="cat", gc=False
    )
    for category in CATEGORIES
]
PASSED_OVER = {
    **dict.fromkeys(("ac2g", "fwdbwd"), "stf"),
    "cpu_instant_event": "i",
    **dict.fromkeys(("cuda_event", "cuda_profiler_range"), "X"),
}
"""Frequent categories that are not read, with the phases that they come in."""

_UNREAD = [
    msgspec.defstruct(category, [("ph", Literal[tuple(phases)])], tag=category, tag_field="cat", gc=False)
    for category, phases in PASSED_OVER.items()
]

NUMBER_OF: dict[type[Struct], int] = {**dict.fromkeys(_UNREAD, 0), **{kind: n for n, kind in enumerate(_KNOWN, 1)}}
"""The place in `CATEGORIES` of each type of event decoded by category, from 1; 0 for those that are passed over."""

_FAST: Any = Union[(Complete, Instant, *_IGNORED)]
_EXACT: Any = Union[(ExactComplete, Instant, *_IGNORED)]
usual_events: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[Union[(*_KNOWN, *_UNREAD)]])  # type: ignore[valid-type]
fast_events: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[_FAST])
exact_events: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[_EXACT])
any_events = msgspec.json.Decoder(float_hook=decimal)
_args: dict[type, msgspec.json.Decoder[list[Any]]] = {
    kind: msgspec.json.Decoder(list[kind | None])  # type: ignore[valid-type]
    for kind in (OpArgs, CallArgs)
}

UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""All that msgspec raises for bad JSON."""


_Args = TypeVar("_Args", bound="OpArgs | CallArgs")


def decoded_args(kind: type[_Args], raw: list[Raw]) -> tuple[list[_Args], int]:
    """The arguments of many events, and how many held values of a wrong type."""
    decoder, nothing = _args[kind], kind()
    try:
        return [args or nothing for args in decoder.decode(b"[" + b",".join(raw) + b"]")], 0
    except UNDECODABLE:
        converted = [_convert_args(kind, _loose(args)) for args in raw]
        return [args for args, _ in converted], sum(repaired for _, repaired in converted)


def _loose(raw: Raw) -> Any:
    try:
        return any_events.decode(raw)
    except UNDECODABLE:
        pass
    # What is passed over in decoding is not checked, so bad UTF-8 shows only here.
    try:
        return json.loads(bytes(raw).decode("utf-8", "replace"), strict=False, parse_float=decimal)
    except (ValueError, RecursionError):
        return "unreadable"


def _convert_args(kind: type[_Args], args: Any) -> tuple[_Args, bool]:
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
    """The text in a JSON string, or that of any other value as it is written; empty for null and what is no JSON."""
    try:
        value = msgspec.json.decode(raw)
    except UNDECODABLE:
        return ""
    if value is None:
        return ""
    if isinstance(value, list):
        # The same however it was spaced, and as PyTorch writes it where it is a text: `[0, 1]`.
        return str(value)
    return valid_text(value) if isinstance(value, str) else bytes(raw).decode("utf-8", "replace")


_TEXTS = ("sync_kind", "sync_type", "collective", "dtype")
_RAWS = ("bandwidth", "group", "ranks")


def convert(event: Any) -> tuple[ExactComplete | Instant | None, bool] | None:
    """The typed event in a JSON value: (event or None for a phase of no interest, whether it needed repair).

    None where the value is no event at all.
    """
    if not isinstance(event, dict):
        return None
    phase = event.get("ph")
    repaired = False
    if phase is None and "ts" in event and "dur" in event:
        phase, repaired = "X", True
    if phase == "i":
        # A text is no time here, as it is none where instants are decoded by phase.
        ts = b"null" if isinstance(event.get("ts"), str) else _time_text(event)[0]
        return Instant(cat=valid_text(event.get("cat")), name=valid_text(event.get("name")), ts=Raw(ts)), False
    if phase != "X":
        return (None, False) if isinstance(phase, str) else None
    ts, bad_ts = _time_text(event)
    dur, bad_dur = _duration(event)
    repaired |= bad_ts or bad_dur
    repaired |= "name" in event and not isinstance(event["name"], str)
    bad_category = "cat" in event and not isinstance(event["cat"], str)
    args = event.get("args")
    complete = ExactComplete(
        cat=valid_text(event.get("cat")),
        name=valid_text(event.get("name")),
        pid=_identity(event.get("pid")),
        tid=_identity(event.get("tid")),
        ts=Raw(ts),
        dur=dur,
        args=_encode(args) if isinstance(args, dict) else NOTHING,
    )
    # What is not read needs no repair: decoded by its category it would not have been looked at.
    return complete, bad_category or (repaired and table_of[complete.cat] != Table.IGNORED)


def _time_text(event: dict[str, Any]) -> tuple[bytes, bool]:
    value = event.get("ts")
    number = to_number(value)
    text = b"null" if number is None else format(number, "f").encode() if abs(number) < _ABSURD else b"null"
    return text, "ts" in event and (number is None or isinstance(value, str))


def _duration(event: dict[str, Any]) -> tuple[float, bool]:
    """Microseconds; NaN where missing, infinite where there is something that is no number."""
    if "dur" not in event:
        return NAN, False
    value = event["dur"]
    number = to_number(value)
    if number is None:
        return math.inf, True
    return float(number) if abs(number) < _ABSURD else math.copysign(math.inf, number), isinstance(value, str)


_ABSURD = Decimal(10) ** 30


def valid_text(value: Any) -> str:
    if not isinstance(value, str):
        return "" if value is None else str(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        try:
            # Bytes that were not UTF-8 stand in the text as escapes.
            return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        except UnicodeEncodeError:
            # Half of a pair, written as `\ud800`.
            return value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    return value


def _identity(value: Any) -> int | str:
    if isinstance(value, int | str):
        return value
    number = to_number(value)
    return -1 if number is None else int(number)


def _encode(args: dict[str, Any]) -> Raw:
    """The arguments that matter, as strict JSON."""
    wanted = {key: args[key] for key in args.keys() & _WANTED}
    if not wanted:
        return NOTHING
    for key, value in wanted.items():
        if key in _RAW_KEYS:
            wanted[key] = _strict(value)
        elif isinstance(value, Decimal):
            wanted[key] = int(value) if value.is_finite() and abs(value) < _ABSURD else None
        elif isinstance(value, float):
            wanted[key] = int(value) if math.isfinite(value) else None
        elif isinstance(value, str):
            wanted[key] = valid_text(value)
        elif not isinstance(value, int):
            wanted[key] = None
        elif abs(value) >= 1 << 63:
            wanted[key] = str(value)
    return Raw(msgspec.json.encode(wanted))


def _strict(value: Any) -> Any:
    """The same value without what is no JSON."""
    match value:
        case float() | Decimal():
            return float(value) if math.isfinite(value) else None
        case str():
            return valid_text(value)
        case list():
            return [_strict(item) for item in value]
        case bool() | int() if abs(value) < 1 << 63:
            return value
    return None


_WANTED = frozenset(OpArgs.__struct_encode_fields__)
_RAW_KEYS = frozenset(
    key
    for attribute, key in zip(OpArgs.__struct_fields__, OpArgs.__struct_encode_fields__, strict=True)
    if attribute in _RAWS
)
