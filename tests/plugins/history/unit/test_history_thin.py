"""Tests of thinning: each column of pixels has the same extent as with all points."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.documents.figure import column_of
from overlapscope.plugins.history.document import thin

VALUES = st.floats(-1e9, 1e9, allow_nan=False)


@given(st.lists(st.tuples(VALUES, VALUES), max_size=120), st.integers(1, 12))
def test_thinned_points_reach_as_far_as_all(points: list[tuple[float, float]], columns: int) -> None:
    points = sorted(points, key=lambda point: point[0])
    at, values = (np.array([point[side] for point in points]) for side in (0, 1))
    kept = thin(at, values, columns).tolist()
    assert kept == sorted(set(kept)) and set(kept) <= set(range(len(points)))
    if len(points) <= 4 * columns:
        assert kept == list(range(len(points)))
        return
    assert len(kept) <= 4 * columns
    column = column_of(at, columns).tolist()
    for number in set(column):
        here = [row for row in range(len(points)) if column[row] == number]
        drawn = [row for row in kept if column[row] == number]
        assert (drawn[0], drawn[-1]) == (here[0], here[-1])
        assert {min(values[drawn]), max(values[drawn])} == {min(values[here]), max(values[here])}


def test_columns_are_of_equal_width() -> None:
    assert column_of(np.array([0.0, 0.9, 1.0, 1.9, 2.0]), 2).tolist() == [0, 0, 1, 1, 1]
    assert column_of(np.array([7.0, 7.0]), 3).tolist() == [0, 0]
