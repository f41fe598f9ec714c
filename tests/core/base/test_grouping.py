"""Grouping of rows is exact for integers of any width, dense or sparse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from overlapscope.base.grouping import among, distinct, distinct_rows, groups_of, numbered

Column = NDArray[np.signedinteger[Any]]
WIDEST = np.iinfo(np.int64)
RANGES = (
    (np.int8, -128, 127),
    (np.int32, -3, 3),
    (np.int64, 1_790_857_026_000_000_000, 1_790_857_026_000_000_900),
    (np.int64, int(WIDEST.min), int(WIDEST.max)),
)
"""Types and ranges of columns: dense ones, and those whose range exceeds 64 bits."""


@st.composite
def columns(draw: st.DrawFn) -> list[Column]:
    rows = draw(st.integers(1, 40))
    drawn = draw(st.lists(st.sampled_from(RANGES), min_size=1, max_size=3))
    values = [draw(st.lists(st.integers(low, high), min_size=rows, max_size=rows)) for _, low, high in drawn]
    return [np.array(column, kind) for column, (kind, _, _) in zip(values, drawn, strict=True)]


@given(columns())
def test_groups_are_numbered_in_the_order_of_their_values(columns: list[Column]) -> None:
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    place = {row: number for number, row in enumerate(sorted(set(rows)))}
    assert groups_of(columns).tolist() == [place[row] for row in rows]
    assert distinct_rows(columns) == sorted(set(rows))


@given(columns())
def test_values_are_found_with_their_places(columns: list[Column]) -> None:
    for column in columns:
        occurring, place = numbered(column)
        assert occurring.tolist() == distinct(column).tolist() == sorted(set(column.tolist()))
        assert occurring.dtype == distinct(column).dtype == np.int64
        assert occurring[place].tolist() == column.tolist()


@given(columns(), st.data())
def test_values_among_others_are_found(columns: list[Column], data: st.DataObject) -> None:
    for column in columns:
        limits = np.iinfo(column.dtype)
        every = st.one_of(st.sampled_from(column.tolist()), st.integers(int(limits.min), int(limits.max)))
        wanted = data.draw(st.lists(every, max_size=5))
        assert among(column, wanted).tolist() == [value in wanted for value in column.tolist()]


@pytest.mark.parametrize("kind", [np.int8, np.int64])
def test_nothing_has_no_values(kind: type[Any]) -> None:
    empty = np.empty(0, kind)
    assert [len(part) for part in (distinct(empty), *numbered(empty))] == [0, 0, 0]
    assert distinct_rows([empty]) == []
