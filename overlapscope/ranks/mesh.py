"""The device mesh of a job, rebuilt from the sets of ranks of its process groups.

Groups that are alike, such as those of tensor parallelism, are a family. In a mesh, a family divides the ranks into
parts of equal size, which are lines along one dimension or planes along several. The dimensions are the finest of these
partitions and of their common refinements. They are a mesh if every combination of coordinates is exactly one rank.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence, Set
from math import prod
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.base.grouping import distinct
from overlapscope.base.intervals import I64
from overlapscope.base.words import plural
from overlapscope.ranks.comm_result import DeviceMesh

_RANKS = re.compile(r"\[(\d{1,9}(?:, \d{1,9})*)(, \.\.\.)?\]")
UNDESCRIBED: Final = ("", "undefined")
"""Descriptions of groups that the program didn't describe; `undefined` is PyTorch's default."""
_MOST_PARTITIONS: Final = 32
"""No mesh is looked for among more partitions."""


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
    if not any(labels is not None and _part_size(labels) > 1 for labels in partitions):
        return _unknown("no process groups divide all ranks into equal parts", found)
    dimensions = _dimensions(partitions, np.arange(world_size))
    if dimensions is None:
        return _unknown("the process groups cross each other in different ways", found)
    missing = world_size - sum(rank < world_size for rank in recorded)
    partial = [sets for sets, labels in zip(found, partitions, strict=True) if labels is None]
    lines = [each.lines for each in dimensions if each.lines is not None]
    if missing and (len(lines) < len(dimensions) or not all(_spans(sets, lines) for sets in partial)):
        were = "was" if missing == 1 else "were"
        return _unknown(f"{missing:,} of {plural(world_size, 'rank')} {were} not recorded", found)
    dimensions.sort(key=lambda each: -each.stride)
    spans = [tuple(at for at, each in enumerate(dimensions) if number in each.families) for number in range(len(found))]
    return DeviceMesh(shape=tuple(each.size for each in dimensions), reason=""), spans


def _unknown(reason: str, found: Sequence[Any]) -> tuple[DeviceMesh, Sequence[tuple[int, ...]]]:
    return DeviceMesh(shape=(), reason=reason), [()] * len(found)


class _MeshDimension(Struct, frozen=True):
    size: int
    stride: int
    """First rank that it leads to from rank 0."""
    families: frozenset[int]
    """Numbers of the families that span it."""
    lines: I64 | None
    """Partition into its lines; None where only its size is known."""


def _dimensions(partitions: Sequence[I64 | None], ranks: I64) -> list[_MeshDimension] | None:
    """Return the dimensions of a mesh of these ranks; None if there is no such mesh.

    The finest partitions are dimensions. Others may span these and more. The rest is a mesh of the parts that these
    dimensions lead through.
    """
    if len(ranks) == 1:
        return []
    axes = _finest([labels for labels in partitions if labels is not None and _part_size(labels) > 1])
    if not axes:
        return None if axes is None else [_MeshDimension(len(ranks), int(ranks[1]), frozenset(), None)]
    whole = _product(axes)
    if whole is None:
        return None
    found = []
    for axis in axes:
        spanning = (at for at, labels in enumerate(partitions) if labels is not None and _refines(axis, labels))
        stride = int(ranks[np.flatnonzero(axis == 0)[1]])
        found.append(_MeshDimension(_part_size(axis), stride, frozenset(spanning), axis))
    first = distinct(whole)
    between: list[I64 | None] = []
    for number, labels in enumerate(partitions):
        joined = None if labels is None else _joined([labels, whole])
        if labels is not None and joined is not None:
            along = prod(each.size for each in found if number in each.families)
            counts = np.unique(joined, return_counts=True)[1]
            if (counts * along != _part_size(labels) * _part_size(whole)).any():
                return None
        between.append(None if joined is None else np.searchsorted(first, joined[first]))
    further = _dimensions(between, ranks[first])
    return None if further is None else [*found, *(replace(each, lines=None) for each in further)]


# -- Partitions: the first rank of each rank's part ------------------------------------------------------------------


def _partition(sets: Set[tuple[int, ...]], world_size: int) -> I64 | None:
    """Return the partition into these sets; None if they don't divide all ranks into equal parts."""
    sizes = {len(ranks) for ranks in sets}
    if len(sizes) != 1 or len(sets) * sizes.pop() != world_size or not _disjoint(sets):
        return None
    labels = np.empty(world_size, np.int64)
    for ranks in sets:
        labels[list(ranks)] = ranks[0]
    return labels


def _part_size(labels: I64) -> int:
    """Return the size of the parts, which are equal."""
    return int((labels == 0).sum())


def _refines(fine: I64, coarse: I64) -> bool:
    return bool((coarse[fine] == coarse).all())


def _finest(partitions: Sequence[I64]) -> list[I64] | None:
    """Return the finest of some partitions and of their common refinements; None if parts of these aren't equal."""
    found = {labels.tobytes(): labels for labels in partitions}
    pending = list(found.values())
    while pending:
        one = pending.pop()
        for other in [*found.values()]:
            common = _common(one, other)
            if common is None or len(found) > _MOST_PARTITIONS:
                return None
            if _part_size(common) > 1 and common.tobytes() not in found:
                found[common.tobytes()] = common
                pending.append(common)
    every = found.values()
    return [labels for labels in every if not any(_refines(other, labels) for other in every if other is not labels)]


def _common(one: I64, other: I64) -> I64 | None:
    """Return the common refinement of two partitions; None if its parts aren't equal."""
    _, first, part, sizes = np.unique(
        one * len(one) + other, return_index=True, return_inverse=True, return_counts=True
    )
    return first[part] if (sizes == sizes[0]).all() else None


def _product(axes: Sequence[I64]) -> I64 | None:
    """Return the partition into parts that dimensions lead through; None if they aren't those of a mesh.

    A rank's coordinate along a dimension is the part that the other dimensions lead through. In a mesh, there are as
    many coordinates in each whole part as a line has ranks, and each combination is one rank.
    """
    ranks, whole = len(axes[0]), _joined(axes)
    across = [_joined([axis for axis in axes if axis is not this] or [np.arange(ranks)]) for this in axes]
    parts = len(distinct(whole))
    regular = prod(map(_part_size, axes)) * parts == ranks and all(
        len(distinct(labels)) == _part_size(axis) * parts for labels, axis in zip(across, axes, strict=True)
    )
    coordinates = np.column_stack([whole, *across])
    return whole if regular and len(np.unique(coordinates, axis=0)) == ranks else None


def _joined(partitions: Sequence[I64]) -> I64:
    """Return the parts that the parts of some partitions lead through."""
    joined, before = partitions[0], None
    while before is None or (joined != before).any():
        before = joined
        for labels in partitions:
            least = np.full(len(labels), len(labels))
            np.minimum.at(least, labels, joined)
            joined = least[labels]
    return joined


def _spans(sets: Collection[tuple[int, ...]], axes: Sequence[I64]) -> bool:
    """Return whether each set consists of all ranks along some dimensions."""
    for ranks in sets:
        lines = [_part_size(axis) for axis in axes if len(distinct(axis[[*ranks]])) * _part_size(axis) == len(ranks)]
        if prod(lines) != len(ranks):
            return False
    return True
