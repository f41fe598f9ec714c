"""Time and bandwidth of each collective of each process group, summed over the ranks and the steps that all judge.

Each rank's window begins with the first and ends with the last step that is judged on all ranks. Without such steps, it
is the whole time after the lead-in. Each nanosecond in which a kernel of a row runs there is hidden or exposed. It is
also waiting for the last rank, transfer, or not judged. Kernels of different rows may run at the same time, so all
communication together can be shorter than the sum of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from overlapscope.analysis.grouping import rows_by
from overlapscope.analysis.messages import bus_factor
from overlapscope.base.columns import mask_of
from overlapscope.base.intervals import I64, Bool, Intervals, covered, union
from overlapscope.ranks.reduced import CommKind, ReducedRank
from overlapscope.ranks.result import CommTime, Communication, GroupCollective
from overlapscope.ranks.waits import Axis, RankWaits


class _Windows(Struct, frozen=True, eq=False):
    """The judged window of each rank, and what all kernels do in it. Times are on the common axis."""

    axis: Axis
    start_ns: I64
    """Start of each kernel, cut at its rank's window."""
    end_ns: I64
    """End of each kernel, cut likewise; not after the start if none of it is inside."""
    begins: Bool
    """True for kernels that begin inside."""
    judged: Bool
    """True for kernels whose wait is known."""
    waited_until_ns: I64
    """End of each kernel's wait, cut likewise."""


def by_group(ranks: Sequence[ReducedRank], waits: RankWaits) -> Communication:
    """Return the time and bandwidth of each collective of each group, the longest exposed first."""
    steps = common_steps(ranks)
    windows = _windows(ranks, waits, steps)
    kernels = waits.meetings.kernels
    transfers = _transfers(waits, windows)
    rows = []
    for number, of_kind in rows_by(kernels.kind):
        inside = of_kind[windows.begins[of_kind] | (windows.end_ns > windows.start_ns)[of_kind]]
        if len(inside):
            sizes, members = kernels.bytes[inside[windows.begins[inside]]], len(np.unique(kernels.rank[inside]))
            time, transfer = _time(windows, inside), transfers.get(number, (0, 0))
            rows.append(_row(kernels.kinds[number], time, sizes, members, transfer))
    rows.sort(key=lambda row: (-row.time.exposed_ns, -row.time.busy_ns, row.group, row.group_ranks, row.collective))
    time = _time(windows, np.arange(len(kernels.kind)))
    return Communication(ranks=len(ranks), steps=len(steps), time=time, rows=tuple(rows))


def common_steps(ranks: Sequence[ReducedRank]) -> tuple[str, ...]:
    """Return the names of the steps that are judged on every rank, in the order of the first rank."""
    judged = [rank.steps.judged_names() for rank in ranks]
    return tuple(name for name in judged[0] if all(name in names for names in judged)) if judged else ()


def _windows(ranks: Sequence[ReducedRank], waits: RankWaits, steps: Sequence[str]) -> _Windows:
    axis, met, kernels = Axis(ranks), waits.meetings.row, waits.meetings.kernels
    edges = np.array([_edges(rank, steps) for rank in ranks], np.int64).reshape(len(ranks), 2) + axis.shift[:, None]
    begin, end = (side[kernels.rank] for side in np.clip(edges, axis.begin[:-1, None], axis.begin[1:, None]).T)
    start = kernels.start_ns + axis.shift[kernels.rank]
    waited = np.zeros(len(start), np.int64)
    waited[met] = waits.arrivals.waited_ns
    return _Windows(
        axis=axis,
        start_ns=np.clip(start, begin, end),
        end_ns=np.clip(kernels.end_ns + axis.shift[kernels.rank], begin, end),
        begins=(start >= begin) & (start < end),
        judged=mask_of(met, len(start)),
        waited_until_ns=np.clip(start + waited, begin, end),
    )


def _edges(rank: ReducedRank, steps: Sequence[str]) -> tuple[int, int]:
    """Return the start of the first and the end of the last of these steps; without any, the time after the lead-in."""
    if not steps:
        return rank.judged_from_ns, rank.end_ns
    first, last = (rank.steps.names.index(name) for name in (steps[0], steps[-1]))
    return int(rank.steps.start_ns[first]), int(rank.steps.start_ns[last] + rank.steps.span_ns[last])


def _time(windows: _Windows, rows: I64) -> CommTime:
    """Return the time in which some kernels run, and its parts."""
    matched = rows[windows.judged[rows]]
    busy = union(windows.start_ns[rows], windows.end_ns[rows])
    judged = union(windows.start_ns[matched], windows.end_ns[matched])
    waiting = union(windows.start_ns[matched], windows.waited_until_ns[matched])
    exposed = windows.axis.exposed
    busy_ns, judged_ns, waiting_ns = _length(busy), _length(judged), _length(waiting)
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


def _length(times: Intervals) -> int:
    return int((times.ends - times.starts).sum())


def _transfers(waits: RankWaits, windows: _Windows) -> dict[int, tuple[int, int]]:
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
