"""Single communication kernels of one device: exposed time, its cause, what let it begin, lead and prefetch depth."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from overlapscope.analysis.comm_kinds import CommKinds, comm_kinds
from overlapscope.analysis.comm_order import CommOps, lead_ns
from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.pieces import main_cause
from overlapscope.analysis.prefetch import GATHERS, NO_DEPTH, prefetch_depths
from overlapscope.base.grouping import rows_by
from overlapscope.base.intervals import I64, covered
from overlapscope.trace.model import I8, Trace


class EachComm(Struct, frozen=True, eq=False):
    """Communication kernels that ran inside the device's windows, sorted by start; all arrays have one row for each."""

    kinds: CommKinds
    """Collective and group of each."""
    begun: CommOps
    """Reasons why each began when it did."""
    exposed_ns: I64
    """Exposed time inside the windows that belongs to the kernel; it adds up to the report's."""
    cause: I8
    """Index into `COMM_CAUSES` of the main cause of the exposed time; `NO_CAUSE` where there is none."""
    lead_ns: I64
    """Time from its end to the start of the first compute that waits for it; `NO_LEAD` where none does."""
    prefetch_depth: I64
    """Depth of an all-gather among those of its kind (`prefetch.py`); `NO_DEPTH` where unknown, and for others."""


def list_comm(trace: Trace, device: DeviceAnalysis) -> EachComm:
    """Return every communication kernel of a device with a duration."""
    ops, windows = device.timeline.ops, device.windows
    begun = device.comm
    begun = begun.take(covered(windows, ops.start_ns[begun.op], ops.end_ns[begun.op]) > 0)
    pieces = device.exposed_comm.inside(windows)
    row, length = np.searchsorted(begun.op, pieces.op), pieces.length_ns
    exposed = np.zeros(len(begun.op), np.int64)
    np.add.at(exposed, row, length)
    kinds = comm_kinds(trace, ops.take(begun.op))
    depth = np.full(len(begun.op), NO_DEPTH)
    for number, rows in rows_by(kinds.kind):
        if GATHERS.search(kinds.kinds[number].collective):
            depth[rows] = prefetch_depths(ops, trace.runtime_calls, begun.take(rows))
    return EachComm(
        kinds=kinds,
        begun=begun,
        exposed_ns=exposed,
        cause=main_cause(row, pieces.cause, length, len(begun.op)),
        lead_ns=lead_ns(ops, begun),
        prefetch_depth=depth,
    )
