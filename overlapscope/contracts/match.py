"""Pairs of groups of two contracts that are the same part of the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

_Group = TypeVar("_Group")


def pairs(
    before: Sequence[_Group], after: Sequence[_Group], distance: Callable[[_Group, _Group], tuple[float, ...] | None]
) -> tuple[list[tuple[_Group, _Group]], list[_Group], list[_Group]]:
    """Pair groups, the nearest first.

    Args:
        before: Groups of the contract.
        after: Groups of the recording.
        distance: Distance of two groups, to be compared with that of others; None if they can't be the same.

    Returns:
        The pairs in the order of `before`, and the groups that are left on each side.
    """
    possible = sorted(
        (apart, number, other)
        for number, old in enumerate(before)
        for other, new in enumerate(after)
        if (apart := distance(old, new)) is not None
    )
    partner: dict[int, int] = {}
    taken: set[int] = set()
    for _, number, other in possible:
        if number not in partner and other not in taken:
            partner[number] = other
            taken.add(other)
    return (
        [(before[number], after[partner[number]]) for number in sorted(partner)],
        [old for number, old in enumerate(before) if number not in partner],
        [new for number, new in enumerate(after) if number not in taken],
    )
