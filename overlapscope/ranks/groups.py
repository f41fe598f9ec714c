"""Time and bandwidth of each collective of each process group, summed over the ranks and the steps that all judge.

Each rank's window begins with the first and ends with the last step that is judged on all ranks. Without such steps, it
is the whole time after the lead-in. Each nanosecond in which a kernel of a row runs there is hidden or exposed. It is
also waiting for the last rank or a message's other side, transfer, or not judged. Kernels of different rows may run at
the same time, so all communication together can be shorter than the sum of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from overlapscope.analysis.grouping import rows_by
from overlapscope.analysis.messages import bus_factor
from overlapscope.base.columns import mask_of
from overlapscope.base.intervals import EMPTY, I64, Bool, clip, covered, intersect, total, union
from overlapscope.ranks.collectives import of_whole_groups
from overlapscope.ranks.comm_causes import CommCauses
from overlapscope.ranks.comm_result import CommTime, Communication, GroupCollective
from overlapscope.ranks.pairs import transfers as message_transfers
from overlapscope.ranks.reduced import CommKind, ReducedRank, stated_world_size
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


def by_group(ranks: Sequence[ReducedRank], waits: RankWaits, causes: CommCauses) -> Communication:
    """Return the time and bandwidth of each collective of each group, the longest exposed first."""
    windows = judged_windows(ranks, waits)
    kernels = waits.meetings.kernels
    transfers = _transfers(waits, windows) | message_transfers(waits.messages, kernels, windows.begins)
    rows = []
    for number, of_kind in rows_by(kernels.kind):
        inside = of_kind[windows.begins[of_kind] | (windows.end_ns > windows.start_ns)[of_kind]]
        if len(inside):
            sizes, members = kernels.bytes[inside[windows.begins[inside]]], len(np.unique(kernels.rank[inside]))
            time, transfer = time_in(windows, inside), transfers.get(number, (0, 0))
            rows.append(_row(kernels.kinds[number], time, sizes, members, transfer))
    rows.sort(key=lambda row: (-row.time.exposed_ns, -row.time.busy_ns, row.group, row.group_ranks, row.collective))
    time = time_in(windows, np.arange(len(kernels.kind)))
    busy = union(windows.start_ns, windows.end_ns)
    exposed = {str(cause): total(intersect(times, busy)) for cause, times in causes.items()}
    return Communication(
        ranks=len(ranks), steps=len(waits.steps.names), time=time, exposed_by_cause=exposed, rows=tuple(rows)
    )


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


def _transfers(waits: RankWaits, windows: JudgedWindows) -> dict[int, tuple[int, int]]:
    """Return the bytes and the time of all transfers of each kind that begin in the window of the last rank.

    A transfer lasts from the last arrival to the end of that rank's kernel, so that no clocks are compared. Only
    meetings of the whole group count. If the members' messages differ in size in any of them, both are 0.
    """
    meetings, kernels = waits.meetings, waits.meetings.kernels
    if not len(meetings):
        return {}
    size = kernels.bytes[meetings.row]
    least, most = (side.reduceat(size, meetings.first[:-1]) for side in (np.minimum, np.maximum))
    alike = (least == most) & (least >= 0)
    group_size = kernels.by_kind(lambda kind: kind.group_size)[meetings.kind]
    late = meetings.row[waits.latest.row]
    took = kernels.end_ns[late] - kernels.start_ns[late]
    counts = (np.diff(meetings.first) == group_size) & windows.begins[late]
    counted = np.flatnonzero(counts)
    return {
        number: (int(least[rows].sum()), int(took[rows].sum()))
        for number, of_kind in rows_by(meetings.kind[counted])
        for rows in [counted[of_kind]]
        if alike[rows].all()
    }


def _row(kind: CommKind, time: CommTime, sizes: I64, members: int, transfer: tuple[int, int]) -> GroupCollective:
    moved, took_ns = transfer
    factor = bus_factor(kind.collective, kind.group_size)
    algorithm = moved / took_ns if took_ns else None
    return GroupCollective(
        collective=kind.collective,
        group=kind.group,
        description=kind.description,
        group_ranks=kind.ranks,
        group_size=kind.group_size if kind.group_size >= 0 else None,
        ranks=members,
        count=len(sizes),
        bytes=int(sizes.sum()) if (sizes >= 0).all() else None,
        time=time,
        transferred_bytes=moved,
        transferred_ns=took_ns,
        algorithm_gb_per_s=algorithm,
        bus_gb_per_s=float(algorithm * factor[0]) if algorithm is not None and factor is not None else None,
        bus_factor=factor[1] if factor is not None else "",
    )
