"""Causes of the exposed communication of joined ranks: one for each nanosecond, as for a single rank.

A rank alone can't tell waiting from transfer. Here, time before the last rank arrived is `straggler`, unless compute
could have run (`ReducedRank.held_comm`), and time before the other side of a message began is `message-wait`, whatever
its cause was. `waiting-or-transfer` after that is `transfer`, if all members of the group were recorded. Without
arrivals, a rank's own causes stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from overlapscope.base.intervals import EMPTY, Intervals, intersect, join, subtract, total, union
from overlapscope.catalog.causes import COMM_CAUSES, CommCause
from overlapscope.ranks.collectives import of_whole_groups
from overlapscope.ranks.reduced import ReducedRank, stated_world_size
from overlapscope.ranks.waits import Axis, RankWaits

CommCauses = Mapping[CommCause, Intervals]
"""Exposed communication by cause, on the axis of all ranks."""


def find_comm_causes(ranks: Sequence[ReducedRank], waits: RankWaits) -> CommCauses:
    """Return the exposed communication of the compared ranks by cause."""
    axis, arrivals = Axis(ranks), waits.arrivals
    own = [_on_axis(ranks, axis, number) for number in range(len(COMM_CAUSES))]
    straggling = intersect(union(arrivals.axis_ns, arrivals.axis_ns + arrivals.waited_ns), axis.held)
    waiting = join(straggling, intersect(axis.exposed, waits.in_messages))
    # Of other kernels, a rank that isn't recorded may have come last, or nothing is known.
    judged = _of_whole_groups(ranks, waits, axis)
    causes = {cause: subtract(times, waiting) for cause, times in zip(COMM_CAUSES, own, strict=True)}
    # Ranks whose trace shows no causes, such as those recorded on the host, have exposed time without any.
    unexplained = subtract(axis.exposed, join(EMPTY, *own, waiting))
    causes[CommCause.UNKNOWN] = join(causes[CommCause.UNKNOWN], unexplained)
    either = causes[CommCause.WAITING_OR_TRANSFER]
    causes |= {
        CommCause.STRAGGLER: straggling,
        CommCause.MESSAGE_WAIT: subtract(waiting, straggling),
        CommCause.TRANSFER: intersect(either, judged),
        CommCause.WAITING_OR_TRANSFER: subtract(either, judged),
    }
    return {cause: causes[cause] for cause in CommCause}


def by_rank(ranks: Sequence[ReducedRank], causes: CommCauses) -> list[dict[str, int]]:
    """Return the exposed communication of each compared rank by cause."""
    axis = Axis(ranks)
    times = {str(cause): axis.by_rank(times).tolist() for cause, times in causes.items()}
    return [{cause: each[place] for cause, each in times.items()} for place in range(len(ranks))]


def of_single(rank: ReducedRank) -> dict[str, int]:
    """Return the exposed communication by cause of a rank that was not compared with others."""
    times = {str(cause): 0 for cause in CommCause}
    times |= {str(cause): total(each) for cause, each in zip(COMM_CAUSES, rank.comm_causes, strict=False)}
    times[CommCause.UNKNOWN] += rank.buckets.exposed_comm_ns - sum(times.values())
    return times


def _of_whole_groups(ranks: Sequence[ReducedRank], waits: RankWaits, axis: Axis) -> Intervals:
    """Return the time with communication, all of it matched between all members of its group or both sides."""
    met, kernels = waits.meetings, waits.meetings.kernels
    begin, end = (side + axis.shift[kernels.rank] for side in (kernels.start_ns, kernels.end_ns))
    whole = of_whole_groups(met, stated_world_size(ranks))
    whole[waits.messages.kernel] = True
    return subtract(union(begin[whole], end[whole]), union(begin[~whole], end[~whole]))


def _on_axis(ranks: Sequence[ReducedRank], axis: Axis, number: int) -> Intervals:
    """Return the time of a cause on the axis. A rank without causes has none."""
    each = [rank.comm_causes[number] if rank.comm_causes else EMPTY for rank in ranks]
    starts, ends = (
        np.concatenate([np.empty(0, np.int64), *(times[side] + by for times, by in zip(each, axis.shift, strict=True))])
        for side in (0, 1)
    )
    return Intervals(starts, ends)
