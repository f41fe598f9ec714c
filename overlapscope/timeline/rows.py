"""Sorting events into lanes and rows of lanes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapscope.trace.model import I8, I64, Index

DEEPEST = 8
"""Rows of one nest; what lies deeper is drawn in the last, over what it lies in."""


def groups(key: NDArray[np.integer[Any]]) -> Iterator[tuple[int, Index]]:
    """Each value of the key with its rows in order."""
    values = np.unique(key)
    if len(values) == 1:
        yield int(values[0]), np.arange(len(key))
        return
    # Few values as small numbers sort in linear time.
    place = np.searchsorted(values, key)
    order = np.argsort(place.astype(np.uint16) if len(values) < 1 << 16 else place, kind="stable")
    bounds = np.append(0, np.cumsum(np.bincount(place, minlength=len(values))))
    for number, value in enumerate(values.tolist()):
        yield value, order[bounds[number] : bounds[number + 1]]


def depths(start_ns: I64, end_ns: I64) -> I8:
    """How many events are open when each one opens, at most `DEEPEST - 1`. They must be sorted by start, then longest
    first; one of no length counts as 1 ns."""
    closed = np.sort(np.maximum(end_ns, start_ns + 1), kind="stable")
    depth = np.arange(len(start_ns)) - np.searchsorted(closed, start_ns, side="right")
    capped: I8 = np.clip(depth, 0, DEEPEST - 1).astype(np.int8)
    return capped


def first_free(start_ns: I64, end_ns: I64) -> I8:
    """The first row in which each event finds room, for events that cross one another, by start."""
    rows = np.zeros(len(start_ns), np.int8)
    ends: list[int] = []
    for number, (start, end) in enumerate(zip(start_ns.tolist(), end_ns.tolist(), strict=True)):
        row = next((row for row, taken in enumerate(ends) if taken <= start), len(ends))
        if row == len(ends) and row < DEEPEST:
            ends.append(end)
        row = min(row, DEEPEST - 1)
        rows[number], ends[row] = row, max(end, ends[row])
    return rows


def by_start(start_ns: I64, end_ns: I64) -> Index:
    """The order by start, then longest first, for times that are sorted in parts: one stable sort, and another of
    the few that begin at once."""
    order = np.argsort(start_ns, kind="stable")
    begun = start_ns[order]
    same = np.append(False, begun[1:] == begun[:-1])
    tied = np.flatnonzero(same | np.append(same[1:], False))
    among = order[tied]
    order[tied] = among[np.lexsort((-end_ns[among], start_ns[among]))]
    return order
