"""Single copies of one device: size, bandwidth, exposed time and its cause."""

from __future__ import annotations

import numpy as np
from msgspec.structs import asdict

from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.groups import LARGE_BYTES, sites_of_ops
from overlapscope.analysis.pieces import main_cause
from overlapscope.base.columns import F64
from overlapscope.base.intervals import I64, covered
from overlapscope.trace.host import Where
from overlapscope.trace.model import I8, GpuOps, Kind, Memory, Trace


class EachCopy(GpuOps, frozen=True):
    """Copies that ran inside the device's windows, one row each, sorted by start.

    If several copies ran at once while nothing computed, the exposed time counts for the copy that decided its cause.
    So `exposed_ns` adds up to the report's exposed copy, and a copy beside another may have none.
    """

    row: I64
    """Row of `Timeline.ops`."""
    exposed_ns: I64
    """Exposed time inside the windows."""
    cause: I8
    """Index into `COPY_CAUSES` of the main cause of the exposed time; `NO_CAUSE` where there is none."""

    @property
    def duration_ns(self) -> I64:
        """Duration of each copy, including time outside the windows."""
        return self.end_ns - self.start_ns

    @property
    def gb_per_s(self) -> F64:
        """1e9 bytes per second over the copy's own duration; NaN where its size is not recorded."""
        return np.where(self.bytes >= 0, self.bytes / self.duration_ns, np.nan)


def list_copies(device: DeviceAnalysis) -> EachCopy:
    """Return every copy of a device with a duration."""
    ops, windows = device.timeline.ops, device.windows
    rows = np.flatnonzero(ops.is_copy)
    rows = rows[covered(windows, ops.start_ns[rows], ops.end_ns[rows]) > 0]
    pieces = device.exposed.inside(windows)
    copy, length = np.searchsorted(rows, pieces.op), pieces.length_ns
    exposed = np.zeros(len(rows), np.int64)
    np.add.at(exposed, copy, length)
    cause = main_cause(copy, pieces.cause, length, len(rows))
    return EachCopy(**asdict(ops.take(rows)), row=rows, exposed_ns=exposed, cause=cause)


def peak_gb_per_s(copies: EachCopy, direction: Kind) -> float | None:
    """Return the best rate of large copies of pinned memory in one direction, which the link can reach."""
    chosen = (copies.kind == direction) & (copies.host_memory == Memory.PINNED) & (copies.bytes >= LARGE_BYTES)
    return float(copies.gb_per_s[chosen].max()) if chosen.any() else None


def issuers(trace: Trace, device: DeviceAnalysis, rows: I64) -> list[Where]:
    """Return the call site of each of the given rows of `Timeline.ops`."""
    sites = sites_of_ops(trace, device.timeline.ops.take(rows))
    return [sites.site_at(trace, number) for number in range(len(rows))]
