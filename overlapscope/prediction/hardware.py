"""The constants that a prediction uses, each with its source."""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import asdict

from overlapscope.analysis.event_waits import HIGH
from overlapscope.analysis.holds import Reading, find_edges, find_holds
from overlapscope.analysis.host_order import EARLIEST_NS
from overlapscope.analysis.lane_items import find_lanes
from overlapscope.analysis.timeline import Timeline, build
from overlapscope.base.columns import pick
from overlapscope.base.grouping import among, distinct, rows_by
from overlapscope.base.intervals import I64, Bool, Index, contains, covered, join, union
from overlapscope.prediction.calibration import Calibration, Constants, SizedTime, shipped
from overlapscope.prediction.result import Origin
from overlapscope.trace import calls as call_kinds
from overlapscope.trace.host import find_blocking, pinning
from overlapscope.trace.model import F64, Kind, Memory, Trace, stream_keys

_MAX_SIZE_RATIO = 4
"""Maximum ratio of sizes for a copy's duration to be taken from another size."""


class Stance(IntEnum):
    """How to treat the unknown: the interval reaches from `BEST` to `WORST`."""

    BEST = 0
    """Nothing depends on data without evidence, and the hardware is at its fastest."""
    EXPECTED = 1
    """Program order decides dependencies, and the hardware behaves as usual."""
    WORST = 2
    """Everything depends on all earlier work, and the hardware is at its slowest."""


_PCIE_4, _PCIE_3 = 2.2, 4.6
"""Slowdown of older links: 25 and 12 GB/s with 16 lanes, compared with 55 for PCIe 5, the table's."""
_LINKS = (
    (re.compile(r"\b(G?H[12]00|G?B[123]00|H800|H20|RTX (PRO|50[5-9]0))\b"), 1.0),
    (re.compile(r"\b(V100|P100|T4|P40|TITAN|GTX|Quadro|RTX 20[5-8]0)"), _PCIE_3),
)
"""Links by the makers' data sheets. Other products are assumed to have PCIe 4 (A100, L40S, RTX 30 and 40)."""


class Hardware(msgspec.Struct, frozen=True, eq=False):
    """The constants of a GPU, each from the best available source."""

    constants: Constants
    origins: dict[str, Origin]
    sized: dict[Kind, tuple[tuple[SizedTime, Origin], ...]]
    """Durations of pinned copies by direction, ascending by size."""
    calibrated: Constants
    """Constants of a calibration of this GPU model; empty if there is none."""
    guessed: bool
    """True if the link's rate is neither measured on this GPU model nor seen in the trace."""
    doubt: str | None
    """Sentence to show if constants of another GPU are used."""

    def copy_ns(self, kind: Kind, size: I64, stance: Stance = Stance.EXPECTED) -> F64:
        """Return the time of pinned copies of these sizes in bytes, with nothing beside them."""
        points = [point for point, _ in self.sized[kind]]
        take = {Stance.BEST: "low_ns", Stance.EXPECTED: "duration_ns", Stance.WORST: "high_ns"}[stance]
        sizes = np.array([point.bytes for point in points], np.float64)
        times = np.array([getattr(point, take) for point in points], np.float64)
        wanted = np.maximum(size, 1).astype(np.float64)
        # Interpolate linearly between sizes, for latency and rate. Beyond the largest size, only its rate counts.
        took: F64 = np.where(wanted > sizes[-1], times[-1] * wanted / sizes[-1], np.interp(wanted, sizes, times))
        return took


def find_hardware(trace: Trace, calibration: Calibration | None) -> Hardware:
    """Collect the constants of a trace's hardware: from a calibration of its GPU, the trace, and the shipped table."""
    sources: list[tuple[Origin, Constants]] = [("trace", observe(trace)), ("table", shipped().constants)]
    if calibration is not None:
        sources.insert(0, ("calibration", calibration.constants))
    chosen: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for origin, constants in reversed(sources):
        known = {field: value for field, value in asdict(constants).items() if isinstance(value, int | float)}
        chosen |= known
        origins |= dict.fromkeys(known, origin)
    table, names = shipped(), trace.device_names.values()
    here = calibration is not None or table.gpu in names
    gpu = next(iter(names), "")
    slower = 1.0 if here else next((slower for products, slower in _LINKS if products.search(gpu)), _PCIE_4)
    sized = {
        Kind.H2D: _curve([(origin, constants.h2d) for origin, constants in sources], slower, here=here),
        Kind.D2H: _curve([(origin, constants.d2h) for origin, constants in sources], slower, here=here),
    }
    calibrated = calibration.constants if calibration is not None else table.constants if here else Constants()
    seen = any(origin == "trace" for points in sized.values() for _, origin in points)
    doubt = None
    if not here:
        link = "" if seen else ", and the link rate is guessed"
        doubt = (
            f"Some constants are those of an {table.gpu.removeprefix('NVIDIA ')}, not of this GPU{link}. Run "
            "`overlapscope scenarios calibrate` on this GPU to measure them."
        )
    return Hardware(Constants(**chosen), origins, sized, calibrated, not here and not seen, doubt)


def _curve(
    sources: list[tuple[Origin, tuple[SizedTime, ...]]], slower: float, *, here: bool
) -> tuple[tuple[SizedTime, Origin], ...]:
    """Return the best source's sizes, and sizes of the other sources that are far from these.

    Other sources' times are scaled by the ratio of the link rates at the best source's sizes. If only another GPU's
    times are known, their interval allows for any generation of link.
    """
    points: list[tuple[SizedTime, Origin]] = []
    for origin, measured in sources:
        usual = low = high = _scale(points, measured)
        if not here and not points and origin == "table":
            usual, high = slower, _PCIE_3
        points += [
            (
                SizedTime(
                    bytes=point.bytes,
                    duration_ns=round(point.duration_ns * usual),
                    low_ns=round(point.low_ns * low),
                    high_ns=round(point.high_ns * high),
                ),
                origin,
            )
            for point in measured
            if all(not 1 / _MAX_SIZE_RATIO < point.bytes / other.bytes < _MAX_SIZE_RATIO for other, _ in points)
        ]
    return tuple(sorted(points, key=lambda pair: pair[0].bytes))


def _scale(points: list[tuple[SizedTime, Origin]], others: tuple[SizedTime, ...]) -> float:
    """Return how much longer copies take than by the other source, at the largest known size."""
    if not points or not others:
        return 1.0
    largest = max((point for point, _ in points), key=lambda point: point.bytes)
    sizes, times = [point.bytes for point in others], [point.duration_ns for point in others]
    by_others = np.interp(largest.bytes, sizes, times) * max(1.0, largest.bytes / sizes[-1])
    # Small copies, which latency dominates, don't show the link's rate.
    return float(largest.duration_ns / by_others) if largest.bytes >= 1 << 20 else 1.0


# -- Constants that a trace shows --------------------------------------------------------------------

LONG_BEFORE_NS = 20_000
"""Minimum time between the return of an op's launch call and the end of the op before it, for the op to have been
queued."""

MIN_OBSERVATIONS = 3
"""Minimum number of ops or calls of a kind for a median: a single op may have been held up."""

_MAX_QUEUED_OPS = 256
"""Maximum number of ops in a stream's queue for a call not to wait for room; the queue holds 1024."""

_TWO_WAY_NS, _TWO_WAY_SHARE = 50_000, 0.5
"""Minimum length alone, and minimum fraction of it beside the other direction, of copies that show the slowdown."""

_ENGINE = np.array([{Kind.COMM: Kind.COMPUTE}.get(kind, kind) for kind in Kind])
"""Engine of each kind of op: kernels of both kinds share the SMs."""

queries_capture = call_kinds.selects(r"(cuda|hip)StreamIsCapturing")
"""A trivial call, which reads a field; PyTorch makes it at every copy."""
launches_single_kernel = call_kinds.selects(r"(cuda|cu|hip|hipExt|hipModule)Launch(Cooperative)?Kernel(Ex|ExC)?")


def observe(trace: Trace) -> Constants:
    """Return the constants that a trace shows; None or empty for the others."""
    if not len(trace.gpu_ops):
        return Constants()
    seen = _Seen(trace)
    h2d, d2h = seen.copies(Kind.H2D), seen.copies(Kind.D2H)
    return_ns, sync_call = seen.synchronizes()
    graph_call, graph_node, graph_latency = seen.graph_launches()
    latency, starts = seen.start - seen.called, seen.idle & seen.first
    return Constants(
        h2d=h2d,
        d2h=d2h,
        h2d_two_way=seen.two_way(Kind.H2D, h2d),
        d2h_two_way=seen.two_way(Kind.D2H, d2h),
        launch_latency_ns=_positive(latency[starts & seen.kernel]),
        copy_latency_ns=_positive(latency[starts & seen.pinned]),
        kernel_gap_ns=seen.kernel_gap(),
        handover_ns=seen.handover(),
        return_ns=return_ns,
        sync_call_ns=sync_call,
        launch_call_ns=_median(seen.call_length[seen.first & seen.kernel & seen.room]),
        copy_call_ns=_median(seen.call_length[seen.first & seen.pinned & seen.room]),
        query_call_ns=_median(_lengths(trace, np.flatnonzero(queries_capture(trace.runtime_calls)))),
        graph_call_ns=graph_call,
        graph_node_call_ns=graph_node,
        graph_latency_ns=graph_latency,
        graph_gap_ns=seen.graph_gap(),
    )


def _median(values: I64) -> int | None:
    """Return the median, the lower of two; None for too few values."""
    middle = (len(values) - 1) // 2
    return int(np.partition(values, middle)[middle]) if len(values) >= MIN_OBSERVATIONS else None


def _positive(values: I64) -> int | None:
    """Return the median of times from the host's clock to the device's; None if the clocks disagree."""
    median = _median(values)
    return median if median is not None and median > 0 else None


def _lengths(trace: Trace, calls: Index) -> I64:
    return trace.runtime_calls.end_ns[calls] - trace.runtime_calls.start_ns[calls]


class _Seen:
    """The ops with a recorded launch, in the order of the launches; columns of equal length."""

    def __init__(self, trace: Trace) -> None:
        ops, calls = trace.gpu_ops, trace.runtime_calls
        launched = np.flatnonzero(ops.launch >= 0)
        called = calls.start_ns[ops.launch[launched]]
        self.trace = trace
        self.timelines = [build(trace, device) for device in trace.devices]
        self.row: Index = launched[np.lexsort((ops.start_ns[launched], called))]
        """Row of `Trace.gpu_ops`."""
        self.launch: I64 = ops.launch[self.row]
        self.called: I64 = calls.start_ns[self.launch]
        self.returned: I64 = calls.end_ns[self.launch]
        self.call_length: I64 = self.returned - self.called
        self.start: I64 = ops.start_ns[self.row]
        self.end: I64 = ops.end_ns[self.row]
        self.device: I64 = ops.device[self.row].astype(np.int64)
        self.lane: I64 = stream_keys(self.device, ops.stream[self.row])
        """Device and stream."""
        self.kind = ops.kind[self.row]
        self.compute: Bool = self.kind == Kind.COMPUTE
        self.graph: Bool = call_kinds.launches_graph(calls)[self.launch]
        self.kernel: Bool = self.compute & launches_single_kernel(calls)[self.launch]
        """Mask of the kernels that were launched individually."""
        on_host = ops.host_memory[self.row] == Memory.PINNED
        self.pinned: Bool = ops.is_copy[self.row] & on_host & call_kinds.copies_async(calls)[self.launch]
        """Mask of the asynchronous copies from or to pinned memory, outside graphs."""
        self.first: Bool = np.append(True, self.launch[1:] != self.launch[:-1])[: len(self.row)]
        """Mask of the first op of each launch."""
        self.reach: I64 = np.maximum.accumulate(self.end)
        """Instant at which everything launched so far has ended."""
        busy = union(ops.start_ns, ops.end_ns)
        judged = max(timeline.judged_from_ns for timeline in self.timelines)
        done = np.append(judged, np.maximum(self.reach, judged))[:-1]
        self.idle: Bool = (done <= self.called) & ~contains(busy, self.called)
        """Mask of the ops whose launch was called while the devices were idle, so that nothing could hold them. The
        state of the devices before the first op, and in the lead-in, is unknown."""
        self.before: I64 = np.full(len(self.row), -1, np.int64)
        """Previous op launched on the stream; -1 for none."""
        self.room: Bool = np.ones(len(self.row), np.bool_)
        """Mask of the ops launched while the stream's queue was far from full."""
        for _, on_lane in rows_by(self.lane):
            self.before[on_lane[1:]] = on_lane[:-1]
            ended = np.searchsorted(np.maximum.accumulate(self.end[on_lane]), self.called[on_lane], side="right")
            self.room[on_lane] = np.arange(len(on_lane)) - ended < _MAX_QUEUED_OPS
        self.event_calls: Index = np.flatnonzero(call_kinds.records_event(calls) | call_kinds.waits_event(calls))

    # -- Copies -----------------------------------------------------------------------------------

    def copies(self, direction: Kind) -> tuple[SizedTime, ...]:
        """Return the times of a direction's pinned copies, by size, with no other copy beside them.

        Empty for uploads if the program pins memory during steps: data that the host has just written takes longer to
        read (85 instead of 75 us for 4 MB, traces/laboratory/pin_strategies).
        """
        if direction == Kind.H2D and len(pinning(self.trace)):
            return ()
        sizes, lengths = list[I64](), list[I64]()
        for timeline in self.timelines:
            rows, beside = _pinned_copies(timeline, direction)
            rows = rows[beside == 0]
            sizes.append(timeline.ops.bytes[rows])
            lengths.append((timeline.ops.end_ns - timeline.ops.start_ns)[rows])
        took, copies = np.concatenate(lengths), list[SizedTime]()
        for size, rows in rows_by(np.concatenate(sizes)):
            ordered, last = np.sort(took[rows]).tolist(), len(rows) - 1
            if len(rows) >= MIN_OBSERVATIONS:
                # The 90th percentile rounds up, so that it is the slowest of few copies.
                median, low, high = (ordered[at] for at in (last * 5 // 10, last // 10, -(-last * 9 // 10)))
                copies.append(SizedTime(bytes=size, duration_ns=median, low_ns=low, high_ns=high))
        return tuple(copies)

    def two_way(self, direction: Kind, alone: tuple[SizedTime, ...]) -> float | None:
        """Return the rate of copies beside the other direction, as a fraction of their rate alone.

        A copy that takes `alone` by itself, and took `duration`, `beside` of it at the rate `factor`, did the same
        work: `duration - beside + factor * beside = alone`.
        """
        known_sizes = np.array([copy.bytes for copy in alone], np.int64)
        alone_ns = np.array([copy.duration_ns for copy in alone], np.int64)
        factors: list[F64] = []
        for timeline in self.timelines:
            rows, beside = _pinned_copies(timeline, direction)
            size, took = timeline.ops.bytes[rows], (timeline.ops.end_ns - timeline.ops.start_ns)[rows]
            place = np.searchsorted(known_sizes, size)
            by_itself = np.where(pick(known_sizes, place) == size, pick(alone_ns, place, 0), 0)
            tells = (by_itself >= _TWO_WAY_NS) & (beside > 0) & (beside >= _TWO_WAY_SHARE * took)
            factors.append(1 - (took - by_itself)[tells] / beside[tells])
        all_factors = np.sort(np.concatenate(factors))
        return (
            float(np.clip(all_factors[len(all_factors) // 2], 0.01, 1.0))
            if len(all_factors) >= MIN_OBSERVATIONS
            else None
        )

    # -- Gaps -------------------------------------------------------------------------------------

    def kernel_gap(self) -> int | None:
        """Return the gap between kernels of a stream with no event between them."""
        events = self.trace.runtime_calls.start_ns[self.event_calls]
        before = self.before
        passed = np.searchsorted(events, self.called)
        queued = (before >= 0) & self.kernel & self.kernel[before] & (passed == passed[before])
        queued &= self.returned <= self.end[before] - LONG_BEFORE_NS
        return self._gap(np.flatnonzero(queued), self.end[before])

    def handover(self) -> int | None:
        """Return the gap after the op on another stream that an event wait held an op for, and nothing else.

        Gaps between engines, as from a copy to a kernel, are longer than gaps between kernels. Gaps between kernels
        count only if there are no others.
        """
        ops = self.trace.gpu_ops
        ended, source = (np.full(len(ops), -1, np.int64) for _ in range(2))
        for timeline in self.timelines:
            edges = find_edges(self.trace, timeline)
            edges = edges.take((edges.confidence >= HIGH) & (edges.source >= 0))
            last, here = edges.last_to_end(len(timeline.ops)), np.flatnonzero(ops.device == timeline.device)
            ended[here], source[here] = pick(edges.source_end_ns, last), pick(edges.source_op, last)
        since, before = ended[self.row], np.where(self.before >= 0, self.end[self.before], -1)
        waited = (since >= 0) & ~self.graph & (before <= since) & (self.returned <= since - LONG_BEFORE_NS)
        across = waited & (_ENGINE[self.kind] != _ENGINE[ops.kind[source[self.row]]])
        gap = self._gap(np.flatnonzero(across), since)
        return self._gap(np.flatnonzero(waited), since) if gap is None else gap

    def _gap(self, rows: Index, since: I64) -> int | None:
        """Return the median time from an instant to each op's start, if its engine was idle meanwhile."""
        gaps = [np.empty(0, np.int64)]
        for timeline in self.timelines:
            engines = (
                (Kind.COMPUTE, join(timeline.compute, timeline.comm)),
                (Kind.H2D, timeline.h2d),
                (Kind.D2H, timeline.d2h),
            )
            here = rows[self.device[rows] == timeline.device]
            for kind, engine in engines:
                on_engine = here[_ENGINE[self.kind[here]] == kind]
                free = covered(engine, since[on_engine], self.start[on_engine]) == 0
                gaps.append((self.start[on_engine] - since[on_engine])[free])
        gap = _median(np.concatenate(gaps))
        # Dependent launches may overlap their predecessors.
        return None if gap is None else max(gap, 0)

    # -- Synchronizes -----------------------------------------------------------------------------

    def synchronizes(self) -> tuple[int | None, int | None]:
        """Return the time from the end of a synchronize's last op to its return, and its length without a wait."""
        trace, calls = self.trace, self.trace.runtime_calls
        rows = find_blocking(trace).row
        rows = rows[call_kinds.synchronises(calls)[rows]]
        at, ends = calls.start_ns[rows], calls.end_ns[rows]
        holds = find_holds(trace, Reading.LIKELY)
        last_of_call, last_op = np.full(len(calls), EARLIEST_NS), find_lanes(trace).items.last_op
        np.maximum.at(last_of_call, holds.host.call, trace.gpu_ops.end_ns[last_op[holds.host.item]])
        known = among(rows, holds.known_calls)
        # If it is unknown what a call waits for, it may be everything launched before.
        reach = pick(self.reach, np.searchsorted(self.called, at) - 1, EARLIEST_NS)
        last = np.where(known, last_of_call[rows], reach)
        is_certain = known | (len(distinct(self.lane)) == 1)
        waited = last > at
        return _positive((ends - last)[is_certain & waited]), _median((ends - at)[~waited])

    # -- Graphs -----------------------------------------------------------------------------------

    def graph_launches(self) -> tuple[int | None, float | None, int | None]:
        """Return the length of a single op's graph launch, its growth per further op, and the latency of the first op.

        The line through the medians by size has the same relative error everywhere. A graph's first op starts about
        when the call returns, whatever its length, so the time between is measured on graphs of any size.
        """
        launch, ops = np.unique(self.launch[self.graph], return_counts=True)
        sizes = distinct(ops)
        if len(sizes) < 2:
            return None, None, None
        length = _lengths(self.trace, launch)
        medians = np.array([np.median(length[ops == size]) for size in sizes])
        slope, base = np.polyfit(sizes - 1.0, medians, 1, w=1 / np.maximum(medians, 1))
        if slope < 0 or base <= 0:
            # The length depends on something else.
            return None, None, None
        behind = _median((self.start - self.returned)[self.idle & self.first & self.graph])
        latency = None if behind is None or base + behind <= 0 else round(base + behind)
        return round(base), float(slope), latency

    def graph_gap(self) -> int | None:
        """Return the gap between the ops of graphs that are a chain of kernels."""
        rows = np.flatnonzero(self.graph)
        if not len(rows):
            return None
        same = ~self.first[rows][1:]
        gap = self.start[rows][1:] - self.end[rows][:-1]
        number = np.cumsum(self.first[rows]) - 1
        broken = ~self.compute[rows]
        broken[1:] |= same & (gap < 0)
        chain = np.bincount(number, broken) == 0
        return _median(gap[same & chain[number[1:]]])


def _pinned_copies(timeline: Timeline, direction: Kind) -> tuple[Index, I64]:
    """Return the rows of `Timeline.ops` of pinned copies with no other copy of their direction beside them.

    Also return how long the other direction copied meanwhile.
    """
    ops = timeline.ops
    rows = np.flatnonzero(ops.kind == direction)
    start, end = ops.start_ns[rows], ops.end_ns[rows]
    lowest, highest = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    apart = start >= np.append(lowest, np.maximum.accumulate(end))[:-1]
    apart &= end <= np.append(start, highest)[1:]
    rows = rows[apart & (ops.host_memory[rows] == Memory.PINNED) & (ops.bytes[rows] > 0)]
    other = timeline.d2h if direction == Kind.H2D else timeline.h2d
    return rows, covered(other, ops.start_ns[rows], ops.end_ns[rows])
