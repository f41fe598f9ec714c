"""Tests of a watcher's step time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.plugins.watch.watcher import PlainStepTimer


def plain_step_ns(lengths: list[int]) -> int | None:
    timer = PlainStepTimer()
    at = 10**12
    timer.mark(at)
    for length in lengths:
        at += length
        timer.mark(at)
    return timer.ns


def test_a_host_that_runs_ahead_and_waits_at_every_tenth_step_is_not_taken_for_the_program() -> None:
    assert plain_step_ns(([2_000_000] * 9 + [480_000_000]) * 12) == 49_800_000


def test_a_pause_counts_little() -> None:
    assert plain_step_ns([5_000_000] * 50 + [60_000_000_000] + [5_000_000] * 49) == 5_000_000


def test_it_is_unknown_before_there_are_two_marks() -> None:
    assert PlainStepTimer().ns is None
    assert plain_step_ns([]) is None


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=150))
def test_it_lies_between_the_shortest_and_the_longest_step(lengths: list[int]) -> None:
    result = plain_step_ns(lengths)
    assert result is not None
    assert min(lengths) <= result <= max(lengths)
    if len(set(lengths)) == 1:
        assert result == pytest.approx(lengths[0], abs=1)
