"""Pairs of groups of two contracts that are the same part of the program."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

_Group = TypeVar("_Group")


def pairs(
    before: Sequence[_Group], after: Sequence[_Group], keys: Sequence[Callable[[_Group], Hashable]]
) -> tuple[list[tuple[_Group, _Group]], list[_Group], list[_Group]]:
    """Pair groups with equal keys, by the first of the keys that has a partner left. Equal ones are paired in order.

    Args:
        before: Groups of the contract.
        after: Groups of the recording.
        keys: Keys of a group, from the strictest to the loosest.

    Returns:
        The pairs in the order of `before`, and the groups that are left on each side.
    """
    partner: dict[int, int] = {}
    here, there = list(range(len(before))), list(range(len(after)))
    for key in keys:
        places: dict[Hashable, list[int]] = {}
        for other in reversed(there):
            places.setdefault(key(after[other]), []).append(other)
        for number in here:
            if equal := places.get(key(before[number])):
                partner[number] = equal.pop()
        here = [number for number in here if number not in partner]
        there = sorted(other for left in places.values() for other in left)
    return (
        [(before[number], after[partner[number]]) for number in sorted(partner)],
        [before[number] for number in here],
        [after[other] for other in there],
    )
