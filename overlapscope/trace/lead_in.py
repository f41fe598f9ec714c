"""Lead-in of a recording, in which a device works off what was launched before the recording began."""

from __future__ import annotations

import numpy as np

from overlapscope.trace.model import GpuOps, RuntimeCalls
from overlapscope.trace.op_names import is_migration


def lead_in_end(ops: GpuOps, calls: RuntimeCalls, start: int) -> int | None:
    """Return the end of the last op that was launched before the recording began.

    Correlations are assigned in launch order, so an op without a recorded launch was launched earlier exactly if its
    correlation is below every recorded one; later gaps in the records have higher ones. An op without a correlation
    counts if it begins before any op with a recorded launch.
    """
    launched = ops.launch >= 0
    if not launched.any():
        return None
    # No call launches a page migration.
    orphans = np.flatnonzero(~launched & ~ops.named(is_migration))
    correlations = calls.correlation[calls.correlation > 0]
    earliest = correlations.min() if len(correlations) else 0
    nameless = ops.correlation[orphans] <= 0
    before = np.where(
        nameless, ops.start_ns[orphans] < ops.start_ns[launched].min(), ops.correlation[orphans] < earliest
    )
    return max(start, int(ops.end_ns[orphans[before]].max(initial=start)))
