"""Single copies of one device: size, bandwidth, exposed time and its cause."""

from __future__ import annotations

import numpy as np

from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.groups import LARGE_BYTES, sites_of_ops
from overlapscope.analysis.pieces import main_cause
from overlapscope.base.columns import F64, Columns
from overlapscope.base.intervals import I64, covered
from overlapscope.trace.host import CallSite
from overlapscope.trace.model import I8, Kind, Memory, Trace


class EachCopy(Columns, frozen=True):
    """Copies that ran inside the device's windows, one row each, sorted by start.

    If several copies ran at once while nothing computed, the exposed time counts for the copy that decided its cause.
    So `exposed_ns` adds up to the report's exposed copy, and a copy beside another may have none.
    """

    row: I64
    """Row of `Timeline.ops`."""
    direction: I8
    """Direction, `Kind.H2D` or `Kind.D2H`."""
    memory: I8
    """Kind of the host's memory, a `Memory`."""
    start_ns: I64
    end_ns: I64
    bytes: I64
    """Size; -1 where not recorded."""
    gb_per_s: F64
    """1e9 bytes per second over the copy's own duration; NaN where its size is not recorded."""
    exposed_ns: I64
    """Exposed time inside the windows."""
    cause: I8
    """Index into `COPY_CAUSES` of the main cause of the exposed time; `NO_CAUSE` where there is none."""

    @property
    def duration_ns(self) -> I64:
        """Duration of each copy, including time outside the windows."""
        return self.end_ns - self.start_ns


def list_copies(device: DeviceAnalysis) -> EachCopy:
    """Return every copy of a device with a duration."""
    ops, windows = device.timeline.ops, device.windows
    rows = np.flatnonzero(ops.is_copy)
    rows = rows[covered(windows, ops.start_ns[rows], ops.end_ns[rows]) > 0]
    start, end, size = ops.start_ns[rows], ops.end_ns[rows], ops.bytes[rows]

    pieces = device.exposed.inside(windows)
    copy, length = np.searchsorted(rows, pieces.op), pieces.length_ns
    exposed = np.zeros(len(rows), np.int64)
    np.add.at(exposed, copy, length)
    return EachCopy(
        row=rows,
        direction=ops.kind[rows],
        memory=ops.host_memory[rows],
        start_ns=start,
        end_ns=end,
        bytes=size,
        gb_per_s=np.where(size >= 0, size / (end - start), np.nan),
        exposed_ns=exposed,
        cause=main_cause(copy, pieces.cause, length, len(rows)),
    )


def peak_gb_per_s(copies: EachCopy, direction: Kind) -> float | None:
    """Return the best rate of large copies of pinned memory in one direction, which the link can reach."""
    chosen = (copies.direction == direction) & (copies.memory == Memory.PINNED) & (copies.bytes >= LARGE_BYTES)
    return float(copies.gb_per_s[chosen].max()) if chosen.any() else None


def issuers(trace: Trace, device: DeviceAnalysis, rows: I64) -> list[CallSite]:
    """Return the call site of each of the given rows of `Timeline.ops`."""
    sites = sites_of_ops(trace, device.timeline.ops.take(rows))
    return [sites.site_at(trace, number) for number in range(len(rows))]
