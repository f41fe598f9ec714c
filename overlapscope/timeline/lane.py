"""Lanes of a timeline, categories of their ops and links between these, so that drawing costs the same at any zoom.

All times are integer nanoseconds relative to `Lanes.origin_ns`, so that a browser represents them exactly.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from overlapscope.analysis import TraceAnalysis
from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.event_waits import EXACT
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


class Lanes(Struct, frozen=True, eq=False, dict=True, weakref=True):
    """A trace prepared to be drawn. A lane's id is its position in `lanes`."""

    origin_ns: int
    """Absolute time to which all other times here are relative."""
    start_ns: int
    """0, the first instant of everything drawn."""
    end_ns: int
    of_devices: tuple[TimelineLane, ...]
    """The first of all lanes."""
    make_others: Callable[[], Iterable[TimelineLane]]
    """Makes those of the host, which take much longer, and which not every picture needs."""
    analysis: TraceAnalysis

    @cached_property
    def lanes(self) -> tuple[TimelineLane, ...]:
        """All lanes."""
        return (*self.of_devices, *self.make_others())

    def device(self, device: int | None) -> DeviceAnalysis:
        """Return the analysis of a device by its ordinal. Raises KeyError for an unknown device."""
        for analysis in self.analysis.devices:
            if analysis.result.device == device:
                return analysis
        raise KeyError(f"device {device}")

    def lane(self, lane_id: int) -> TimelineLane:
        """Return a lane by its id. Raises KeyError for an unknown lane."""
        lanes = self.of_devices if lane_id < len(self.of_devices) else self.lanes
        if not 0 <= lane_id < len(lanes):
            raise KeyError(f"lane {lane_id}")
        return lanes[lane_id]


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


# -- Links between ops: launches and event waits -----------------------------------------------------


_MAX_ARROWS = 50
"""Maximum number of arrows of an op; a graph launch has thousands."""


class LaneRow(NamedTuple):
    """An op of a lane."""

    lane: int
    row: int


def rows_on(lanes: Lanes, device: int) -> I64:
    """Return the rows of `Trace.gpu_ops` that are the rows of a device's `Timeline.ops`."""
    return np.flatnonzero(lanes.analysis.trace.gpu_ops.device == device)


def row_of_gpu_op(lanes: Lanes, row: int) -> LaneRow:
    """Return the place of a row of `Trace.gpu_ops`. Raises KeyError if its device is not drawn."""
    ops = lanes.analysis.trace.gpu_ops
    device, stream = int(ops.device[row]), int(ops.stream[row])
    for lane in lanes.of_devices:
        if lane.kind == "stream" and lane.device == device and lane.stream == stream:
            return LaneRow(lane.id, int(np.searchsorted(lane.source, np.asarray(row, lane.source.dtype))))
    raise KeyError(f"stream {stream} of device {device}")


def row_of_call(lanes: Lanes, call: int) -> LaneRow:
    """Return the place of a runtime call, a row of `Trace.runtime_calls`."""
    calls = lanes.analysis.trace.runtime_calls
    thread, at = int(calls.thread[call]), int(calls.start_ns[call]) - lanes.origin_ns
    for lane in lanes.lanes:
        if lane.kind == "host" and lane.thread == thread:
            first, last = (int(lane.start_ns.searchsorted(at, side=side)) for side in ("left", "right"))
            same = (lane.source[first:last] == call) & np.isin(lane.category[first:last], CALLS)
            if same.any():
                return LaneRow(lane.id, first + int(np.argmax(same)))
    raise KeyError(f"call {call}")


def row_of_piece(lanes: Lanes, device: int, at_ns: int) -> LaneRow:
    """Return the piece of a device's overlap lane at an instant in its window, relative to the origin."""
    for lane in lanes.of_devices:
        if lane.kind == "overlap" and lane.device == device and len(lane):
            return LaneRow(lane.id, max(int(lane.start_ns.searchsorted(at_ns, side="right")) - 1, 0))
    raise KeyError(f"device {device}")


def launched_by(lanes: Lanes, calls: I64) -> I64:
    """Return the rows of `Trace.gpu_ops` that the given runtime calls (sorted rows) launched, device by device."""
    if not len(calls):
        return np.empty(0, np.int64)
    ops = lanes.analysis.trace.gpu_ops
    rows = np.flatnonzero((ops.launch >= calls[0]) & (ops.launch <= calls[-1]))
    rows = rows[np.isin(ops.launch[rows], calls) & np.isin(ops.device[rows], _drawn(lanes))]
    return rows[np.argsort(ops.device[rows], kind="stable")]


def _drawn(lanes: Lanes) -> list[int]:
    return [analysis.result.device for analysis in lanes.analysis.devices]


# -- Event waits -----------------------------------------------------------------------------------


class EventWait(NamedTuple):
    """An edge of `analysis.holds.Edges`: a recorded event, the wait for it, and the op that it delayed.

    Ops are rows of `Trace.gpu_ops`, calls of `Trace.runtime_calls`.
    """

    held: int
    """Delayed op."""
    source_op: int
    """Op that was waited for, on any device."""
    wait: int
    """Call that asked for the wait."""
    record: int
    """Call that recorded the event; -1 if unknown."""
    confidence: int


def waits_of(lanes: Lanes, *, op: int | None = None, call: int | None = None) -> list[EventWait]:
    """Return the waits that delayed an op or were for it, or those whose event a call recorded or waited for.

    The surest come first.
    """
    waits = []
    for analysis in lanes.analysis.devices:
        edges = analysis.edges
        held = rows_on(lanes, analysis.result.device)[edges.held]
        ends, row = ((edges.wait, edges.record), call) if op is None else ((held, edges.source_op), op)
        rows = np.flatnonzero((ends[0] == row) | (ends[1] == row))
        columns = (held, edges.source_op, edges.wait, edges.record, edges.confidence)
        waits += [EventWait(*edge) for edge in zip(*(column[rows].tolist() for column in columns), strict=True)]
    return sorted(waits, key=lambda wait: -wait.confidence)


# -- Arrows ----------------------------------------------------------------------------------------

Arrow = dict[str, Any]
End = tuple[LaneRow, int]
"""End of an arrow: an op of a lane, and an instant."""


def arrows_of_gpu_op(lanes: Lanes, row: int, waits: list[EventWait]) -> list[Arrow]:
    """Return the launch and the event waits of an op, a row of `Trace.gpu_ops`."""
    launched = [_launch(lanes, row)] if lanes.analysis.trace.gpu_ops.launch[row] >= 0 else []
    return launched + arrows_of_waits(lanes, waits)


def arrows_of_waits(lanes: Lanes, waits: list[EventWait]) -> list[Arrow]:
    """Return arrows from the awaited to the delayed op, and from recording an event to waiting for it.

    Each arrow is drawn once. If several waits give the same arrow, the first counts, since its confidence is the
    highest.
    """
    arrows: dict[tuple[LaneRow, LaneRow], Arrow] = {}
    ops, drawn = lanes.analysis.trace.gpu_ops, _drawn(lanes)
    for wait in waits[: _MAX_ARROWS // 2]:
        pairs: list[tuple[End, End]] = []
        if ops.device[wait.source_op] in drawn:
            ended = int(ops.end_ns[wait.source_op]) - lanes.origin_ns
            pairs.append(((row_of_gpu_op(lanes, wait.source_op), ended), _begin(lanes, wait.held)))
        if wait.record >= 0:
            pairs.append((_called(lanes, wait.record), _called(lanes, wait.wait)))
        confidence = "exact" if wait.confidence == EXACT else "rebuilt"
        for begin, end in pairs:
            arrows.setdefault((begin[0], end[0]), _arrow("wait", confidence, begin, end))
    return list(arrows.values())


def arrows_of_calls(lanes: Lanes, calls: I64) -> list[Arrow]:
    """Return arrows from runtime calls (sorted rows) to the GPU ops that they launched."""
    return [_launch(lanes, row) for row in launched_by(lanes, calls)[:_MAX_ARROWS].tolist()]


def _launch(lanes: Lanes, row: int) -> Arrow:
    call = int(lanes.analysis.trace.gpu_ops.launch[row])
    return _arrow("launch", "exact", _called(lanes, call), _begin(lanes, row))


def _called(lanes: Lanes, call: int) -> End:
    return row_of_call(lanes, call), int(lanes.analysis.trace.runtime_calls.start_ns[call]) - lanes.origin_ns


def _begin(lanes: Lanes, row: int) -> End:
    return row_of_gpu_op(lanes, row), int(lanes.analysis.trace.gpu_ops.start_ns[row]) - lanes.origin_ns


def _arrow(kind: str, confidence: str, begin: End, end: End) -> Arrow:
    ends = {side: row._asdict() | {"at": at} for side, (row, at) in (("from", begin), ("to", end))}
    return {"kind": kind, "confidence": confidence, **ends}
