"""Times at which a lane was in a category: sets of instants that can be measured in every pixel column at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from overlapscope.base.columns import I32, I64, U8
from overlapscope.base.intervals import union

_NEVER = 1 << 62
_PER_CELL = 2
_FEW = 32_768
"""Up to this number, copying and searching intervals is faster than the grid."""
_TOGETHER = 32
"""Number of sets measured at once. With more sets in 64-bit columns, the data would not fit in a core's cache."""


class Fill(Struct, frozen=True, eq=False):
    """Disjoint intervals with prefix sums, and a grid to find an instant in them.

    The grid replaces most steps of a binary search, which miss the cache among millions of intervals.
    """

    category: int
    """Position in `CATEGORIES`; -1 for a set without a category."""
    flat: I64
    """Alternating: the start of each interval, and the length of all intervals before it. A last start that is never
    reached ends it, with the total length."""
    grid: I32
    """Number of intervals that start before each of a series of instants, `2^shift` ns apart; the last is the total."""
    shift: int

    @property
    def total_ns(self) -> int:
        return int(self.flat[-2])

    @property
    def reach_ns(self) -> tuple[int, int]:
        """Start of the first interval and end of the last."""
        first, (start, passed, _, total) = int(self.flat[0]), self.flat[-5:-1].tolist()
        return first, start + total - passed

    def before(self, at_ns: I64) -> I64:
        """Return the length of the set before each instant."""
        cell = at_ns >> self.shift
        # Positions in `flat` of the first interval that may start after each instant, refined by bisection.
        place = self.grid.take(cell, mode="clip").astype(np.int64)
        cell += 1
        most = int((self.grid.take(cell, mode="clip") - place).max(initial=0))
        place *= 2
        step = 1 << most.bit_length()
        while step > 1:
            begun = self.flat.take(place + (step - 2), mode="clip") <= at_ns
            place += step * begun
            step >>= 1
        # Step back to the interval that started last.
        place -= 2
        np.maximum(place, 0, out=place)
        inside = at_ns - self.flat.take(place, mode="clip")
        place += 1
        passed = self.flat.take(place, mode="clip")
        place += 2
        np.minimum(inside, self.flat.take(place, mode="clip") - passed, out=inside)
        np.maximum(inside, 0, out=inside)
        inside += passed
        return inside

    def between(self, start_ns: int, end_ns: int) -> tuple[int, int]:
        """Return the positions of all intervals that start in `[start_ns, end_ns]`, and of a few others."""
        last = len(self.grid) - 1
        first, behind = max(start_ns >> self.shift, 0), max((end_ns >> self.shift) + 1, 0)
        return self.grid.item(min(first, last)), self.grid.item(min(behind, last))

    def touches(self, start_ns: int, end_ns: int) -> bool:
        """Return whether part of the set may be in `[start_ns, end_ns)`; rules out distant spans at once."""
        first_ns, last_ns = self.reach_ns
        if first_ns >= end_ns or last_ns <= start_ns:
            return False
        first, behind = self.between(start_ns, end_ns)
        if first < behind:
            return True
        start, passed, _, both = self.flat[2 * first - 2 : 2 * first + 2].tolist() if first else (0, 0, 0, 0)
        return bool(start + both - passed > start_ns)


def before_each(fills: Sequence[Fill], at_ns: I64) -> I64:
    """Return the length of each set before each of some ascending instants, with a row for each set.

    If few intervals of a set are between the instants, they are copied next to those of other sets and searched
    together: a call of numpy takes longer than a search for a thousand instants.
    """
    lengths = np.empty((len(fills), len(at_ns)), np.int64)
    near: list[int] = []
    parts: list[I64] = []
    places: list[I64] = []
    copied = 0
    for row, fill in enumerate(fills):
        first, behind = fill.between(int(at_ns[0]), int(at_ns[-1]))
        if behind - first > _FEW:
            lengths[row] = fill.before(at_ns)
            continue
        # From the interval before the first instant to the start of the interval after the last instant.
        first = max(first - 1, 0)
        part = fill.flat[2 * first : 2 * max(behind, first + 1) + 2]
        place = part[:-2:2].searchsorted(at_ns, side="right")
        place -= 1
        near.append(row)
        parts.append(part)
        places.append(2 * np.maximum(place, 0, out=place) + copied)
        copied += len(part)
    if near:
        flat, place = np.concatenate(parts), np.stack(places)
        inside = at_ns - flat.take(place)
        place += 1
        passed = flat.take(place)
        place += 2
        np.minimum(inside, flat.take(place) - passed, out=inside)
        np.maximum(inside, 0, out=inside)
        inside += passed
        lengths[near] = inside
    return lengths


def fills(start_ns: I64, end_ns: I64, category: U8) -> tuple[Fill, ...]:
    """Return the instants of each category that occurs. Times must not be negative."""
    filled = []
    for number in np.flatnonzero(np.bincount(category)).tolist():
        chosen = category == number
        starts, ends = union(start_ns, end_ns) if chosen.all() else union(start_ns[chosen], end_ns[chosen])
        if len(starts):
            filled.append(fill_of(number, starts, ends))
    return tuple(filled)


def fill_of(category: int, starts: I64, ends: I64) -> Fill:
    """Return a set of at least one interval. Times must not be negative."""
    count = len(starts)
    flat = np.empty(2 * count + 3, np.int64)
    flat[: 2 * count : 2] = starts
    flat[1] = 0
    np.cumsum(ends - starts, out=flat[3::2])
    flat[2 * count :: 2] = _NEVER
    shift = max(int(starts[-1] * _PER_CELL // count).bit_length() - 1, 0)
    cells = np.bincount(starts >> shift)
    grid = np.zeros(len(cells) + 1, np.int32)
    np.cumsum(cells, out=grid[1:])
    return Fill(category, flat, grid, shift)


FULL = 255


class PixelColumns(Struct, frozen=True, eq=False):
    """Pixel columns; column k covers `[cuts[k], cuts[k] + length[k])`, at least 1 ns."""

    start_ns: int
    end_ns: int
    cuts: I64
    """Shape `(columns + 1,)`: `start + span*k//columns`."""
    length: I64
    touching: bool
    """True if each column ends where the next starts, as it does unless there are more columns than nanoseconds."""


def columns_of(start_ns: int, end_ns: int, columns: int) -> PixelColumns:
    """Return the columns of a view."""
    width_ns, rest = divmod(end_ns - start_ns, columns)
    # span*k//columns, without a product that could overflow.
    at = np.arange(columns + 1, dtype=np.int64)
    cuts = start_ns + width_ns * at + rest * at // columns
    return PixelColumns(start_ns, end_ns, cuts, np.maximum(np.diff(cuts), 1), width_ns > 0)


def shares(fills: Sequence[Fill], columns: PixelColumns) -> list[U8 | None]:
    """Return how much of each column each set covers: 0 nothing, 255 all of it, otherwise 254ths, rounded up.

    None for a set that covers no part of any column.
    """
    covered: list[U8 | None] = [None] * len(fills)
    touching = [place for place, fill in enumerate(fills) if fill.touches(columns.start_ns, columns.end_ns)]
    for begin in range(0, len(touching), _TOGETHER):
        places = touching[begin : begin + _TOGETHER]
        for place, share in zip(places, _shares([fills[place] for place in places], columns), strict=True):
            covered[place] = share if share.any() else None
    return covered


def _shares(fills: Sequence[Fill], columns: PixelColumns) -> U8:
    passed = before_each(fills, columns.cuts)
    if columns.touching:
        ran = passed[:, 1:] - passed[:, :-1]
    else:
        ran = before_each(fills, columns.cuts[:-1] + columns.length) - passed[:, :-1]
    full = ran == columns.length
    ran *= FULL - 1
    ran += columns.length
    ran -= 1
    ran //= columns.length
    ran[full] = FULL
    return ran.astype(np.uint8)
