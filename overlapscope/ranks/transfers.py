"""Transfers of single collectives, and process groups whose links are slower than those of groups alike.

A transfer lasts from the last arrival to the end of that rank's kernel. Only collectives of whole groups count.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
from msgspec import Struct

from overlapscope.analysis.messages import bus_factor
from overlapscope.base.columns import Columns
from overlapscope.base.grouping import groups_of, rows_by
from overlapscope.base.intervals import I64, Bool
from overlapscope.ranks.clocks import TIMESTAMP_ERROR_NS
from overlapscope.ranks.reduced import CommKind
from overlapscope.ranks.waits import RankWaits

SLOW_SHARE: Final = 0.8
"""A group is slow if its speed is less than this fraction of its peers'. In recordings of H200s (`tests/ranks.tar.xz`),
the middle half of the same collective's transfers lies within 14%."""
SLOW_CALLS: Final = 8
"""Minimum number of collectives of a group and of each of its peers, so that two lie beyond each quartile."""
_BEST_CALLS: Final = 3
"""Minimum number of collectives whose median is a speed that was reached."""


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


class SlowLink(Struct, frozen=True):
    """A collective of a group that is slower than in other groups alike."""

    kind: int
    bytes: int
    """Size of a member's message."""
    count: int
    typical_ns: int
    """Median transfer."""
    peers: int
    """Number of groups alike with the same collective and size."""
    peers_ns: int
    """Median of their median transfers."""
    lost_ns: int
    """Time that the collectives took longer than they would have at the peers' median."""


def find_transfers(waits: RankWaits, begins: Bool) -> Transfers:
    """Return the transfers of the meetings whose last rank's kernel begins in its window, according to a mask."""
    meetings, kernels = waits.meetings, waits.meetings.kernels
    if not len(meetings):
        return Transfers.empty()
    size, first = kernels.bytes[meetings.row], meetings.first[:-1]
    length = meetings.end_ns - meetings.start_ns
    least, most = (side.reduceat(size, first) for side in (np.minimum, np.maximum))
    late = meetings.row[waits.latest.row]
    group_size = kernels.by_kind(lambda kind: kind.group_size)[meetings.kind]
    transfers = Transfers(
        kind=meetings.kind,
        bytes=np.where(least == most, least, -1),
        took_ns=kernels.end_ns[late] - kernels.start_ns[late],
        shortest_ns=np.minimum.reduceat(length, first),
    )
    return transfers.take((np.diff(meetings.first) == group_size) & begins[late])


def sums(transfers: Transfers) -> dict[int, tuple[int, int]]:
    """Return the bytes and the time of all transfers of each kind whose sizes are all known."""
    return {
        kind: (int(transfers.bytes[rows].sum()), int(transfers.took_ns[rows].sum()))
        for kind, rows in rows_by(transfers.kind)
        if (transfers.bytes[rows] >= 0).all()
    }


def best_speed(transfers: Transfers, kinds: Sequence[CommKind]) -> float | None:
    """Return the highest bus bandwidth that the collectives of a kind and size typically reached, in GB/s."""
    reached = []
    sized = transfers.take((transfers.bytes > 0) & (transfers.took_ns > 0))
    for _, rows in rows_by(groups_of([sized.kind, sized.bytes])) if len(sized) else ():
        kind = kinds[int(sized.kind[rows[0]])]
        factor = bus_factor(kind.collective, kind.group_size)
        if factor is not None and len(rows) >= _BEST_CALLS:
            reached.append(float(factor[0] * int(sized.bytes[rows[0]])) / float(np.median(sized.took_ns[rows])))
    return max(reached, default=None)


def slow_links(transfers: Transfers, kinds: Sequence[CommKind]) -> list[SlowLink]:
    """Return the groups of a family that are slower than their peers, those that lost most first.

    Compared are the same collective and size of message. A group is slow if its median bandwidth is less than
    `SLOW_SHARE` of the median of its peers', by more than the error of timestamps, and its fastest quarter begins where
    the slowest quarter of a typical peer does, and it loses time in all. The size that lost most counts.
    """
    alike: defaultdict[tuple[str, int], dict[int, I64]] = defaultdict(dict)
    sized = transfers.take(transfers.bytes > 0)
    for _, rows in rows_by(groups_of([sized.kind, sized.bytes])) if len(sized) else ():
        if len(rows) >= SLOW_CALLS:
            kind = int(sized.kind[rows[0]])
            alike[kinds[kind].collective, int(sized.bytes[rows[0]])][kind] = sized.shortest_ns[rows]
    found: dict[int, SlowLink] = {}
    for (_, size), groups in alike.items():
        quartiles = {kind: np.percentile(took, (25, 50, 75)) for kind, took in groups.items()}
        for kind, took in groups.items():
            peers = [each for other, each in quartiles.items() if other != kind]
            link = _slow(kind, size, took, quartiles[kind], peers) if peers else None
            if link is not None and (kind not in found or link.lost_ns > found[kind].lost_ns):
                found[kind] = link
    return sorted(found.values(), key=lambda link: -link.lost_ns)


def _slow(kind: int, size: int, took: I64, own: Floats, peers: Sequence[Floats]) -> SlowLink | None:
    _, usual, slowest = np.median(peers, axis=0)
    quick, typical, _ = own
    lost = int(took.sum()) - round(float(usual) * len(took))
    if typical * SLOW_SHARE <= usual or typical - usual <= TIMESTAMP_ERROR_NS or quick <= slowest or lost <= 0:
        return None
    return SlowLink(kind, size, len(took), round(float(typical)), len(peers), round(float(usual)), lost)
