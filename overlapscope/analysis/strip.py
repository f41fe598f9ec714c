"""Activity of each stream in equal slices of time: the data of a timeline strip."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from overlapscope.analysis.average import frame_of, judged_steps, median_step
from overlapscope.analysis.figures import TimeFigures, Window
from overlapscope.analysis.results import Device
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.grouping import rows_by
from overlapscope.base.intervals import I64, covered, union
from overlapscope.trace.model import Kind


class Lane(Struct, frozen=True, eq=False):
    """One stream of a strip."""

    stream: int
    busy_ns: I64
    """Time of each kind in each slice, of shape `(len(Kind), slices)`."""


class StripExtent(Struct, frozen=True):
    """The most informative part of a device's window."""

    label: str
    """Step or range; empty for all time after the lead-in."""
    of: int
    """Number of such steps or ranges, among which this one has the median length."""
    window: Window
    is_all: bool = False
    """True if it is all that was recorded, without a lead-in."""


class Strip(Struct, frozen=True, eq=False):
    """A part of one device's window, divided into slices."""

    extent: StripExtent
    slice_ns: I64
    """Length of each slice."""
    lanes: tuple[Lane, ...]
    """Lanes by stream id. Streams that ran nothing here are left out."""
    left_out: int
    """Number of active streams left out to keep the strip small."""
    exposed_copy_ns: I64
    idle_ns: I64

    @property
    def span_ns(self) -> int:
        """Length of the part."""
        return self.extent.window.end_ns - self.extent.window.start_ns


def measure(timeline: Timeline, device: Device, *, scope: str = "window", slices: int, lanes: int = 8) -> Strip:
    """Measure the most informative part of a device's window, on at most `lanes` streams, the busiest ones.

    Returns:
        The part (`most_informative`), in `slices` slices of equal length.
    """
    extent = most_informative(device, scope)
    start, end = extent.window.start_ns, extent.window.end_ns
    slices = max(1, min(slices, end - start))
    edges = start + (end - start) * np.arange(slices + 1, dtype=np.int64) // slices
    ops = timeline.ops
    inside = np.flatnonzero((ops.start_ns < end) & (ops.end_ns > start))
    streams = ops.stream[inside]
    measured = []
    for stream, which in rows_by(streams):
        rows = inside[which]
        busy = np.zeros((len(Kind), slices), np.int64)
        for kind in Kind:
            of_kind = rows[ops.kind[rows] == kind]
            if len(of_kind):
                busy[kind] = covered(union(ops.start_ns[of_kind], ops.end_ns[of_kind]), edges[:-1], edges[1:])
        measured.append(Lane(stream, busy))
    kept = sorted(measured, key=lambda lane: -int(lane.busy_ns.sum()))[:lanes]
    return Strip(
        extent=extent,
        slice_ns=np.diff(edges),
        lanes=tuple(sorted(kept, key=lambda lane: lane.stream)),
        left_out=len(measured) - len(kept),
        exposed_copy_ns=covered(timeline.exposed_copy, edges[:-1], edges[1:]),
        idle_ns=covered(timeline.idle, edges[:-1], edges[1:]),
    )


def most_informative(device: Device, scope: str = "window") -> StripExtent:
    """Return the occurrence of median length of the step or range `scope`, or of the judged steps.

    If no step is judged, or that step shows little of the time that an average step loses, it is all time after the
    lead-in.
    """
    candidates = [period for period in (*device.steps, *device.ranges) if period.name == scope]
    if scope == "window" and device.per_step is not None:
        candidates = [device.steps[number] for number in judged_steps(device)]
    shown = median_step(candidates)
    if shown is None or (scope == "window" and 2 * _lost_share(shown) < _lost_share(frame_of(device))):
        whole = device if device.judged is None else device.judged
        return StripExtent("", 1, whole.window, whole.window == device.window)
    return StripExtent(shown.name, len(candidates), shown.window)


def _lost_share(part: TimeFigures) -> float:
    return 1 - part.buckets.compute_ns / part.span_ns if part.span_ns else 0.0
