"""Grouping of rows with equal columns, and distinct values of columns that have few and small values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapscope.base.intervals import I64

Column = NDArray[np.signedinteger[Any]]

_LARGEST = 1 << 62
_SMALL = 1 << 15


def groups_of(columns: Sequence[Column]) -> I64:
    """Return for each row the number of its group of rows with equal columns.

    Groups are numbered from 0 in the order of their columns' values, the first column first. There must be at least one
    row.
    """
    group: I64 = np.unique(_key(columns), return_inverse=True)[1]
    return group


def distinct_rows(columns: Sequence[Column]) -> list[tuple[int, ...]]:
    """Return the combinations of values that occur, in ascending order, the first column first."""
    if not len(columns[0]):
        return []
    first = np.unique(_key(columns), return_index=True)[1]
    return [tuple(row) for row in np.stack([column[first] for column in columns], axis=1).tolist()]


def group_starts(*columns: Column) -> I64:
    """Return the first row of each group of equal rows.

    The columns must be sorted together, the first column first.
    """
    opens = np.ones(len(columns[0]), np.bool_)
    if len(opens):
        opens[1:] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return np.flatnonzero(opens)


def distinct(values: Column) -> I64:
    """Return the values that occur, in ascending order.

    `np.unique` does the same, but its first call of this kind imports `numpy.ma`, which takes longer than most
    analyses.
    """
    if not len(values) or (values == values[0]).all():
        return values[:1].astype(np.int64)
    ordered = np.sort(values).astype(np.int64)
    return ordered[group_starts(ordered)]


def rows_by(values: Column) -> list[tuple[int, I64]]:
    """Return the values that occur and the rows of each, both in ascending order."""
    if not len(values):
        return []
    low, high = int(values.min()), int(values.max())
    if low == high:
        return [(low, np.arange(len(values)))]
    # Small numbers sort in linear time.
    order = np.argsort(values.astype(np.int16) if low >= -_SMALL and high < _SMALL else values, kind="stable")
    ordered = values[order]
    first = group_starts(ordered)
    return list(zip(ordered[first].tolist(), np.split(order, first[1:]), strict=True))


def _key(columns: Sequence[Column]) -> I64:
    """Return one number for each combination of values, in their order."""
    key, combinations = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        values = column.astype(np.int64)
        low, high = int(values.min()), int(values.max())
        if combinations * (high - low + 1) > _LARGEST:
            # Renumbering keeps the groups and makes the numbers smaller.
            key = np.unique(key, return_inverse=True)[1]
            values, low = np.unique(values, return_inverse=True)[1], 0
            combinations, high = int(key.max()) + 1, int(values.max())
        key = key * (high - low + 1) + (values - low)
        combinations *= high - low + 1
    return key
