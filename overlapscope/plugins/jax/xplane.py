"""Recordings of XLA's profiler, decoded: the protocol buffer (`*.xplane.pb`), and the Chrome trace beside it.

The protocol buffer is an XSpace. It has planes (a device, or a host's threads) of lines (a stream, or a thread) of
events. Field numbers come from `tsl/profiler/protobuf/xplane.proto`; the wire format is described at
protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct, field

from overlapscope.reading._times import to_ns

# -- Lines of events ---


class Stats(Struct, gc=False, frozen=True):
    """The statistics of an event that are read."""

    correlation_id: int = -1
    device_id: int = -1
    """Device that a call of the host addresses."""
    memcpy_details: str = ""
    memset_details: str = ""
    step_num: int | None = None
    root: int = field(default=0, name="_r")
    """Not 0 for a step, numbered or not (`StepTraceAnnotation`)."""
    source: str = field(default="", name="_src")
    """XLA's own source file that marks this event."""


NO_STATS = Stats()

MAX_EVENTS = 16 << 20
"""XLA records some two million events of each kind by default, and writes one million as JSON. Without a limit, a
hostile file could have an event in every two bytes, and take fifty times its size in memory."""


class XlaEvent(Struct, gc=False, frozen=True):
    """An event on a line."""

    name: str
    start_ns: int
    dur_ns: int
    stats: Stats


class XlaLine(Struct, frozen=True):
    """A stream of a device, or a thread of a host."""

    plane: str
    """`/device:GPU:0`, `/host:CPU`."""
    name: str
    """`Stream #14(Compute)`, or the name of a thread."""
    id: int
    events: list[XlaEvent]
    """Events in any order."""


class XlaRecording(Struct):
    """The recording in one file."""

    lines: list[XlaLine] = field(default_factory=list)
    plane_stats: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Statistics of each plane, by its name; empty for a file of JSON."""
    warnings: list[str] = field(default_factory=list)
    """Problems that the profiler itself reports."""


# -- The protocol buffer ---

_PS_PER_NS: Final = 1_000
_MAX_BITS: Final = 64
_READ: Final = frozenset(Stats.__struct_encode_fields__)


class NotAnXSpace(ValueError):
    """The bytes are not whole messages of the expected types."""


def read_xspace(data: bytes) -> XlaRecording:
    """Return all lines, and the statistics of the planes.

    Raises:
        NotAnXSpace: The bytes are cut off or damaged.
    """
    recording, events = XlaRecording(), 0
    for number, value in _fields(data):
        if number == 1:
            name, plane_stats, lines = _plane(_fields(_bytes(value)))
            recording.plane_stats.setdefault(name, {}).update(plane_stats)
            recording.lines += lines
            events += sum(len(line.events) for line in lines)
            if events > MAX_EVENTS:
                raise NotAnXSpace("more events than any profiler records")
        elif number in (2, 3):
            recording.warnings.append(_text(value))
    return recording


def _plane(fields: Iterator[tuple[int, Any]]) -> tuple[str, dict[str, Any], list[XlaLine]]:
    """Return name, statistics and lines of a plane."""
    of: dict[int, list[Any]] = {number: [] for number in range(1, 7)}
    for number, value in fields:
        of.setdefault(number, []).append(value)
    name = _text(of[2][-1]) if of[2] else ""
    event_names = _names(of[4])
    stats = _Stats(_names(of[5]))
    plane_stats = dict(stats.decoded(_bytes(value)) for value in of[6])
    return name, plane_stats, [_line(name, _bytes(line), event_names, stats) for line in of[3]]


def _line(plane: str, data: bytes, event_names: dict[int, str], stats: _Stats) -> XlaLine:
    events, fields = [], {}
    for number, value in _fields(data):
        if number == 4:
            events.append(value)
        else:
            fields[number] = value
    if len(events) > MAX_EVENTS:
        raise NotAnXSpace("more events than any profiler records")
    began_ns = _integer(fields.get(3, 0))
    return XlaLine(
        plane=plane,
        name=_text(fields.get(2, b"")) or _text(fields.get(11, b"")),
        # The JSON of the same recording keeps only these bits of the id.
        id=_integer(fields.get(1, 0)) & 0xFFFFFFFF,
        events=[_event(_bytes(event), began_ns, event_names, stats) for event in events],
    )


def _event(data: bytes, began_ns: int, names: dict[int, str], stats: _Stats) -> XlaEvent:
    name = offset_ps = length_ps = 0
    encoded: list[bytes] = []
    for number, value in _fields(data):
        if number == 4:
            encoded.append(_bytes(value))
        elif number == 1:
            name = _integer(value)
        elif number == 2:
            offset_ps = _integer(value)
        elif number == 3:
            length_ps = _integer(value)
    start_ns, end_ns = offset_ps // _PS_PER_NS, (offset_ps + length_ps) // _PS_PER_NS
    return XlaEvent(names.get(name, ""), began_ns + start_ns, end_ns - start_ns, stats.of_event(encoded))


class _Stats:
    """Decoder of the statistics of a plane. Most are shared by many events, and are decoded once."""

    def __init__(self, names: dict[int, str]) -> None:
        self._names = names
        self._decoded: dict[bytes, tuple[str, Any]] = {}

    def of_event(self, encoded: list[bytes]) -> Stats:
        values = {}
        for data in encoded:
            stat = self._decoded.get(data)
            if stat is None:
                stat = self._decoded[data] = self.decoded(data)
            if stat[0] in _READ:
                values[stat[0]] = stat[1]
        try:
            return msgspec.convert(values, Stats) if values else NO_STATS
        except msgspec.ValidationError as error:
            raise NotAnXSpace(str(error)) from None

    def decoded(self, data: bytes) -> tuple[str, Any]:
        """Return name and value. Texts are often references to a name."""
        name = ""
        decoded: Any = None
        for number, value in _fields(data):
            match number:
                case 1:
                    name = self._names.get(_integer(value), "")
                case 2:
                    decoded = _double(value)
                case 3 | 4:
                    decoded = _integer(value)
                case 5:
                    decoded = _text(value)
                case 7:
                    decoded = self._names.get(_integer(value), "")
        return name, decoded


def _names(entries: list[Any]) -> dict[int, str]:
    """Return the names in a map of metadata, by their ids."""
    names = {}
    for entry in entries:
        fields = dict(_fields(_bytes(entry)))
        metadata = dict(_fields(_bytes(fields.get(2, b""))))
        names[_integer(fields.get(1, 0))] = _text(metadata.get(2, b""))
    return names


# -- Wire format ---


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a message: each one's number, and an integer or bytes."""
    at, end = 0, len(data)
    try:
        while at < end:
            # Nearly all numbers take one byte.
            key = data[at]
            at += 1
            if key >= 0x80:
                key, at = _varint(data, at - 1)
            wire = key & 7
            if wire in (0, 2):
                value = data[at]
                at += 1
                if value >= 0x80:
                    value, at = _varint(data, at - 1)
                if wire == 0:
                    yield key >> 3, value
                    continue
            elif wire in (1, 5):
                value = 8 if wire == 1 else 4
            else:
                raise NotAnXSpace(f"wire type {wire}")
            if at + value > end:
                raise NotAnXSpace(f"a field of {value} bytes where {end - at} are left")
            yield key >> 3, data[at : at + value]
            at += value
    except IndexError:
        raise NotAnXSpace("a number that does not end") from None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at `at`, and its end.

    Raises:
        IndexError: The number does not end.
    """
    value = bits = 0
    while (byte := data[at]) >= 0x80 and bits < _MAX_BITS:
        value |= (byte & 0x7F) << bits
        at, bits = at + 1, bits + 7
    return (value | byte << bits) & 0xFFFFFFFFFFFFFFFF, at + 1


def _integer(value: Any) -> int:
    """Return a field as a signed number."""
    if not isinstance(value, int):
        raise NotAnXSpace("bytes instead of a number")
    return value - (1 << _MAX_BITS) if value >> (_MAX_BITS - 1) else value


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes):
        raise NotAnXSpace("a number instead of bytes")
    return value


def _text(value: Any) -> str:
    return _bytes(value).decode("utf-8", "replace")


def _double(value: Any) -> float:
    data = _bytes(value)
    if len(data) != struct.calcsize("d"):
        raise NotAnXSpace(f"a double of {len(data)} bytes")
    number: float = struct.unpack("<d", data)[0]
    return number


# -- The Chrome trace (`*.trace.json.gz`) ---


class _XlaArgs(Stats, gc=False, frozen=True):
    name: str = ""
    """Name of a process or thread, in events that give it one."""


class JsonEvent(Struct, gc=False):
    """An event of the Chrome trace."""

    ph: str = ""
    pid: int = -1
    tid: int = -1
    ts: float = math.nan
    dur: float = 0.0
    name: str = ""
    args: _XlaArgs | None = None


def recording_of(events: list[JsonEvent]) -> XlaRecording:
    """Return the recording in the events of a Chrome trace."""
    processes: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    of_line: dict[tuple[int, int], list[XlaEvent]] = defaultdict(list)
    starts_ns, durations_ns = to_ns(np.array([(event.ts, event.dur) for event in events]).reshape(-1, 2).T).tolist()
    for event, start_ns, dur_ns in zip(events, starts_ns, durations_ns, strict=True):
        if event.ph == "X":
            stats: Any = event.args or NO_STATS
            of_line[event.pid, event.tid].append(XlaEvent(event.name, start_ns, dur_ns, stats))
        elif event.ph == "M" and event.args is not None:
            if event.name == "process_name":
                processes[event.pid] = event.args.name
            elif event.name == "thread_name":
                threads[event.pid, event.tid] = event.args.name
    lines = [
        XlaLine(plane=processes.get(pid, ""), name=threads.get((pid, tid), ""), id=tid, events=events)
        for (pid, tid), events in of_line.items()
    ]
    return XlaRecording(lines=lines)
