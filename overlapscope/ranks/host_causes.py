"""Causes of exposed communication of a rank without a GPU, as `analysis.exposed_comm` finds them on a device.

If several collectives run at once, the piece belongs to the collective that the starting thread waits for, and among
several to the last to end. If the thread waits for no collective, its next op could have run beside the piece, but the
thread was busy otherwise. If the awaited collective began after an earlier collective on its backend's thread had
ended, the earlier one kept it from running beside compute. The rest outlasted the compute beside it, or there was none.

A thread that goes on long after a collective has ended may have waited or worked, so the cause is unknown. The input of
a collective is not recorded, so late starts look like late inputs, and neither is found.
"""

from __future__ import annotations

import numpy as np

from overlapscope.analysis.blockers import cut_up, running_in
from overlapscope.analysis.pieces import first_part
from overlapscope.base.grouping import first_of_each, rows_by
from overlapscope.base.intervals import I64, Bool, Intervals, covered, union
from overlapscope.catalog.causes import COMM_CAUSES, CommCause
from overlapscope.catalog.causes import COMM_RANK as RANK
from overlapscope.ranks.host_collectives import HostCollectives, NotStarted, find_host_collectives
from overlapscope.trace.model import Trace


def host_causes(trace: Trace, exposed: Intervals, compute: Intervals) -> tuple[Intervals, ...]:
    """Return the exposed communication by cause, in the order of `COMM_CAUSES`.

    Args:
        trace: A trace with steps and collectives on the host.
        exposed: Times in which collectives ran and nothing computed.
        compute: Times in which ops computed.

    Returns:
        The times of each cause; nothing if it is unknown how collectives were started.
    """
    try:
        return attribute(find_host_collectives(trace), exposed, compute)
    except NotStarted:
        return ()


def attribute(found: HostCollectives, exposed: Intervals, compute: Intervals) -> tuple[Intervals, ...]:
    """Return the exposed communication by cause, given what started collectives and waited for them."""
    ranges = found.ranges
    wait_of = _wait_of(found)
    bounds = np.array([(wait.start_ns, wait.end_ns) for wait in found.waits], np.int64).reshape(len(found.waits), 2)
    prompt = np.array([wait.prompt for wait in found.waits], np.bool_)
    start, end = cut_up(exposed, np.concatenate([ranges.start_ns, ranges.end_ns, bounds.ravel()]))
    order = np.argsort(ranges.start_ns, kind="stable")
    which, piece = running_in(start, ranges.start_ns[order], ranges.end_ns[order])
    op = order[which]
    awaited = _inside(bounds, wait_of[op], start[piece])
    # The collective that the thread waits for decides, and among several the last to end.
    chosen = first_of_each(piece, ~awaited, -ranges.end_ns[op])
    op, awaited = op[chosen], awaited[chosen]

    beside = covered(compute, ranges.start_ns[op], start) > 0
    cause = np.where(beside, RANK[CommCause.WAITING_OR_TRANSFER], RANK[CommCause.NO_COMPUTE])
    doubtful = awaited & ~np.append(prompt, False)[wait_of[op]]
    cause[doubtful] = RANK[CommCause.UNKNOWN]
    cause[~awaited] = np.where(_in_any(bounds, start), RANK[CommCause.UNKNOWN], RANK[CommCause.LATE_COMPUTE])[~awaited]
    kept_ns = _kept_from_compute(found, compute)
    blocked = start + first_part(kept_ns[op], op, np.where(awaited & ~doubtful, end - start, 0))
    result = []
    for number in range(len(COMM_CAUSES)):
        own = cause == number
        begins, ends = blocked[own], end[own]
        if number == RANK[CommCause.BLOCKED_BEHIND]:
            begins, ends = np.append(begins, start), np.append(ends, blocked)
        result.append(union(begins, ends))
    return tuple(result)


def _wait_of(found: HostCollectives) -> I64:
    """Return the number of the wait in which each collective ended; -1 for none."""
    wait_of = np.full(len(found.ranges), -1)
    by_end = np.argsort(found.ranges.end_ns, kind="stable")
    ends = found.ranges.end_ns[by_end]
    for number, wait in enumerate(found.waits):
        first, last = np.searchsorted(ends, (wait.start_ns, wait.ended_ns), side="right")
        ended = by_end[first:last]
        wait_of[ended[(found.issue_ns[ended] <= wait.start_ns) & (wait_of[ended] < 0)]] = number
    return wait_of


def _inside(bounds: I64, wait: I64, at: I64) -> Bool:
    """Return a mask of the times that lie in a wait given by its number; -1 for none."""
    known = np.append(bounds, [[0, 0]], axis=0)[wait]
    inside: Bool = (wait >= 0) & (at >= known[:, 0]) & (at < known[:, 1])
    return inside


def _in_any(bounds: I64, at: I64) -> Bool:
    """Return a mask of the times that lie in any wait."""
    last = np.searchsorted(bounds[:, 0], at, side="right") - 1
    return _inside(bounds, last, at)


def _kept_from_compute(found: HostCollectives, compute: Intervals) -> I64:
    """Return how much longer each collective would have run beside compute without those before it on its thread."""
    ranges = found.ranges
    before = np.full(len(ranges), np.iinfo(np.int64).min)
    for _, rows in rows_by(ranges.thread):
        rows = rows[np.argsort(ranges.start_ns[rows], kind="stable")]
        before[rows[1:]] = ranges.end_ns[rows[:-1]]
    held = before > found.issue_ns
    return np.where(held, covered(compute, np.minimum(found.issue_ns, ranges.start_ns), ranges.start_ns), 0)
