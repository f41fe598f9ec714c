"""What XLA's profiler records, in whichever of its files: lines of events."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field
from msgspec import field as key


class Stats(Struct, gc=False, frozen=True):
    """What is read of what an event says of itself."""

    correlation_id: int = -1
    device_id: int = -1
    """Of a call of the host: the device that it speaks to."""
    memcpy_details: str = ""
    memset_details: str = ""
    step_num: int | None = None
    root: int = key(default=0, name="_r")
    """Not 0 for a step, numbered or not (`StepTraceAnnotation`)."""
    source: str = key(default="", name="_src")
    """The file of XLA's own that marks this event."""


NO_STATS = Stats()

MOST_EVENTS = 16 << 20
"""XLA records some two million of each kind, unless told otherwise, and writes one million as JSON. A hostile file
could have one in each two of its bytes, which would take fifty times its size of memory."""


class XlaEvent(Struct, gc=False, frozen=True):
    """Something that happened on a line."""

    name: str
    start_ns: int
    dur_ns: int
    stats: Stats


class XlaLine(Struct, frozen=True):
    """A stream of a device, or a thread of a host."""

    plane: str
    """`/device:GPU:0`, `/host:CPU`."""
    name: str
    """`Stream #14(Compute)`, or a thread's."""
    id: int
    events: list[XlaEvent]
    """In any order."""


class XlaRecording(Struct):
    """One file's."""

    lines: list[XlaLine] = field(default_factory=list)
    said: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What is said of each plane as a whole, by its name. Nothing in the JSON."""
    warnings: list[str] = field(default_factory=list)
    """What the profiler itself says went wrong."""
    truncated: bool = False
