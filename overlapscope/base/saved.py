"""JSON that this package writes, its schemas, and validation when it is read back, since anyone may have changed it."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from overlapscope.version import __version__

_Kind = TypeVar("_Kind")

Instant = Annotated[int, Meta(ge=0, le=2**62)]
"""Nanoseconds since 1970 (UTC)."""
Quantity = Annotated[float, Meta(ge=-1e18, le=1e18)]
"""Number of any unit, up to thirty years in nanoseconds; neither infinite nor NaN."""

SCHEMA_VERSION: Final = 1
"""Version of every file's schema. Files of other versions are refused."""
MAX_FIGURE: Final = 10**15
"""Maximum of nanoseconds, bytes and counts: more than any recording has, and small enough to add up."""
_MAX_NUMBER: Final = 2**63
"""Maximum of any other number, such as an instant or a thread id: 64 bits."""
_INSTANTS: Final = ("at_ns", "start_ns", "end_ns", "clock_offset_ns", "largest_offset_ns")
"""Names of times on some file's or machine's clock, which may be negative."""
_DIFFERENCES: Final = (
    "slowed_low_ns",
    "slowed_ns",
    "slowed_high_ns",
    "saved_low_ns",
    "saved_ns",
    "saved_high_ns",
)
"""Names of times that are negative if something got shorter, or a change costs time."""
_NAMES: Final = ("rule", "id", "cause", "source_kind", "target_kind")
"""Names whose texts come from overlapscope and are printed unchanged. Names from a trace may contain anything."""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """The program that wrote the file."""

    name: str = "overlapscope"
    version: str = __version__


def published(contract: type[msgspec.Struct], name: str) -> dict[str, Any]:
    """Return the JSON schema (2020-12) of a type that this package writes for other programs."""
    return msgspec.json.schema(contract) | {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"overlapscope {name}",
    }


def encode(thing: Any, *, indent: int = 2) -> bytes:
    """Return indented JSON that ends in a newline. Bytes of file names that are not UTF-8 become `?`."""
    try:
        data = msgspec.json.encode(thing)
    except UnicodeEncodeError:
        import json

        data = json.dumps(msgspec.to_builtins(thing), ensure_ascii=False).encode("utf-8", "replace")
    # Frees the JSON without indents before the newline copies the other: reports of many devices are large.
    data = msgspec.json.format(data, indent=indent)
    return data + b"\n"


def decode(data: bytes, kind: type[_Kind]) -> _Kind:
    """Return decoded JSON, whose numbers lie in the range that their names allow.

    Raises:
        msgspec.DecodeError: The JSON is invalid, of another schema version, does not fit the type, or has an impossible
            number.
    """
    try:
        _check(msgspec.json.decode(data), "$", "")
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from None


def _check(value: Any, where: str, name: str) -> None:
    """Check a value; `name` is the nearest key around it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _check(inner, f"{where}.{key}", name if name.endswith("by_cause") else key)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            _check(inner, f"{where}[{number}]", name)
    elif isinstance(value, str):
        if name in _NAMES and not value.isprintable():
            raise msgspec.ValidationError(f"Expected a name - at `{where}`")
    elif name == "schema_version" and value != SCHEMA_VERSION:
        raise msgspec.ValidationError(f"Expected schema version {SCHEMA_VERSION}, got schema version {value}")
    elif isinstance(value, int | float):
        least, most = _bounds(name)
        if not least <= value <= most:
            raise msgspec.ValidationError(f"Expected a number from {least:.3g} to {most:.3g} - at `{where}`")


def _bounds(name: str) -> tuple[int, int]:
    if name.endswith("_pct"):
        return 0, 100
    if name in _DIFFERENCES:
        return -MAX_FIGURE, MAX_FIGURE
    if (name.endswith(("_ns", "by_cause")) and name not in _INSTANTS) or name in ("bytes", "count"):
        return 0, MAX_FIGURE
    return -_MAX_NUMBER, _MAX_NUMBER
