"""Interval algebra on sorted int64 arrays, independent of traces.

Intervals are half-open `[start, end)`. A zero-length or inverted interval covers no time. `Intervals` is always a *set*
in canonical form: sorted, disjoint and not touching; `union` makes a set from any intervals. All functions are O(n log
n) in the number of intervals and exact in int64.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappush, heappushpop
from typing import Final, NamedTuple

import numpy as np

from overlapscope.base import columns

I64 = columns.I64
Bool = columns.Bool
Index = columns.Index

_MANY: Final = 2
"""Minimum number of instants per interval for a look-up of the intervals among the instants to be faster than the
reverse."""


class Intervals(NamedTuple):
    """A set of instants: `starts[i] < ends[i] < starts[i + 1]`."""

    starts: I64
    ends: I64


def _i64(values: I64 | Sequence[int]) -> I64:
    return np.asarray(values, dtype=np.int64)


EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def union(starts: I64 | Sequence[int], ends: I64 | Sequence[int]) -> Intervals:
    """Return the instants covered by at least one of some intervals, in any order, overlapping or not."""
    start, end = _i64(starts), _i64(ends)
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    if not len(start):
        return EMPTY
    if (start[1:] < start[:-1]).any():
        # Sorting starts and ends separately makes other intervals, but at any instant as many are open.
        start, end = np.sort(start, kind="stable"), np.sort(end, kind="stable")
    reach = np.maximum.accumulate(end)
    opens = np.empty(len(start), np.bool_)
    opens[0] = True
    np.greater(start[1:], reach[:-1], out=opens[1:])
    first = np.flatnonzero(opens)
    last = np.append(first[1:] - 1, len(start) - 1)
    return Intervals(start[first], reach[last])


def total(a: Intervals) -> int:
    """Return the length of a set."""
    return int((a.ends - a.starts).sum())


def join(*sets: Intervals) -> Intervals:
    """Return the instants in any of the sets."""
    filled = [a for a in sets if len(a.starts)]
    if len(filled) < 2:
        return filled[0] if filled else EMPTY
    return union(np.concatenate([a.starts for a in filled]), np.concatenate([a.ends for a in filled]))


def complement(a: Intervals, start: int, end: int) -> Intervals:
    """Return the instants of `[start, end)` outside `a`."""
    if end <= start:
        return EMPTY
    inside = clip(a, start, end)
    return _canonical(np.append(start, inside.ends), np.append(inside.starts, end))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Return the instants in both sets."""
    if not len(a.starts) or not len(b.starts):
        return EMPTY
    # Every piece of the intersection begins at a start in either set that lies inside the other.
    first = np.searchsorted(b.ends, a.starts, side="right")
    last = np.searchsorted(b.starts, a.ends, side="left")
    row, which = expand(first, last)
    return _canonical(np.maximum(a.starts[row], b.starts[which]), np.minimum(a.ends[row], b.ends[which]))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Return the instants in `a` and not in `b`."""
    if not len(a.starts):
        return EMPTY
    return intersect(a, complement(b, int(a.starts[0]), int(a.ends[-1])))


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """Return the instants of `a` in `[start, end)`."""
    if end <= start:
        return EMPTY
    first, last = np.searchsorted(a.ends, start, side="right"), np.searchsorted(a.starts, end)
    return Intervals(np.maximum(a.starts[first:last], start), np.minimum(a.ends[first:last], end))


def covered_before(a: Intervals, at: I64) -> I64:
    """Return the length of `a` in `(-inf, at)` for each instant, in the shape of `at`."""
    lengths = np.append(0, np.cumsum(a.ends - a.starts))
    row = np.searchsorted(a.starts, at, side="right")
    # The interval opened last may reach beyond `at`.
    over = np.where(row > 0, np.maximum(np.append(a.ends, 0)[row - 1] - at, 0), 0)
    result: I64 = lengths[row] - over
    return result


def covered(a: Intervals, starts: I64 | Sequence[int], ends: I64 | Sequence[int]) -> I64:
    """Return the length of `a` inside each interval."""
    start, end = _i64(starts), _i64(ends)
    if not len(a.starts):
        return np.zeros(len(start), np.int64)
    begin, stop = covered_before(a, np.stack([start, end]))
    return np.where(end > start, stop - begin, 0)


def contains(a: Intervals, at: I64) -> Bool:
    """Return whether each instant lies in `a`."""
    if at.ndim > 1 or len(at) < _MANY * len(a.starts) or (at[1:] < at[:-1]).any():
        row = np.searchsorted(a.starts, at, side="right") - 1
    else:
        # Each start counts for the instants from the first one that is not before it.
        first = np.searchsorted(at, a.starts, side="left")
        row = np.cumsum(np.bincount(first, minlength=len(at) + 1))[:-1] - 1
    inside: Bool = (row >= 0) & (np.append(a.ends, 0)[row] > at)
    return inside


def expand(first: Index, last: Index) -> tuple[Index, Index]:
    """Return the pairs `(i, j)` with `first[i] <= j < last[i]`, as two arrays in order."""
    counts = np.maximum(last - first, 0)
    row = np.repeat(np.arange(len(counts)), counts)
    offset = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    return row, first[row] + offset


def few_at_once(first: Index, last: Index, end: I64, most: int) -> Index:
    """Return `last` with which at most so many rows of `expand` have the same `j`: of more, those with the last ends.

    Both `last` and `first` must follow from the ends and starts of intervals.
    """
    size = int(last.max(initial=0)) + 1
    begun = np.bincount(np.minimum(first, last), minlength=size)
    if np.cumsum(begun - np.bincount(last, minlength=size)).max(initial=0) <= most:
        return last
    begins, until = first.tolist(), last.tolist()
    # The first `j`, negated, of those rows that begin first among the rows that end later.
    sooner: list[int] = []
    for row in np.argsort(-end, kind="stable").tolist():
        if len(sooner) < most:
            heappush(sooner, -begins[row])
        else:
            until[row] = min(until[row], -sooner[0])
            heappushpop(sooner, -begins[row])
    return np.array(until, np.int64)


def cut(starts: I64, ends: I64, windows: Intervals, *, most: int | None = None) -> tuple[Index, I64, I64]:
    """Return the parts of each interval inside the windows: `(row of the interval, start, end)`, in order.

    Of more than `most` intervals in a window, only those that end last are cut.
    """
    first = np.searchsorted(windows.ends, starts, side="right")
    last = np.searchsorted(windows.starts, ends, side="left")
    row, which = expand(first, last if most is None else few_at_once(first, last, ends, most))
    begin, stop = np.maximum(starts[row], windows.starts[which]), np.minimum(ends[row], windows.ends[which])
    kept = stop > begin
    return row[kept], begin[kept], stop[kept]


class Nesting:
    """Nested intervals (a call stack), prepared for finding the innermost interval around an instant.

    They must be sorted by start, then longest first. Then the innermost interval is the last to start of those that are
    still open, even where recorded times cross by a rounding error.
    """

    def __init__(self, starts: I64, ends: I64) -> None:
        self._starts = starts
        self._reach = np.maximum.accumulate(ends)
        # Latest end in each block of 1, 2, 4... intervals, to skip blocks in which all have ended.
        self._latest = [ends]
        while len(below := self._latest[-1]) > 1:
            above = np.maximum(below[: len(below) // 2 * 2 : 2], below[1::2])
            self._latest.append(np.append(above, below[-1]) if len(below) % 2 else above)

    def innermost(self, at: I64) -> I64:
        """Return the row of the innermost interval that contains each instant, or -1."""
        if not len(self._starts):
            return np.full(len(at), -1)
        # All intervals before `block` have started. Mostly the last of them is open, or all have ended.
        block = np.searchsorted(self._starts, at, side="right")
        last = np.maximum(block - 1, 0)
        row = np.where((block > 0) & (self._latest[0][last] > at), last, -1)
        further = np.flatnonzero((block > 0) & (row < 0) & (self._reach[last] > at))
        if len(further):
            row[further] = self._last_open(block[further], at[further])
        return row

    def _last_open(self, block: I64, at: I64) -> I64:
        """Return the last open interval before `block` at each instant, at which there is one."""
        level = np.full(len(at), -1)
        looking = np.arange(len(at))
        # Go left in growing blocks until a block holds an open interval.
        for number, latest in enumerate(self._latest):
            here = block[looking]
            # An even block is the second half of a block that the next level examines.
            within = (here % 2 == 1) & (latest[here - 1] > at[looking])
            level[looking[within]] = number
            block[looking] = np.where(within, here - 1, here // 2)
            looking = looking[~within]
            if not len(looking):
                break
        # Go down again, to the last such interval in the block.
        for number in range(len(self._latest) - 1, 0, -1):
            down = np.flatnonzero(level == number)
            latest, half = self._latest[number - 1], 2 * block[down] + 1
            in_reach = half < len(latest)
            in_reach[in_reach] = latest[half[in_reach]] > at[down[in_reach]]
            block[down] = half - ~in_reach
            level[down] = number - 1
        return block


def side_by_side(starts: I64, ends: I64) -> Intervals:
    """Return the times in which several of some intervals, sorted by start, run at once."""
    # An interval overlaps those before it up to the latest of their ends.
    return union(starts[1:], np.minimum(ends[1:], np.maximum.accumulate(ends)[:-1]))


def begins_after_all(starts: I64, ends: I64) -> Bool:
    """Select the intervals, sorted by start, before which all earlier ones have ended."""
    reach = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, ends))[:-1]
    return starts >= reach


def outermost(starts: I64, ends: I64, at: I64) -> I64:
    """Return the row of the interval around each instant that ends last, or -1. Sorted by start; they may cross."""
    if not len(starts):
        return np.full(len(at), -1, np.int64)
    reach = np.maximum.accumulate(ends)
    sets_it = np.append(True, ends[1:] > reach[:-1])
    leader = np.maximum.accumulate(np.where(sets_it, np.arange(len(starts)), 0))
    last = np.searchsorted(starts, at, side="right") - 1
    row = leader[np.maximum(last, 0)]
    return np.where((last >= 0) & (ends[row] > at), row, -1)


def _canonical(starts: I64, ends: I64) -> Intervals:
    keep = ends > starts
    return Intervals(starts[keep], ends[keep])
