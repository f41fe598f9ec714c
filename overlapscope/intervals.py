"""Interval algebra on sorted int64 arrays. Knows nothing of traces.

Intervals are half-open `[start, end)`. A zero-length or inverted interval covers no time. `Intervals` is
always a *set* in canonical form: sorted, disjoint and not touching; `union` makes one from anything.
Everything is O(n log n) in the number of intervals and exact in int64.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
Bool = NDArray[np.bool_]
Index = NDArray[np.intp]


class Intervals(NamedTuple):
    """A set of instants: `starts[i] < ends[i] < starts[i + 1]`."""

    starts: I64
    ends: I64


def _i64(values: I64 | Sequence[int]) -> I64:
    return np.asarray(values, dtype=np.int64)


EMPTY = Intervals(np.empty(0, np.int64), np.empty(0, np.int64))


def union(starts: I64 | Sequence[int], ends: I64 | Sequence[int]) -> Intervals:
    """The instants covered by at least one of the given intervals, in any order, overlapping or not."""
    start, end = _i64(starts), _i64(ends)
    keep = end > start
    start, end = start[keep], end[keep]
    if not len(start):
        return EMPTY
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    opens = np.empty(len(start), np.bool_)
    opens[0] = True
    np.greater(start[1:], reach[:-1], out=opens[1:])
    first = np.flatnonzero(opens)
    last = np.append(first[1:] - 1, len(start) - 1)
    return Intervals(start[first], reach[last])


def total(a: Intervals) -> int:
    """Length of the set."""
    return int((a.ends - a.starts).sum())


def join(*sets: Intervals) -> Intervals:
    """Instants in any of the sets."""
    return union(np.concatenate([a.starts for a in sets]), np.concatenate([a.ends for a in sets]))


def complement(a: Intervals, start: int, end: int) -> Intervals:
    """Instants of `[start, end)` outside `a`."""
    if end <= start:
        return EMPTY
    inside = clip(a, start, end)
    return _canonical(np.append(start, inside.ends), np.append(inside.starts, end))


def intersect(a: Intervals, b: Intervals) -> Intervals:
    """Instants in both sets."""
    if not len(a.starts) or not len(b.starts):
        return EMPTY
    # Every piece of the intersection begins at a start of one set that lies inside the other.
    first = np.searchsorted(b.ends, a.starts, side="right")
    last = np.searchsorted(b.starts, a.ends, side="left")
    row, which = expand(first, last)
    return _canonical(np.maximum(a.starts[row], b.starts[which]), np.minimum(a.ends[row], b.ends[which]))


def subtract(a: Intervals, b: Intervals) -> Intervals:
    """Instants in `a` and not in `b`."""
    if not len(a.starts):
        return EMPTY
    return intersect(a, complement(b, int(a.starts[0]), int(a.ends[-1])))


def clip(a: Intervals, start: int, end: int) -> Intervals:
    """Instants of `a` in `[start, end)`."""
    return intersect(a, union([start], [end]))


def covered_before(a: Intervals, at: I64) -> I64:
    """Length of `a` in `(-inf, at)` for each given instant."""
    lengths = np.append(0, np.cumsum(a.ends - a.starts))
    row = np.searchsorted(a.starts, at, side="right")
    # The interval opened last may reach beyond `at`.
    over = np.where(row > 0, np.maximum(np.append(a.ends, 0)[row - 1] - at, 0), 0)
    result: I64 = lengths[row] - over
    return result


def covered(a: Intervals, starts: I64 | Sequence[int], ends: I64 | Sequence[int]) -> I64:
    """Length of `a` inside each given interval."""
    start, end = _i64(starts), _i64(ends)
    return np.where(end > start, covered_before(a, end) - covered_before(a, start), 0)


def contains(a: Intervals, at: I64) -> Bool:
    """Whether each instant lies in `a`."""
    row = np.searchsorted(a.starts, at, side="right") - 1
    inside: Bool = (row >= 0) & (np.append(a.ends, 0)[row] > at)
    return inside


def expand(first: Index, last: Index) -> tuple[Index, Index]:
    """The pairs `(i, j)` with `first[i] <= j < last[i]`, as two arrays in order."""
    counts = np.maximum(last - first, 0)
    row = np.repeat(np.arange(len(counts)), counts)
    offset = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    return row, first[row] + offset


def cut(starts: I64, ends: I64, windows: Intervals) -> tuple[Index, I64, I64]:
    """The parts of each interval inside the windows: `(row of the interval, start, end)`, in order."""
    first = np.searchsorted(windows.ends, starts, side="right")
    row, which = expand(first, np.searchsorted(windows.starts, ends, side="left"))
    begin, stop = np.maximum(starts[row], windows.starts[which]), np.minimum(ends[row], windows.ends[which])
    kept = stop > begin
    return row[kept], begin[kept], stop[kept]


class Nesting:
    """Intervals that nest (a call stack), prepared to be asked for the innermost one around an instant.

    They must be sorted by start, then longest first. Where recorded times cross by a rounding error the answer
    may be an outer interval or none, never one that does not contain the instant.
    """

    def __init__(self, starts: I64, ends: I64) -> None:
        rows = np.flatnonzero(ends > starts)
        self._rows, self._starts, self._ends = rows, starts[rows], ends[rows]
        self._closed = np.sort(self._ends)
        # Depth of an interval: how many are open when it opens, itself included. At one depth intervals follow
        # one another, so the last one opened at the depth of an instant is the only candidate.
        depth = np.arange(1, len(rows) + 1) - np.searchsorted(self._closed, self._starts, side="right")
        self._order = np.argsort(depth, kind="stable")
        self._key = depth[self._order] * (len(rows) + 1) + self._order

    def innermost(self, at: I64) -> I64:
        """For each instant, the row of the innermost interval that contains it, or -1."""
        if not len(self._rows):
            return np.full(len(at), -1, np.int64)
        position = np.searchsorted(self._starts, at, side="right")
        depth = position - np.searchsorted(self._closed, at, side="right")
        found = np.searchsorted(self._key, depth * (len(self._rows) + 1) + position, side="left") - 1
        candidate = self._order[np.maximum(found, 0)]
        good = (found >= 0) & (depth > 0) & (self._starts[candidate] <= at) & (at < self._ends[candidate])
        return np.where(good, self._rows[candidate], -1)


def outermost(starts: I64, ends: I64, at: I64) -> I64:
    """For each instant, the row of the interval around it that ends last, or -1. Sorted by start; they may cross."""
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
