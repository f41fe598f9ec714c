"""Thinning of charts that have more points than a screen has pixels."""

from __future__ import annotations

import numpy as np

from overlapscope.base.columns import F64, I64
from overlapscope.base.grouping import distinct


def thin(at: F64, values: F64, columns: int) -> I64:
    """Return the ascending row numbers of points that make a chart look the same as all points would.

    In each column, the first, last, lowest and highest points stay (M4: Jugel et al., A Visualization-Oriented Time
    Series Data Aggregation, VLDB 2014). A small number of points is not thinned.

    Args:
        at: Ascending positions.
        values: Values of the points.
        columns: Width of the chart.
    """
    if len(at) <= 4 * columns:
        return np.arange(len(at))
    column = column_of(at, columns)
    first = np.flatnonzero(np.diff(column, prepend=-1))
    last = np.append(first[1:], len(at)) - 1
    # Sorted by value within each column, so that the column's lowest and highest take the ends of its rows.
    by_value = np.lexsort((values, column))
    return distinct(np.concatenate([first, last, by_value[first], by_value[last]]))


def column_of(at: F64, columns: int) -> I64:
    """Return the column of each point when all are spread over the given number of columns."""
    span = at[-1] - at[0]
    part = (at - at[0]) / span if span else np.zeros(len(at))
    return np.minimum((part * columns).astype(np.int64), columns - 1)
