"""Writes XSpaces, as XLA's profiler does, of planes and events that a test states."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field


class Plane(Struct):
    """A plane and its lines: (id, name) -> events as (name, start, duration, statistics), in nanoseconds."""

    name: str
    lines: dict[tuple[int, str], list[tuple[str, int, int, dict[str, Any]]]] = field(default_factory=dict)
    stats: dict[str, Any] = field(default_factory=dict)


def xspace(*planes: Plane, warnings: tuple[str, ...] = ()) -> bytes:
    """Return the file."""
    encoded = b"".join(_bytes(3, warning.encode()) for warning in warnings)
    return b"".join(_bytes(1, _plane(number, plane)) for number, plane in enumerate(planes)) + encoded


def _plane(number: int, plane: Plane) -> bytes:
    names: dict[str, int] = {}
    stat_names: dict[str, int] = {}

    def stat(name: str, value: Any) -> bytes:
        key = _number(1, stat_names.setdefault(name, len(stat_names) + 1))
        return key + (_number(4, value) if isinstance(value, int) else _bytes(5, value.encode()))

    lines = b""
    for (line, title), events in plane.lines.items():
        body = _number(1, line) + _bytes(2, title.encode())
        for name, start, length, stats in events:
            event = _number(1, names.setdefault(name, len(names) + 1)) + _number(2, start * 1000)
            event += _number(3, length * 1000) + b"".join(_bytes(4, stat(*item)) for item in stats.items())
            body += _bytes(4, event)
        lines += _bytes(3, body)
    encoded = b"".join(_bytes(6, stat(*item)) for item in plane.stats.items())
    head = _number(1, number) + _bytes(2, plane.name.encode())
    return head + lines + _names(4, names) + _names(5, stat_names) + encoded


def _names(field: int, names: dict[str, int]) -> bytes:
    return b"".join(
        _bytes(field, _number(1, key) + _bytes(2, _number(1, key) + _bytes(2, name.encode())))
        for name, key in names.items()
    )


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value & 0xFFFFFFFFFFFFFFFF)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    parts = []
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*parts, value))
