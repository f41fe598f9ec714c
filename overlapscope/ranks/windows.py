"""Judged windows of the ranks, and the time that some communication takes in them.

Each rank's window begins with the first and ends with the last step that is judged on all ranks. Without such steps, it
is the whole time after the lead-in. Each nanosecond of it in which some kernel runs is hidden or exposed. It is also
waiting for the last rank or a message's other side, transfer, or not judged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from overlapscope.base.columns import mask_of
from overlapscope.base.intervals import EMPTY, I64, Bool, clip, covered, total, union
from overlapscope.ranks.collectives import of_whole_groups
from overlapscope.ranks.comm_result import CommTime
from overlapscope.ranks.reduced import ReducedRank, stated_world_size
from overlapscope.ranks.waits import Axis, RankWaits


class JudgedWindows(Struct, frozen=True, eq=False):
    """The judged window of each rank, and what all kernels do in it. Times are on the common axis."""

    axis: Axis
    start_ns: I64
    """Start of each kernel, cut at its rank's window."""
    end_ns: I64
    """End of each kernel, cut at its rank's window; not after the start if none of it is inside."""
    begins: Bool
    """True for kernels that begin inside."""
    judged: Bool
    """True for kernels whose wait is known."""
    waited_until_ns: I64
    """End of each kernel's wait, cut at its rank's window."""
    judged_until_ns: I64
    """End of the time that is known to be waiting or transfer: the end of the wait if members aren't recorded."""

    def inside(self, rows: I64) -> I64:
        """Return those of some kernels that begin or run inside."""
        return rows[self.begins[rows] | (self.end_ns[rows] > self.start_ns[rows])]


def judged_windows(ranks: Sequence[ReducedRank], waits: RankWaits) -> JudgedWindows:
    """Return the windows of the steps that all ranks judge; without any, of the time after the lead-in."""
    axis, met, kernels = Axis(ranks), waits.meetings.row, waits.meetings.kernels
    judged = axis.windows(waits.steps)
    begin, end = judged.starts[kernels.rank], judged.ends[kernels.rank]
    start = kernels.start_ns + axis.shift[kernels.rank]
    waited = np.zeros(len(start), np.int64)
    waited[met] = waits.arrivals.waited_ns
    whole = of_whole_groups(waits.meetings, stated_world_size(ranks))
    messages = waits.messages.kernel
    waited[messages], whole[messages] = waits.messages.waited_ns, True
    end_ns, waited_until_ns = (
        np.clip(side, begin, end) for side in (kernels.end_ns + axis.shift[kernels.rank], start + waited)
    )
    return JudgedWindows(
        axis=axis,
        start_ns=np.clip(start, begin, end),
        end_ns=end_ns,
        begins=(start >= begin) & (start < end),
        judged=mask_of(np.concatenate([met, messages]), len(start)),
        waited_until_ns=waited_until_ns,
        judged_until_ns=np.where(whole, end_ns, waited_until_ns),
    )


def time_in(windows: JudgedWindows, rows: I64) -> CommTime:
    """Return the time in which some kernels run, and its parts."""
    matched = rows[windows.judged[rows]]
    busy = union(windows.start_ns[rows], windows.end_ns[rows])
    judged = union(windows.start_ns[matched], windows.judged_until_ns[matched])
    waiting = union(windows.start_ns[matched], windows.waited_until_ns[matched])
    exposed = clip(windows.axis.exposed, busy.starts[0], busy.ends[-1]) if len(busy.starts) else EMPTY
    busy_ns, judged_ns, waiting_ns = total(busy), total(judged), total(waiting)
    exposed_ns, exposed_judged_ns, exposed_waiting_ns = (
        int(covered(exposed, part.starts, part.ends).sum()) for part in (busy, judged, waiting)
    )
    return CommTime(
        busy_ns=busy_ns,
        hidden_ns=busy_ns - exposed_ns,
        exposed_ns=exposed_ns,
        waiting_ns=waiting_ns,
        transfer_ns=judged_ns - waiting_ns,
        unjudged_ns=busy_ns - judged_ns,
        exposed_waiting_ns=exposed_waiting_ns,
        exposed_transfer_ns=exposed_judged_ns - exposed_waiting_ns,
        exposed_unjudged_ns=exposed_ns - exposed_judged_ns,
    )
