"""Time, bandwidth and causes of the communication of the compared ranks, by process group and dimension of the mesh.

Each rank's window begins with the first and ends with the last step that is judged on all ranks. Without such steps, it
is the whole time after the lead-in. Each nanosecond of it in which some kernel runs is hidden or exposed. It is also
waiting for the last rank or a message's other side, transfer, or not judged. Kernels of different rows may run at the
same time, so all communication together can be shorter than the sum of the rows.

Exposed communication has one cause for each nanosecond, as for a single rank, which can't tell waiting from transfer.
Time before the last rank arrived is `straggler`, unless compute could have run (`ReducedRank.blocking_comm`), and time
before the other side of a message began is `message-wait`, whatever its cause was. `waiting-or-transfer` after that is
`transfer`, if all members of the group were recorded. Without arrivals, a rank's own causes stay.

A transfer lasts from the last arrival to the end of that rank's kernel. Only collectives of whole groups count.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.collectives import CommKind, bus_factor
from overlapscope.base.columns import Columns, mask_of
from overlapscope.base.grouping import distinct, groups_of, rows_by
from overlapscope.base.intervals import (
    EMPTY,
    I64,
    Bool,
    Intervals,
    clip,
    covered,
    intersect,
    join,
    subtract,
    total,
    union,
)
from overlapscope.base.words import listed, number_runs
from overlapscope.catalog.causes import COMM_CAUSES, CommCause
from overlapscope.ranks.clocks import TIMESTAMP_ERROR_NS
from overlapscope.ranks.collectives import Kernels, have_whole_groups
from overlapscope.ranks.comm_result import (
    CommDimension,
    CommTime,
    Communication,
    DeviceMesh,
    GroupCollective,
    SlowGroup,
)
from overlapscope.ranks.mesh import UNDESCRIBED, RankGroup, families, ranks_of_group, rebuild
from overlapscope.ranks.pairs import transfers as message_transfers
from overlapscope.ranks.reduced import ReducedRank, stated_world_size
from overlapscope.ranks.waits import Axis, RankWaits

# -- Windows -----------------------------------------------------------------------------------------


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
    axis, met, kernels = waits.axis, waits.meetings.row, waits.meetings.kernels
    judged = axis.windows(waits.steps)
    begin, end = judged.starts[kernels.rank], judged.ends[kernels.rank]
    start = kernels.start_ns + axis.shift[kernels.rank]
    waited = np.zeros(len(start), np.int64)
    waited[met] = waits.arrivals.waited_ns
    whole = have_whole_groups(waits.meetings, stated_world_size(ranks))
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


# -- Causes ------------------------------------------------------------------------------------------

CommCauses = Mapping[CommCause, Intervals]
"""Exposed communication by cause, on the axis of all ranks."""


def find_comm_causes(ranks: Sequence[ReducedRank], waits: RankWaits) -> CommCauses:
    """Return the exposed communication of the compared ranks by cause."""
    axis, arrivals = waits.axis, waits.arrivals
    # A rank whose trace shows no causes has none.
    by_cause = [
        axis.of([rank.comm_causes[number] if rank.comm_causes else EMPTY for rank in ranks])
        for number in range(len(COMM_CAUSES))
    ]
    straggling = intersect(union(arrivals.axis_ns, arrivals.axis_ns + arrivals.waited_ns), axis.blocking)
    waiting = join(straggling, intersect(axis.exposed, waits.in_messages))
    # Of other kernels, a rank that isn't recorded may have come last, or nothing is known.
    kernels, whole = waits.meetings.kernels, have_whole_groups(waits.meetings, stated_world_size(ranks))
    whole[waits.messages.kernel] = True
    begin, end = (side + axis.shift[kernels.rank] for side in (kernels.start_ns, kernels.end_ns))
    judged = subtract(union(begin[whole], end[whole]), union(begin[~whole], end[~whole]))
    causes = {cause: subtract(times, waiting) for cause, times in zip(COMM_CAUSES, by_cause, strict=True)}
    # Ranks whose trace shows no causes, such as those recorded on the host, have exposed time without any.
    unexplained = subtract(axis.exposed, join(EMPTY, *by_cause, waiting))
    causes[CommCause.UNKNOWN] = join(causes[CommCause.UNKNOWN], unexplained)
    either = causes[CommCause.WAITING_OR_TRANSFER]
    causes |= {
        CommCause.STRAGGLER: straggling,
        CommCause.MESSAGE_WAIT: subtract(waiting, straggling),
        CommCause.TRANSFER: intersect(either, judged),
        CommCause.WAITING_OR_TRANSFER: subtract(either, judged),
    }
    return {cause: causes[cause] for cause in CommCause}


def by_rank(axis: Axis, causes: CommCauses) -> list[dict[str, int]]:
    """Return the exposed communication of each compared rank by cause."""
    times = {str(cause): axis.by_rank(times).tolist() for cause, times in causes.items()}
    return [{cause: each[place] for cause, each in times.items()} for place in range(len(axis.shift))]


def uncompared_causes(rank: ReducedRank) -> dict[str, int]:
    """Return the exposed communication by cause of a rank that was not compared with others."""
    times = {str(cause): 0 for cause in CommCause}
    times |= {str(cause): total(each) for cause, each in zip(COMM_CAUSES, rank.comm_causes, strict=False)}
    times[CommCause.UNKNOWN] += rank.window.buckets.exposed_comm_ns - sum(times.values())
    return times


# -- Transfers ---------------------------------------------------------------------------------------

SLOW_SHARE: Final = 0.8
"""A group is slow if its speed is less than this fraction of its peers'. In recordings of H200s (`tests/ranks.tar.xz`),
the middle half of the same collective's transfers lies within 14%."""
SLOW_CALLS: Final = 8
"""Minimum number of collectives of a group and of each of its peers, so that two lie beyond each quartile."""


Floats: TypeAlias = np.ndarray[tuple[int], np.dtype[np.float64]]


class Transfers(Columns, frozen=True):
    """Transfers of collectives of whole groups, one row each."""

    kind: I64
    """Index into `Kernels.kinds`."""
    bytes: I64
    """Size of a member's message; -1 where unknown, or where the members' messages differ."""
    took_ns: I64
    """Time from the last arrival to the end of that rank's kernel."""
    shortest_ns: I64
    """Length of the shortest kernel. It is the same if the clocks are right, and doesn't depend on them."""


def find_transfers(waits: RankWaits, begins: Bool) -> Transfers:
    """Return the transfers of the meetings whose last rank's kernel begins in its window, according to a mask."""
    meetings, kernels = waits.meetings, waits.meetings.kernels
    least, most = meetings.extremes(kernels.bytes)
    shortest, _ = meetings.extremes(kernels.end_ns - kernels.start_ns)
    late = meetings.row[waits.latest.row]
    transfers = Transfers(
        kind=meetings.kind,
        bytes=np.where(least == most, least, -1),
        took_ns=kernels.end_ns[late] - kernels.start_ns[late],
        shortest_ns=shortest,
    )
    return transfers.take((meetings.members == meetings.group_size) & begins[late])


def slow_groups(
    transfers: Transfers, kinds: Sequence[CommKind], dimension_of: Mapping[int, int]
) -> tuple[SlowGroup, ...]:
    """Return the groups that are slower than their peers in their dimension, those that lost most first.

    Compared are the same collective and size of message. A group is slow if its median bandwidth is less than
    `SLOW_SHARE` of the median of its peers', by more than the error of timestamps, and its fastest quarter begins where
    the slowest quarter of a typical peer does, and it loses time in all. The size that lost most counts.
    """
    alike: defaultdict[tuple[int, str, int], dict[int, I64]] = defaultdict(dict)
    sized = transfers.take(transfers.bytes > 0)
    for _, rows in rows_by(groups_of([sized.kind, sized.bytes])) if len(sized) else ():
        if len(rows) >= SLOW_CALLS:
            kind = int(sized.kind[rows[0]])
            of = dimension_of[kind], kinds[kind].collective, int(sized.bytes[rows[0]])
            alike[of][kind] = sized.shortest_ns[rows]
    found: dict[int, SlowGroup] = {}
    for (dimension, _, size), groups in alike.items():
        quartiles = {kind: np.percentile(took, (25, 50, 75)) for kind, took in groups.items()}
        for kind, took in groups.items():
            peers = [each for other, each in quartiles.items() if other != kind]
            slow = _slow(kinds[kind], size, took, quartiles[kind], peers, dimension) if peers else None
            if slow is not None and (kind not in found or slow.lost_ns > found[kind].lost_ns):
                found[kind] = slow
    return tuple(sorted(found.values(), key=lambda each: -each.lost_ns))


def named(kind: CommKind) -> dict[str, str]:
    """Return the fields of results that name a collective and its group."""
    group = {"group": kind.group, "description": kind.description, "group_ranks": kind.ranks}
    return {"collective": kind.collective, **group}


def _slow(
    kind: CommKind, size: int, took: I64, quantiles: Floats, peer_quantiles: Sequence[Floats], dimension: int
) -> SlowGroup | None:
    _, usual, slowest = np.median(peer_quantiles, axis=0)
    quick, typical, _ = quantiles
    lost = int(took.sum()) - round(float(usual) * len(took))
    if typical * SLOW_SHARE <= usual or typical - usual <= TIMESTAMP_ERROR_NS or quick <= slowest or lost <= 0:
        return None
    factor = bus_factor(kind.collective, kind.group_size)
    moved = float(size * (factor if factor is not None else 1))
    return SlowGroup(
        **named(kind),
        dimension=dimension,
        bytes=size,
        count=len(took),
        bus_gb_per_s=moved / round(float(typical)),
        peers=len(peer_quantiles),
        peers_gb_per_s=moved / max(round(float(usual)), 1),
        lost_ns=lost,
    )


# -- Dimensions of the device mesh -------------------------------------------------------------------

_NAMED_BY = 2
"""Maximum number of collectives that name groups without a description."""
_NO_GROUP = RankGroup("", -1, ())
_NO_ROWS = np.empty(0, np.int64)


def _find_dimensions(
    ranks: Sequence[ReducedRank], kernels: Kernels, windows: JudgedWindows
) -> tuple[DeviceMesh | None, list[tuple[CommDimension, list[int]]]]:
    """Return the mesh, and its dimensions with their kinds of kernels, the longest exposed first."""
    members = np.array([rank.rank for rank in ranks], np.int64)[kernels.rank]
    kinds_of = _kinds_by_group(kernels.kinds, kernels.kind, members)
    groups = list(kinds_of)
    found = [[groups[place] for place in places] for places in families(groups)]
    # Kernels without a process group say nothing about the mesh.
    found.sort(key=lambda family: family == [_NO_GROUP])
    grouped = [{group.ranks for group in family} for family in found if family != [_NO_GROUP]]
    recorded = {rank.rank for rank in ranks if rank.rank is not None}
    mesh, spans = rebuild(grouped, stated_world_size(ranks), recorded)
    kinds_in = [[kind for group in family for kind in kinds_of[group]] for family in found]
    family_of = np.empty(len(kernels.kinds), np.int64)
    for number, kinds in enumerate(kinds_in):
        family_of[kinds] = number
    rows_of, dimensions = dict(rows_by(family_of[kernels.kind])), []
    # Kernels without a process group are last, and span nothing.
    for number, (family, kinds, along) in enumerate(zip(found, kinds_in, [*spans, ()], strict=False)):
        rows, description, size = windows.inside(rows_of.get(number, _NO_ROWS)), family[0].description, family[0].size
        if family == [_NO_GROUP] and not len(rows):
            continue
        if description in UNDESCRIBED:
            # Named by the collectives that take most of the kernels' time.
            times = Counter[str]()
            for kind, of_kind in rows_by(kernels.kind[rows]):
                took = kernels.end_ns[rows[of_kind]] - kernels.start_ns[rows[of_kind]]
                times[kernels.kinds[kind].collective] += int(took.sum())
            names = listed([collective for collective, _ in times.most_common(_NAMED_BY)]) or "unused"
            description = f"{names} groups of {size}" if size >= 0 else ""
        sets = sorted({group.ranks for group in family})
        dimension = CommDimension(
            name=description,
            groups=len({(kernels.kinds[kind].group, kernels.kinds[kind].ranks) for kind in kinds}),
            group_size=size if size >= 0 else None,
            group_ranks=tuple(sets) if all(sets) else (),
            spans=along,
            ranks=len(distinct(kernels.rank[rows])),
            time=time_in(windows, rows),
        )
        dimensions.append((dimension, kinds))
    names_taken = Counter(dimension.name for dimension, _ in dimensions)
    for number, (dimension, kinds) in enumerate(dimensions):
        if names_taken[dimension.name] > 1 and dimension.group_ranks:
            name = f"{dimension.name} like {', '.join(number_runs(dimension.group_ranks[0]))}"
            dimensions[number] = replace(dimension, name=name), kinds
    dimensions.sort(key=lambda item: (-item[0].time.exposed_ns, -item[0].time.busy_ns, item[0].name))
    return mesh if grouped else None, dimensions


def _kinds_by_group(kinds: Sequence[CommKind], kind: I64, members: I64) -> dict[RankGroup, list[int]]:
    """Return the kinds of kernels of each process group, given the kind and the rank of each kernel."""
    alike: defaultdict[tuple[str, str, str, int], list[int]] = defaultdict(list)
    for number, each in enumerate(kinds):
        alike[each.group, each.ranks, each.description, each.group_size].append(number)
    seen = {number: distinct(members[rows]).tolist() for number, rows in rows_by(kind)}
    by_group: defaultdict[RankGroup, list[int]] = defaultdict(list)
    for (_, recorded, description, size), numbers in alike.items():
        ranks = ranks_of_group(recorded, size, chain.from_iterable(seen.get(number, ()) for number in numbers))
        by_group[RankGroup(description, size, ranks)] += numbers
    return by_group


# -- Process groups -------------------------------------------------------------------------------------------------


def by_group(ranks: Sequence[ReducedRank], waits: RankWaits, causes: CommCauses) -> Communication:
    """Return the time and bandwidth of each collective of each group, the longest exposed first."""
    windows = judged_windows(ranks, waits)
    kernels, transfers = waits.meetings.kernels, find_transfers(waits, windows.begins)
    # Bytes and time of all transfers of each kind whose sizes are all known.
    moved = {
        kind: (int(transfers.bytes[rows].sum()), int(transfers.took_ns[rows].sum()))
        for kind, rows in rows_by(transfers.kind)
        if (transfers.bytes[rows] >= 0).all()
    } | message_transfers(waits.messages, kernels, windows.begins)
    mesh, dimensions = _find_dimensions(ranks, kernels, windows)
    dimension_of = {kind: place for place, (_, kinds) in enumerate(dimensions) for kind in kinds}
    rows = []
    for number, of_kind in rows_by(kernels.kind):
        inside = windows.inside(of_kind)
        if len(inside):
            kind, sizes = kernels.kinds[number], kernels.bytes[inside[windows.begins[inside]]]
            moved_bytes, took_ns = moved.get(number, (0, 0))
            factor = bus_factor(kind.collective, kind.group_size)
            rows.append(
                GroupCollective(
                    **named(kind),
                    group_size=kind.group_size if kind.group_size >= 0 else None,
                    ranks=len(distinct(kernels.rank[inside])),
                    count=len(sizes),
                    bytes=int(sizes.sum()) if (sizes >= 0).all() else None,
                    time=time_in(windows, inside),
                    transferred_bytes=moved_bytes,
                    transferred_ns=took_ns,
                    bus_gb_per_s=float(moved_bytes / took_ns * factor) if took_ns and factor is not None else None,
                    dimension=dimension_of[number],
                )
            )
    rows.sort(key=lambda row: (-row.time.exposed_ns, -row.time.busy_ns, row.group, row.group_ranks, row.collective))
    time = time_in(windows, np.arange(len(kernels.kind)))
    busy = union(windows.start_ns, windows.end_ns)
    exposed = {str(cause): total(intersect(times, busy)) for cause, times in causes.items()}
    return Communication(
        ranks=len(ranks),
        steps=len(waits.steps.names),
        time=time,
        exposed_by_cause=exposed,
        rows=tuple(rows),
        dimensions=tuple(dimension for dimension, _ in dimensions),
        mesh=mesh,
        slow_groups=slow_groups(transfers, kernels.kinds, dimension_of),
    )
