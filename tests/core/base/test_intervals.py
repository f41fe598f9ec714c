"""The interval algebra against sets of instants."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.base import intervals as iv

instants = st.integers(-30, 30)
# Nested, touching, identical, zero-length and inverted intervals all occur.
many = st.lists(st.tuples(instants, instants), max_size=12)


def members(pairs: list[tuple[int, int]]) -> set[int]:
    return {t for start, end in pairs for t in range(start, end)}


def as_set(a: iv.Intervals) -> set[int]:
    return members(list(zip(a.starts.tolist(), a.ends.tolist(), strict=True)))


def intervals_of(pairs: list[tuple[int, int]]) -> iv.Intervals:
    return iv.union([p[0] for p in pairs], [p[1] for p in pairs])


def is_canonical(a: iv.Intervals) -> bool:
    return bool((a.starts < a.ends).all() and (a.ends[:-1] < a.starts[1:]).all())


@given(many)
def test_union_covers_what_any_interval_covers(pairs: list[tuple[int, int]]) -> None:
    assert as_set(intervals_of(pairs)) == members(pairs)
    assert is_canonical(intervals_of(pairs))
    assert iv.total(intervals_of(pairs)) == len(members(pairs))


@given(many, many)
def test_set_operations(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    for result, expected in (
        (iv.join(intervals_of(a), intervals_of(b)), members(a) | members(b)),
        (iv.intersect(intervals_of(a), intervals_of(b)), members(a) & members(b)),
        (iv.subtract(intervals_of(a), intervals_of(b)), members(a) - members(b)),
    ):
        assert as_set(result) == expected
        assert is_canonical(result)


@given(many, instants, instants)
def test_complement_and_clip(a: list[tuple[int, int]], start: int, end: int) -> None:
    window = set(range(start, end))
    assert as_set(iv.complement(intervals_of(a), start, end)) == window - members(a)
    assert as_set(iv.clip(intervals_of(a), start, end)) == window & members(a)


@given(many, many)
def test_covered_is_the_length_inside_each_window(a: list[tuple[int, int]], windows: list[tuple[int, int]]) -> None:
    covered = iv.covered(intervals_of(a), [w[0] for w in windows], [w[1] for w in windows])
    assert covered.tolist() == [len(members(a) & set(range(*w))) for w in windows]


@given(many, many)
def test_cut_gives_the_parts_inside_the_windows(spans: list[tuple[int, int]], windows: list[tuple[int, int]]) -> None:
    starts, ends = np.array(spans, np.int64).reshape(-1, 2).T
    pieces = zip(*(column.tolist() for column in iv.cut(starts, ends, intervals_of(windows))), strict=True)
    parts: dict[int, list[tuple[int, int]]] = {}
    for row, start, end in pieces:
        assert start < end
        parts.setdefault(row, []).append((start, end))
    for row, span in enumerate(spans):
        assert members(parts.get(row, [])) == members([span]) & members(windows)


@given(many, st.lists(instants))
def test_contains(a: list[tuple[int, int]], at: list[int]) -> None:
    assert iv.contains(intervals_of(a), np.array(at, np.int64)).tolist() == [t in members(a) for t in at]


def nested(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the intervals that cross no earlier one, as in a call stack."""
    kept: list[tuple[int, int]] = []
    for start, end in pairs:
        crosses = any(s < start < e < end or start < s < end < e for s, e in kept)
        if start <= end and not crosses:
            kept.append((start, end))
    return sorted(kept, key=lambda p: (p[0], -p[1]))


@given(many, st.lists(instants, min_size=1))
def test_nesting_finds_the_innermost(pairs: list[tuple[int, int]], at: list[int]) -> None:
    stack = nested(pairs)
    starts = np.array([p[0] for p in stack], np.int64)
    ends = np.array([p[1] for p in stack], np.int64)
    rows = iv.Nesting(starts, ends).innermost(np.array(at, np.int64))
    for t, row in zip(at, rows.tolist(), strict=True):
        around = [i for i, (start, end) in enumerate(stack) if start <= t < end]
        if not around:
            assert row == -1
        else:
            # Either of two identical intervals may be named.
            innermost = min(around, key=lambda i: stack[i][1] - stack[i][0])
            assert row >= 0
            assert stack[row] == stack[innermost]


@given(many, st.lists(instants, min_size=1))
def test_outermost_finds_the_one_that_ends_last(pairs: list[tuple[int, int]], at: list[int]) -> None:
    spans = sorted(p for p in pairs if p[0] <= p[1])
    starts, ends = np.array(spans, np.int64).reshape(-1, 2).T
    for t, row in zip(at, iv.outermost(starts, ends, np.array(at, np.int64)).tolist(), strict=True):
        around = [end for start, end in spans if start <= t < end]
        assert (row == -1) if not around else (spans[row][0] <= t and spans[row][1] == max(around))


@given(many, many)
def test_lengths_add_up(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    both, either = iv.intersect(intervals_of(a), intervals_of(b)), iv.join(intervals_of(a), intervals_of(b))
    assert iv.total(intervals_of(a)) + iv.total(intervals_of(b)) == iv.total(both) + iv.total(either)


def test_nanosecond_epochs_stay_exact() -> None:
    base = 1_795_232_764_074_821_278
    a = iv.union([base, base + 1], [base + 3, base + 5])
    assert iv.total(a) == 5
    assert iv.covered(a, [base + 2], [base + 4]).tolist() == [2]
