"""Reasons why an op ran while nothing computed that hold for copies and communication alike."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct

from overlapscope.analysis.holds import Edges
from overlapscope.analysis.host import Blocking, last_before
from overlapscope.analysis.host_work import launchers
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import pick
from overlapscope.base.grouping import distinct
from overlapscope.base.intervals import I64, Bool, Index, covered, expand, few_at_once
from overlapscope.trace.model import Trace

PROMPT_NS = 50_000
"""Maximum time from a call's return to the start of an op that nothing on the device delayed."""

QUEUE_NS = 50_000
"""Maximum time from the end of an op to the start of the next one queued on the same engine or stream."""

NEVER = np.iinfo(np.int64).max


class DeviceRecording(Struct, frozen=True, eq=False, weakref=True):
    """Data in which causes are looked up."""

    trace: Trace
    timeline: Timeline
    edges: Edges
    blocking: Blocking
    bounds: I64
    """Instants between which supply and demand are compared, including the window's edges."""
    issued: I64
    """Time at which each op's launch call returned; `NEVER` where not recorded."""


MOST_AT_ONCE: Final = 32
"""Maximum number of ops to look at in a piece of exposed time."""


def recorded(trace: Trace, timeline: Timeline, edges: Edges, blocking: Blocking, periods: I64) -> DeviceRecording:
    """Return the data on a device. `periods` are the instants at which steps begin.

    Anything that runs before the first step counts for that step, whose copies run before its first compute.
    """
    judged = timeline.judged_from_ns
    bounds = distinct(np.concatenate([[timeline.start_ns, judged, timeline.end_ns], periods[1:]]))
    issued = pick(trace.runtime_calls.end_ns, timeline.ops.launch, NEVER)
    return DeviceRecording(trace, timeline, edges, blocking, bounds, issued)


def running_in(start: I64, begin: I64, end: I64) -> tuple[Index, Index]:
    """Return which ops run in which pieces, given by their starts. Pieces must be cut at the ops' edges.

    If a piece has more than `MOST_AT_ONCE` ops, only those that end last count. A GPU hardly runs so many at once.

    Returns:
        Places of the ops and of the pieces, one for each pair, by op.
    """
    first, last = np.searchsorted(start, begin, side="left"), np.searchsorted(start, end, side="left")
    return expand(first, few_at_once(first, last, end, MOST_AT_ONCE))


def host_was_blocked(recording: DeviceRecording, blocking: I64, launch: I64, since: I64, until: I64) -> Bool:
    """Select launches that came late because the host was blocked.

    For at least half of the time from `since` to `until`, and before the launch, its thread was in a blocking call, or
    did nothing while the thread of the previous launch was in one.

    Args:
        recording: The data.
        blocking: Rows of `Trace.runtime_calls` of the blocking calls that count.
        launch: Rows of `Trace.runtime_calls`; -1 where unknown.
        since: Start of the time in which the launch was missed.
        until: End of that time.

    Returns:
        Mask of `launch`.
    """
    calls = recording.trace.runtime_calls
    blocked = np.zeros(len(launch), np.bool_)
    waiting = calls.take(blocking)
    rows = np.flatnonzero(launch >= 0)
    for launcher, which in launchers(recording.trace, launch[rows]):
        of_threads = rows[which]
        begin, end = since[of_threads], until[of_threads]
        before = np.minimum(end, calls.start_ns[launch[of_threads]])
        blocked[of_threads] = 2 * covered(launcher.inside(waiting), begin, before) >= end - begin
    return blocked


def last_blocking(recording: DeviceRecording, launch: I64, until: I64) -> I64:
    """Return the last blocking call that begins before an instant, on the launch's thread or else on any; or -1.

    Calls and launches are rows of `Trace.runtime_calls`.
    """
    calls = recording.trace.runtime_calls
    return last_before(calls, recording.blocking.row, pick(calls.thread, launch), until)
