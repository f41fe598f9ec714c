"""Fewer points that look the same: a chart of a year has more of them than a screen has pixels."""

from __future__ import annotations

import numpy as np

from overlapscope.base.columns import F64, I64


def thin(at: F64, values: F64, columns: int) -> I64:
    """The rows, ascending, of the points that make a chart `columns` pixels wide look as all of them would.

    `at` ascends. Of the points in each column the first, the last, the lowest and the highest stay, at most four
    (M4: Jugel et al., A Visualization-Oriented Time Series Data Aggregation, VLDB 2014); all where there are so few.
    """
    if len(at) <= 4 * columns:
        return np.arange(len(at))
    column = column_of(at, columns)
    first = np.flatnonzero(np.diff(column, prepend=-1))
    last = np.append(first[1:], len(at)) - 1
    # Within each column from the lowest value to the highest, so that its ends stand where its first and last did.
    by_value = np.lexsort((values, column))
    return np.unique(np.concatenate([first, last, by_value[first], by_value[last]]))


def column_of(at: F64, columns: int) -> I64:
    """The column that each point falls into, when all are spread over so many."""
    span = at[-1] - at[0]
    part = (at - at[0]) / span if span else np.zeros(len(at))
    return np.minimum((part * columns).astype(np.int64), columns - 1)
