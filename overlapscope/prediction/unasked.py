"""Choice of the recordings that are replayed by default."""

from __future__ import annotations

from overlapscope.base.grouping import distinct, distinct_rows
from overlapscope.trace.model import Trace

MOST_OPS = 200_000
"""Maximum number of GPU ops to replay by default: 200,000 synthetic ops add 0.9 s to an analysis of 0.4 s.
`overlapscope whatif` replays any recording."""
_MOST_DEVICES = 16
_MOST_LANES = 256
"""Maximum number of streams and threads to replay by default. Each costs some milliseconds, however little it does."""


def replayed_unasked(trace: Trace) -> bool:
    """Return whether a recording is small enough, in ops and lanes, to replay it by default."""
    return len(trace.gpu_ops) <= MOST_OPS and of_few_lanes(trace)


def of_few_lanes(trace: Trace) -> bool:
    """Return whether a recording has so few devices, streams and threads that it can be replayed by default."""
    if len(trace.devices) > _MOST_DEVICES:
        return False
    streams = len(distinct_rows((trace.gpu_ops.device, trace.gpu_ops.stream)))
    return streams + len(distinct(trace.runtime_calls.thread)) <= _MOST_LANES
