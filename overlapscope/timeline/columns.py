"""How full each pixel column is, exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from overlapscope.base.intervals import I64
from overlapscope.timeline.categories import U8
from overlapscope.timeline.fill import Fill

FULL = 255


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Column k covers `[cuts[k], cuts[k] + length[k])`, which is at least 1 ns."""

    start_ns: int
    end_ns: int
    cuts: I64
    """Shape `(columns + 1,)`: `start + span*k//columns`."""
    length: I64
    touching: bool
    """Each column ends where the next begins, as they do unless there are more columns than ns."""


def columns_of(start_ns: int, end_ns: int, columns: int) -> Columns:
    """The columns of a view."""
    whole, rest = divmod(end_ns - start_ns, columns)
    # span*k//columns, without a product that might not fit.
    at = np.arange(columns + 1, dtype=np.int64)
    cuts = start_ns + whole * at + rest * at // columns
    return Columns(start_ns, end_ns, cuts, np.maximum(np.diff(cuts), 1), whole > 0)


def shares(fill: Fill, columns: Columns) -> U8 | None:
    """How much of each column the category covers: 0 nothing, 255 all of it, else 254ths, rounded up. None where it
    covers nothing of any."""
    first_ns, last_ns = fill.reach_ns
    if first_ns >= columns.end_ns or last_ns <= columns.start_ns or not fill.touches(columns.start_ns, columns.end_ns):
        return None
    # Only the columns between, and one on the left, which may reach into the first interval.
    low = max(int(columns.cuts.searchsorted(first_ns)) - 1, 0)
    high = min(int(columns.cuts.searchsorted(last_ns)), len(columns.length))
    cuts, length = columns.cuts[low : high + 1], columns.length[low:high]
    passed = fill.before(cuts)
    ran = np.diff(passed) if columns.touching else fill.before(cuts[:-1] + length) - passed[:-1]
    if not ran.any():
        return None
    full = ran == length
    ran *= FULL - 1
    ran += length
    ran -= 1
    ran //= length
    ran[full] = FULL
    share = np.zeros(len(columns.length), np.uint8)
    share[low:high] = ran
    return share
