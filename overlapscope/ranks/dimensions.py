"""Communication by the dimension of the device mesh that its process groups span."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import chain

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.messages import bus_factor
from overlapscope.base.grouping import distinct, rows_by
from overlapscope.base.intervals import I64
from overlapscope.base.words import listed
from overlapscope.ranks.collectives import Kernels
from overlapscope.ranks.comm_result import CommDimension, DeviceMesh, SlowGroup
from overlapscope.ranks.mesh import UNDESCRIBED, RankGroup, families, ranks_of_group, rebuild
from overlapscope.ranks.reduced import CommKind, ReducedRank, stated_world_size
from overlapscope.ranks.transfers import SlowLink, Transfers, best_speed, slow_links
from overlapscope.ranks.waits import RankWaits
from overlapscope.ranks.windows import JudgedWindows, time_in

_NAMED_BY = 2
"""Maximum number of collectives that name groups without a description."""
_NO_GROUP = RankGroup("", -1, ())


class CommDimensions(Struct, frozen=True):
    """Dimensions of communication."""

    mesh: DeviceMesh | None
    every: tuple[CommDimension, ...]
    """Dimensions, the longest exposed first."""
    of_kind: dict[int, int]
    """Place in `every` of each kind of kernel."""
    slow: tuple[SlowGroup, ...]


def find_dimensions(
    ranks: Sequence[ReducedRank], waits: RankWaits, windows: JudgedWindows, transfers: Transfers
) -> CommDimensions:
    """Return the dimensions of all communication."""
    kernels = waits.meetings.kernels
    members = np.array([rank.rank for rank in ranks], np.int64)[kernels.rank]
    kinds_of = _kinds_by_group(kernels.kinds, kernels.kind, members)
    groups = list(kinds_of)
    found = [[groups[place] for place in places] for places in families(groups)]
    # Kernels without a process group say nothing about the mesh.
    found.sort(key=lambda family: family == [_NO_GROUP])
    grouped = [{group.ranks for group in family} for family in found if family != [_NO_GROUP]]
    recorded = {rank.rank for rank in ranks if rank.rank is not None}
    mesh = rebuild(grouped, stated_world_size(ranks), recorded)
    spans = [*mesh.spanned, *[()] * (len(found) - len(mesh.spanned))]
    kinds_in = [[kind for group in family for kind in kinds_of[group]] for family in found]
    rows_of, transfers_of = (_rows_by_family(column, kinds_in) for column in (kernels.kind, transfers.kind))
    every = []
    for number, (family, kinds, along) in enumerate(zip(found, kinds_in, spans, strict=True)):
        own = transfers.take(transfers_of[number])
        dimension = _dimension(family, kinds, kernels, windows, rows_of[number])
        best = best_speed(own, kernels.kinds)
        every.append((replace(dimension, spans=along, best_gb_per_s=best), kinds, slow_links(own, kernels.kinds)))
    every.sort(key=lambda item: (-item[0].time.exposed_ns, -item[0].time.busy_ns, item[0].name))
    slow = [(link, place) for place, (_, _, links) in enumerate(every) for link in links]
    slow.sort(key=lambda item: -item[0].lost_ns)
    return CommDimensions(
        mesh=DeviceMesh(shape=mesh.shape, reason=mesh.reason) if grouped else None,
        every=tuple(dimension for dimension, _, _ in every),
        of_kind={kind: place for place, (_, kinds, _) in enumerate(every) for kind in kinds},
        slow=tuple(_slow_group(link, kernels.kinds[link.kind], place) for link, place in slow),
    )


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


def _rows_by_family(kind: I64, kinds_of: Sequence[Sequence[int]]) -> defaultdict[int, I64]:
    """Return the rows of each family, given the kind of each row and the kinds of each family."""
    family = np.empty(sum(map(len, kinds_of)), np.int64)
    for number, kinds in enumerate(kinds_of):
        family[list(kinds)] = number
    return defaultdict(lambda: np.empty(0, np.int64), rows_by(family[kind]))


def _dimension(
    family: Sequence[RankGroup], kinds: Sequence[int], kernels: Kernels, windows: JudgedWindows, rows: I64
) -> CommDimension:
    """Return a dimension without its place in the mesh. `rows` are the kernels of its `kinds`."""
    rows = windows.inside(rows)
    sets = sorted({group.ranks for group in family})
    description, size = family[0].description, family[0].size
    if description in UNDESCRIBED:
        description = _by_collectives(kernels, rows, size) if size >= 0 else ""
    return CommDimension(
        name=description,
        groups=len({(kernels.kinds[kind].group, kernels.kinds[kind].ranks) for kind in kinds}),
        group_size=size if size >= 0 else None,
        group_ranks=tuple(sets) if all(sets) else (),
        spans=(),
        ranks=len(distinct(kernels.rank[rows])),
        time=time_in(windows, rows),
        best_gb_per_s=None,
    )


def _by_collectives(kernels: Kernels, rows: I64, size: int) -> str:
    """Return a name for groups without a description, by the collectives that take most of the kernels' time."""
    times = Counter[str]()
    for kind, own in rows_by(kernels.kind[rows]):
        took = kernels.end_ns[rows[own]] - kernels.start_ns[rows[own]]
        times[kernels.kinds[kind].collective] += int(took.sum())
    names = listed([collective for collective, _ in times.most_common(_NAMED_BY)]) or "unused"
    return f"{names} groups of {size}"


def _slow_group(link: SlowLink, kind: CommKind, dimension: int) -> SlowGroup:
    factor = bus_factor(kind.collective, kind.group_size)
    moved = float(link.bytes * (factor[0] if factor is not None else 1))
    return SlowGroup(
        collective=kind.collective,
        group=kind.group,
        description=kind.description,
        group_ranks=kind.ranks,
        dimension=dimension,
        bytes=link.bytes,
        count=link.count,
        bus_gb_per_s=moved / link.typical_ns,
        peers=link.peers,
        peers_gb_per_s=moved / max(link.peers_ns, 1),
        lost_ns=link.lost_ns,
    )
