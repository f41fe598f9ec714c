"""The device mesh of a job, rebuilt from the sets of ranks of its process groups.

Groups that are alike, such as those of tensor parallelism, are a family. In a mesh with
the ranks in order, a family divides them into equal parts, each of ranks that are multiples of one or more strides
apart. The ranges of these multiples cut the ranks' numbers into digits, and the digits are the dimensions.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence, Set
from itertools import pairwise
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import Struct

from overlapscope.base.grouping import distinct
from overlapscope.base.intervals import I64
from overlapscope.base.words import plural
from overlapscope.ranks.comm_result import DeviceMesh

_RANKS = re.compile(r"\[(\d{1,9}(?:, \d{1,9})*)(, \.\.\.)?\]")
UNDESCRIBED: Final = ("", "undefined")
"""Descriptions of groups that the program didn't describe; `undefined` is PyTorch's default."""


class RankGroup(Struct, frozen=True):
    """A process group."""

    description: str
    size: int
    """Number of its ranks; -1 where not recorded."""
    ranks: tuple[int, ...]
    """Its ranks, ascending; empty where unknown."""


def ranks_of_group(recorded: str, size: int, members: Iterable[int]) -> tuple[int, ...]:
    """Return the ranks of a group; none if they are unknown.

    Args:
        recorded: The ranks as recorded. PyTorch shortens long lists.
        size: Size of the group; -1 where not recorded.
        members: Ranks that communicated in the group. They complete a shortened list.
    """
    match = _RANKS.fullmatch(recorded)
    if match is None or size < 0:
        return ()
    ranks = {int(rank) for rank in match[1].split(", ")} | (set(members) if match[2] else set[int]())
    return tuple(sorted(ranks)) if len(ranks) == size else ()


def families(groups: Sequence[RankGroup]) -> list[list[int]]:
    """Return the families as lists of places in `groups`.

    Groups of a family have the same description and size. If such groups overlap, or nothing describes them, the
    distances between their ranks must be the same, too: along each dimension of a mesh of ranks in order, they are.
    """
    alike: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for place, group in enumerate(groups):
        alike[group.description, group.size].append(place)
    found = list[list[int]]()
    for (description, _), places in alike.items():
        by_distances: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for place in places:
            ranks = groups[place].ranks
            by_distances[tuple(rank - ranks[0] for rank in ranks)].append(place)
        described = description not in UNDESCRIBED and _disjoint({groups[place].ranks for place in places})
        found += [places] if described else by_distances.values()
    return found


def _disjoint(sets: Set[tuple[int, ...]]) -> bool:
    return len({rank for ranks in sets for rank in ranks}) == sum(map(len, sets))


def rebuild(
    found: Sequence[Set[tuple[int, ...]]], world_size: int | None, recorded: Set[int]
) -> tuple[DeviceMesh, Sequence[tuple[int, ...]]]:
    """Return the mesh, or why it is unknown; and the places in its shape that the groups of each family span.

    Args:
        found: The sets of ranks of each family.
        world_size: Number of ranks of the job; None if not recorded.
        recorded: Ranks with a recording.
    """
    if world_size is None:
        return _unknown("the traces don't state the number of ranks", found)
    if not all(ranks and ranks[-1] < world_size for sets in found for ranks in sets):
        return _unknown("the ranks of some process groups are unknown", found)
    partitions = [_partition(sets, world_size) for sets in found]
    runs = [_runs(labels) for labels in partitions]
    if not any(runs):
        return _unknown("no process groups divide all ranks into equal parts", found)
    dimensions = _dimensions(runs, world_size)
    ranks = np.arange(world_size)
    for labels, along in zip(partitions, runs, strict=True):
        if dimensions is None or (labels is not None and (_first(ranks, along) != labels).any()):
            return _unknown("the process groups cross each other in different ways", found)
    assert dimensions is not None
    missing = world_size - sum(rank < world_size for rank in recorded)
    # A dimension is certain if it is all that some families have in common.
    is_certain = all(sum(each.families <= other.families for other in dimensions) == 1 for each in dimensions)
    partial = [sets for sets, labels in zip(found, partitions, strict=True) if labels is None]
    if missing and not (is_certain and all(_spans(sets, dimensions) for sets in partial)):
        were = "was" if missing == 1 else "were"
        return _unknown(f"{missing:,} of {plural(world_size, 'rank')} {were} not recorded", found)
    spans = [tuple(at for at, each in enumerate(dimensions) if number in each.families) for number in range(len(found))]
    return DeviceMesh(shape=tuple(each.size for each in dimensions), reason=""), spans


def _unknown(reason: str, found: Sequence[Any]) -> tuple[DeviceMesh, Sequence[tuple[int, ...]]]:
    return DeviceMesh(shape=(), reason=reason), [()] * len(found)


class _Run(NamedTuple):
    """Ranks that are up to `size` multiples of a stride apart: a digit of the ranks' numbers, or several."""

    stride: int
    size: int

    @property
    def end(self) -> int:
        """Stride of the digit after it."""
        return self.stride * self.size


class _MeshDimension(Struct, frozen=True):
    digits: list[_Run]
    families: frozenset[int]
    """Numbers of the families that span it."""

    @property
    def size(self) -> int:
        """Number of ranks of a line."""
        return prod(digit.size for digit in self.digits)


def _dimensions(runs: Sequence[Sequence[_Run]], world_size: int) -> list[_MeshDimension] | None:
    """Return the dimensions, the one with the largest stride first; None if runs overlap without sharing digits."""
    cuts = sorted({1, world_size, *(edge for along in runs for run in along for edge in (run.stride, run.end))})
    if any(end % start for start, end in pairwise(cuts)):
        return None
    alike: defaultdict[frozenset[int], list[_Run]] = defaultdict(list)
    for start, end in pairwise(cuts):
        spanning = (at for at, along in enumerate(runs) if any(run.stride <= start and end <= run.end for run in along))
        alike[frozenset(spanning)].append(_Run(start, end // start))
    dimensions = [_MeshDimension(digits, spanning) for spanning, digits in alike.items()]
    return sorted(dimensions, key=lambda each: -each.digits[0].stride)


def _partition(sets: Set[tuple[int, ...]], world_size: int) -> I64 | None:
    """Return the first rank of each rank's set; None if the sets don't divide all ranks into equal parts."""
    sizes = {len(ranks) for ranks in sets}
    if len(sizes) != 1 or len(sets) * sizes.pop() != world_size or not _disjoint(sets):
        return None
    labels = np.empty(world_size, np.int64)
    for ranks in sets:
        labels[list(ranks)] = ranks[0]
    return labels


def _runs(labels: I64 | None) -> list[_Run]:
    """Return the runs of the part of rank 0; none if there is no partition."""
    ranks, runs = np.flatnonzero(labels == 0) if labels is not None else np.empty(0, np.int64), list[_Run]()
    while len(ranks) > 1:
        stride = int(ranks[1])
        regular = ranks == stride * np.arange(len(ranks))
        runs.append(_Run(stride, len(ranks) if regular.all() else int(np.argmin(regular))))
        ranks = ranks[:: runs[-1].size]
    return runs


def _first(ranks: I64, runs: Sequence[_Run]) -> I64:
    """Return the first rank of each rank's part, given the runs of parts."""
    first: I64 = ranks - sum(ranks // stride % size * stride for stride, size in runs)
    return first


def _spans(sets: Collection[tuple[int, ...]], dimensions: Sequence[_MeshDimension]) -> bool:
    """Return whether each set consists of all ranks along some dimensions."""
    for ranks in sets:
        lines = [(each.size, len(distinct(_first(np.array(ranks), each.digits)))) for each in dimensions]
        if prod(size for size, count in lines if count * size == len(ranks)) != len(ranks):
            return False
    return True
