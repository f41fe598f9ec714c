"""Lanes of a timeline and categories of their ops, prepared so that drawing costs the same at any zoom.

All times are integer nanoseconds relative to `Lanes.origin_ns`, so that a browser represents them exactly.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any, Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from overlapscope.analysis import TraceAnalysis
from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.groups import caused_by_calls
from overlapscope.base.columns import U8
from overlapscope.base.intervals import union
from overlapscope.base.kept import kept
from overlapscope.catalog.causes import COPY_CAUSES, IDLE_CAUSES
from overlapscope.trace.model import I32, I64, GpuOps, Kind, Memory

# -- Categories ------------------------------------------------------------------------------------

_GPU = (
    "compute",
    "comm",
    "h2d-pinned",
    "h2d-pageable",
    "h2d-other",
    "d2h-pinned",
    "d2h-pageable",
    "d2h-other",
    "p2p",
    "other",
)
_OVERLAP = (
    "hidden-copy",
    "exposed-comm",
    "exposed-other",
    *(f"exposed-copy:{cause}" for cause in COPY_CAUSES),
    *(f"idle:{cause}" for cause in IDLE_CAUSES),
)
_HOST = ("blocking-call", "runtime-call", "cpu-op", "range", "profiler", "python-line")

CATEGORIES: tuple[str, ...] = (*_GPU, *_OVERLAP, *_HOST, "step")
"""A category's number is its position here, also in the binary form."""

ID = {name: number for number, name in enumerate(CATEGORIES)}
CALLS = (ID["blocking-call"], ID["runtime-call"])
FIRST_EXPOSED_COPY = ID[f"exposed-copy:{COPY_CAUSES[0]}"]
FIRST_IDLE = ID[f"idle:{IDLE_CAUSES[0]}"]

LABELS: tuple[str, ...] = tuple(name.replace("-copy", " copy", 1).replace(":", ": ") for name in CATEGORIES)
"""Names of the pieces of the overlap lane: `idle: host-sync`."""


def of_gpu_ops(ops: GpuOps) -> U8:
    """Return the category of each GPU op."""
    table = np.full((len(Kind), len(Memory)), ID["other"], np.uint8)
    for kind in (Kind.COMPUTE, Kind.COMM, Kind.P2P):
        table[kind] = ID[kind.name.lower()]
    for kind, word in ((Kind.H2D, "h2d"), (Kind.D2H, "d2h")):
        table[kind] = ID[f"{word}-other"]
        table[kind, Memory.PINNED] = ID[f"{word}-pinned"]
        table[kind, Memory.PAGEABLE] = ID[f"{word}-pageable"]
    return table[ops.kind, ops.host_memory]


# -- Times at which a lane was in a category, which can be measured in every pixel column at once ---


class Fill(Struct, frozen=True, eq=False):
    """At least one interval, disjoint and sorted, with prefix sums of their lengths."""

    category: int
    """Position in `CATEGORIES`."""
    starts: I64
    passed: I64
    """Length of all intervals before each; one more than there are intervals, the last being the total."""

    @property
    def total_ns(self) -> int:
        return int(self.passed[-1])

    def before(self, at_ns: I64) -> I64:
        """Return the length of the set before each of some ascending instants."""
        place = np.maximum(self.starts.searchsorted(at_ns, side="right") - 1, 0)
        passed = self.passed[place]
        inside: I64 = np.clip(at_ns - self.starts[place], 0, self.passed[place + 1] - passed)
        return passed + inside

    def touches(self, start_ns: int, end_ns: int) -> bool:
        """Return whether part of the set is in `[start_ns, end_ns)`."""
        last = int(self.starts.searchsorted(end_ns)) - 1
        return last >= 0 and bool(self.starts[last] + self.passed[last + 1] - self.passed[last] > start_ns)


def fills(start_ns: I64, end_ns: I64, category: U8) -> tuple[Fill, ...]:
    """Return the instants of each category that occurs."""
    filled = []
    for number in np.flatnonzero(np.bincount(category)).tolist():
        chosen = category == number
        starts, ends = union(start_ns, end_ns) if chosen.all() else union(start_ns[chosen], end_ns[chosen])
        if len(starts):
            filled.append(Fill(number, starts, np.concatenate([[0], np.cumsum(ends - starts)])))
    return tuple(filled)


# -- Lanes -----------------------------------------------------------------------------------------

Ids = NDArray[np.integer[Any]]
LaneKind = Literal["overlap", "steps", "ranges", "stream", "host"]


class TimelineLane(Struct, frozen=True, eq=False, kw_only=True):
    """A row of the timeline. Its ops are sorted by start, and their index is called a row of the lane."""

    id: int = -1
    """Position among all lanes; -1 while that is unknown."""
    group: str
    label: str
    kind: LaneKind
    depth: int = 0
    """Depth of nesting; 0 is the outermost."""
    device: int | None = None
    stream: int | None = None
    thread: int | None = None
    start_ns: I64
    end_ns: I64
    category: U8
    """Position in `CATEGORIES`."""
    source: Ids
    """Row of each op at its origin.

    The origin is `DeviceAnalysis.steps` and `.ranges` for steps and ranges, else the trace: its GPU ops for a stream
    and, by category, its runtime calls, CPU ops, annotations, overheads and Python frames for the host. Pieces of an
    overlap lane have -1, because they come from several sets, where their start finds them.
    """
    names: tuple[str, ...]
    name_id: Ids
    """Position of each op's name in `names`."""
    fills: tuple[Fill, ...]
    ended_ns: I64
    """Latest end of each op and of all before it."""
    longest: I32
    """Rows by the number of bits of their length, the longest first."""

    def __len__(self) -> int:
        return len(self.start_ns)

    def name(self, row: int) -> str:
        return self.names[int(self.name_id[row])]

    def reaching(self, start_ns: int, end_ns: int) -> slice:
        """Return the rows of all ops that touch `[start_ns, end_ns)`, and of a few others."""
        return slice(int(self.ended_ns.searchsorted(start_ns)), int(self.start_ns.searchsorted(end_ns)))

    def lasting(self, length_ns: int) -> I32:
        """Return the rows of all ops of at least a length, and of others of more than half of it."""

        def shortness(row: np.int32) -> int:
            return -int(self.end_ns[row] - self.start_ns[row]).bit_length()

        return self.longest[: bisect_right(self.longest, -length_ns.bit_length(), key=shortness)]

    @property
    def busy_ns(self) -> int:
        """Total time in each category, in nanoseconds."""
        return sum(fill.total_ns for fill in self.fills)


class Lanes(Struct, frozen=True, eq=False, weakref=True):
    """A trace prepared to be drawn. A lane's id is its position in `lanes`."""

    origin_ns: int
    """Absolute time to which all other times here are relative."""
    start_ns: int
    """0, the first instant of everything drawn."""
    end_ns: int
    lanes: tuple[TimelineLane, ...]
    analysis: TraceAnalysis

    def device(self, device: int | None) -> DeviceAnalysis:
        """Return the analysis of a device by its ordinal. Raises KeyError for an unknown device."""
        for analysis in self.analysis.devices:
            if analysis.result.device == device:
                return analysis
        raise KeyError(f"device {device}")

    def lane(self, lane_id: int) -> TimelineLane:
        """Return a lane by its id. Raises KeyError for an unknown lane."""
        if not 0 <= lane_id < len(self.lanes):
            raise KeyError(f"lane {lane_id}")
        return self.lanes[lane_id]


@kept()
def idle_caused(lanes: Lanes) -> I64:
    """Return the idle time that each runtime call caused on all devices, by row."""
    trace = lanes.analysis.trace
    return sum(
        (caused_by_calls(trace, device.idle) for device in lanes.analysis.devices),
        np.zeros(len(trace.runtime_calls), np.int64),
    )


def prepared(*, start_ns: I64, end_ns: I64, category: U8, **others: Any) -> TimelineLane:
    """Return a lane of ops by start; `others` are the other fields of `TimelineLane` that callers state."""
    _, bits = np.frexp(end_ns - start_ns)
    return TimelineLane(
        start_ns=start_ns,
        end_ns=end_ns,
        category=category,
        fills=fills(start_ns, end_ns, category),
        # Few lanes have nested ops, so that most need no array of their own.
        ended_ns=end_ns if (end_ns[1:] >= end_ns[:-1]).all() else np.maximum.accumulate(end_ns),
        longest=np.argsort(-bits.astype(np.int8), kind="stable").astype(np.int32),
        **others,
    )
