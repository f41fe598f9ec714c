"""Times at which a lane was in a category: sets of instants that can be measured in every pixel column at once."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from overlapscope.base.columns import I64, U8
from overlapscope.base.intervals import union


class Fill(Struct, frozen=True, eq=False):
    """At least one interval, disjoint and sorted, with prefix sums of their lengths."""

    category: int
    """Position in `CATEGORIES`."""
    starts: I64
    passed: I64
    """Length of all intervals before each; one more than there are intervals, the last being the total."""

    @property
    def total_ns(self) -> int:
        return int(self.passed[-1])

    def before(self, at_ns: I64) -> I64:
        """Return the length of the set before each of some ascending instants."""
        place = np.maximum(self.starts.searchsorted(at_ns, side="right") - 1, 0)
        passed = self.passed[place]
        inside: I64 = np.clip(at_ns - self.starts[place], 0, self.passed[place + 1] - passed)
        return passed + inside

    def touches(self, start_ns: int, end_ns: int) -> bool:
        """Return whether part of the set is in `[start_ns, end_ns)`."""
        last = int(self.starts.searchsorted(end_ns)) - 1
        return last >= 0 and bool(self.starts[last] + self.passed[last + 1] - self.passed[last] > start_ns)


def fills(start_ns: I64, end_ns: I64, category: U8) -> tuple[Fill, ...]:
    """Return the instants of each category that occurs."""
    filled = []
    for number in np.flatnonzero(np.bincount(category)).tolist():
        chosen = category == number
        starts, ends = union(start_ns, end_ns) if chosen.all() else union(start_ns[chosen], end_ns[chosen])
        if len(starts):
            filled.append(Fill(number, starts, np.concatenate([[0], np.cumsum(ends - starts)])))
    return tuple(filled)


FULL = 255


class PixelColumns(Struct, frozen=True, eq=False):
    """Pixel columns; column k covers `[cuts[k], cuts[k] + length[k])`, at least 1 ns."""

    start_ns: int
    end_ns: int
    cuts: I64
    """Shape `(columns + 1,)`: `start + span*k//columns`."""
    length: I64


def columns_of(start_ns: int, end_ns: int, columns: int) -> PixelColumns:
    """Return the columns of a view."""
    width_ns, rest = divmod(end_ns - start_ns, columns)
    # span*k//columns, without a product that could overflow.
    at = np.arange(columns + 1, dtype=np.int64)
    cuts = start_ns + width_ns * at + rest * at // columns
    return PixelColumns(start_ns, end_ns, cuts, np.maximum(np.diff(cuts), 1))


def share(fill: Fill, columns: PixelColumns) -> U8 | None:
    """Return how much of each column a set covers: 0 nothing, 255 all of it, otherwise 254ths, rounded up.

    None for a set that covers no part of any column.
    """
    if not fill.touches(columns.start_ns, columns.end_ns):
        return None
    passed = fill.before(columns.cuts)
    if columns.cuts[1] == columns.cuts[0]:
        # With more columns than nanoseconds, columns overlap.
        ran = fill.before(columns.cuts[:-1] + columns.length) - passed[:-1]
    else:
        ran = np.diff(passed)
    parts = ((FULL - 1) * ran + columns.length - 1) // columns.length
    shares: U8 = np.where(ran == columns.length, FULL, parts).astype(np.uint8)
    return shares if shares.any() else None
