"""Lines of events, as XLA's profiler records them in either of its files."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field
from msgspec import field as key


class Stats(Struct, gc=False, frozen=True):
    """The statistics of an event that are read."""

    correlation_id: int = -1
    device_id: int = -1
    """Device that a call of the host addresses."""
    memcpy_details: str = ""
    memset_details: str = ""
    step_num: int | None = None
    root: int = key(default=0, name="_r")
    """Not 0 for a step, numbered or not (`StepTraceAnnotation`)."""
    source: str = key(default="", name="_src")
    """XLA's own source file that marks this event."""


NO_STATS = Stats()

MOST_EVENTS = 16 << 20
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
    truncated: bool = False
