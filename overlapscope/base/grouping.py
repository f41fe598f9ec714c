"""Grouping of rows with equal columns, and distinct values of columns that have few and small values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapscope.base.columns import mask_of, pick
from overlapscope.base.intervals import I64, Bool

Column = NDArray[np.signedinteger[Any]]

_INT16_LIMIT = 1 << 15
_MAX_RANGE_PER_VALUE = 8
"""Maximum length of a range per value for a table of the range to be faster than sorting."""


def groups_of(columns: Sequence[Column]) -> I64:
    """Return for each row the number of its group of rows with equal columns.

    Groups are numbered from 0 in the order of their columns' values, the first column first.
    """
    rows, groups = len(columns[0]), 1
    group = np.zeros(rows, np.int64)
    for column in columns if rows else ():
        low, high = int(column.min()), int(column.max())
        if _is_dense(0, groups * (high - low + 1), rows):
            values, value = high - low + 1, column.astype(np.int64) - low
        else:
            occurring, value = numbered(column)
            values = len(occurring)
        if values > 1:
            # Neither number exceeds that of the rows by much, so their product fits.
            occurring, group = numbered(group * values + value)
            groups = len(occurring)
    return group


def distinct_rows(columns: Sequence[Column]) -> list[tuple[int, ...]]:
    """Return the combinations of values that occur, in ascending order, the first column first."""
    if not len(columns[0]):
        return []
    group = groups_of(columns)
    first = np.empty(int(group.max()) + 1, np.int64)
    # The first row of each group is written last.
    first[group[::-1]] = np.arange(len(group))[::-1]
    return [tuple(row) for row in np.stack([column[first] for column in columns], axis=1).tolist()]


def group_starts(*columns: Column) -> I64:
    """Return the first row of each group of equal rows.

    The columns must be sorted together, the first column first.
    """
    opens = np.ones(len(columns[0]), np.bool_)
    if len(opens):
        opens[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return np.flatnonzero(opens)


def first_of_each(group: Column, *by: Column | Bool) -> I64:
    """Return the row of each group that is first by some columns, the first column first; in the order of groups."""
    order = np.lexsort((*reversed(by), group))
    return order[group_starts(group[order])]


def distinct(values: Column) -> I64:
    """Return the values that occur, in ascending order.

    `np.unique` does the same, but its first call of this kind imports `numpy.ma`, which takes longer than most
    analyses, and it sorts times, which are nearly in order, in ten times the time.
    """
    if not len(values):
        return values.astype(np.int64)
    low, high = int(values.min()), int(values.max())
    if _is_dense(low, high, len(values)):
        return np.flatnonzero(mask_of(values.astype(np.int64) - low, high - low + 1)) + low
    ordered = np.sort(values, kind="stable").astype(np.int64)
    return ordered[group_starts(ordered)]


def among(values: Column, wanted: Column | Sequence[int]) -> Bool:
    """Return a mask of the values that are among the wanted ones.

    `np.isin` does the same, but imports `numpy.ma` for values that are far apart, such as times.
    """
    known = distinct(np.asarray(wanted, np.int64))
    if not len(known):
        return np.zeros(len(values), np.bool_)
    low, high = int(known[0]), int(known[-1])
    if _is_dense(low, high, len(values) + len(known)):
        in_range = (values >= low) & (values <= high)
        found = mask_of(known - low, high - low + 1)
        in_range[in_range] = found[values[in_range].astype(np.int64) - low]
        return in_range
    found_at: Bool = pick(known, np.searchsorted(known, values), low) == values
    return found_at


def _is_dense(low: int, high: int, count: int) -> bool:
    """Return whether values fill their range well enough to mark them in a table of the range, without sorting."""
    return high - low < _MAX_RANGE_PER_VALUE * count


def numbered(values: Column) -> tuple[I64, I64]:
    """Return the values that occur, in ascending order, and each one's place among them.

    This is `np.unique` with `return_inverse`, in linear time where possible.
    """
    if not len(values):
        return values.astype(np.int64), values.astype(np.int64)
    low, high = int(values.min()), int(values.max())
    if not _is_dense(low, high, len(values)):
        occurring, place = np.unique(values, return_inverse=True)
        return occurring.astype(np.int64), place
    offset = values.astype(np.int64) - low
    occurs = mask_of(offset, high - low + 1)
    return np.flatnonzero(occurs) + low, (np.cumsum(occurs) - 1)[offset]


def rows_by(values: Column) -> list[tuple[int, I64]]:
    """Return the values that occur and the rows of each, both in ascending order."""
    if not len(values):
        return []
    low, high = int(values.min()), int(values.max())
    if low == high:
        return [(low, np.arange(len(values)))]
    # Small numbers sort in linear time.
    order = np.argsort(
        values.astype(np.int16) if low >= -_INT16_LIMIT and high < _INT16_LIMIT else values, kind="stable"
    )
    ordered = values[order]
    first = group_starts(ordered)
    return list(zip(ordered[first].tolist(), np.split(order, first[1:]), strict=True))
