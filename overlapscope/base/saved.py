"""JSON that this package writes, its schemas, and files of it read back: anybody may have changed them since."""

from __future__ import annotations

import json
from typing import Any, Final, TypeVar

import msgspec

from overlapscope.version import __version__

_Kind = TypeVar("_Kind")

MOST: Final = 10**15
"""Of nanoseconds, bytes and whatever is counted: more than any recording has, and little enough to be added up."""
_WIDEST: Final = 2**63
"""Of any other number, such as an instant or the id of a thread: what 64 bits hold."""
_INSTANTS: Final = ("at_ns", "start_ns", "end_ns", "clock_offset_ns", "largest_offset_ns")
"""Times of this file or that clock, which may be before nought."""

_NAMES: Final = ("rule", "id", "cause", "source_kind", "target_kind")
"""Words of ours, which are printed as they are. What a trace calls its ops and ranges may be anything."""


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """What wrote it."""

    name: str = "overlapscope"
    version: str = __version__


def published(contract: type[msgspec.Struct], name: str) -> dict[str, Any]:
    """The JSON schema (2020-12) of something that this package writes for programs to read."""
    return msgspec.json.schema(contract) | {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"overlapscope {name}",
    }


def encode(thing: Any, *, indent: int = 2) -> bytes:
    """Return indented JSON that ends in a newline. What is no UTF-8 in the name of a file is replaced by `?`."""
    try:
        data = msgspec.json.encode(thing)
    except UnicodeEncodeError:
        data = json.dumps(msgspec.to_builtins(thing), ensure_ascii=False).encode("utf-8", "replace")
    return msgspec.json.format(data, indent=indent) + b"\n"


def decode(data: bytes, kind: type[_Kind]) -> _Kind:
    """What JSON holds, and no number in it that cannot be: names say what may.

    Raises msgspec.DecodeError, of which ValidationError is one.
    """
    try:
        decoded = msgspec.json.decode(data, type=kind)
        _check(msgspec.json.decode(data), "$", "")
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from None
    return decoded


def _check(value: Any, where: str, name: str) -> None:
    """`name` is the nearest key that says what the value is of."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _check(inner, f"{where}.{key}", name if name.endswith("_by_cause") else key)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            _check(inner, f"{where}[{number}]", name)
    elif isinstance(value, str):
        if name in _NAMES and not value.isprintable():
            raise msgspec.ValidationError(f"Expected a name - at `{where}`")
    elif isinstance(value, int | float):
        least, most = _bounds(name)
        if not least <= value <= most:
            raise msgspec.ValidationError(f"Expected a number from {least:.3g} to {most:.3g} - at `{where}`")


def _bounds(name: str) -> tuple[int, int]:
    if name.endswith("_pct"):
        return 0, 100
    if (name.endswith(("_ns", "_by_cause")) and name not in _INSTANTS) or name in ("bytes", "count"):
        return 0, MOST
    return -_WIDEST, _WIDEST
