"""Tests of the clock of all steps, which finds the pace at which a program spends most of its time."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.base import clock
from overlapscope.recorder.pace import Pace, becomes_faster
from tests.support.fake_clock import NS_PER_MS, FakeClock

lengths_ms = st.integers(1, 2000)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr(clock, "now_ns", fake)
    return fake


def clocked(pace: Pace, now: FakeClock, lengths: Iterable[int]) -> Pace:
    """Clock steps of these lengths in milliseconds."""
    for ms in lengths:
        pace.begin(clocked=True)
        now.wait(ms=ms)
        pace.end()
    return pace


def recorded(now: FakeClock, lengths: list[int]) -> Pace:
    """Return the pace of a program that was recorded after steps of these lengths."""
    pace = clocked(Pace(), now, lengths)
    pace.record([ms * NS_PER_MS for ms in lengths[-10:]])
    return pace


@given(st.lists(lengths_ms, min_size=1, max_size=60))
def test_all_steps_are_counted_but_those_that_are_left_out(lengths: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        now = FakeClock()
        patch.setattr(clock, "now_ns", now)
        pace = clocked(Pace(), now, lengths)
        for clocks, counts in ((False, True), (True, False)):
            pace.begin(clocked=clocks)
            now.wait(s=7)
            pace.end(counts=counts)
        assert (pace.steps, pace.span_ns) == (len(lengths), sum(lengths) * NS_PER_MS)


def test_later_steps_are_another_pace_once_the_program_has_spent_more_time_in_them(now: FakeClock) -> None:
    pace = recorded(now, [40] * 160)
    when = next(count for count in range(1, 4000) if clocked(pace, now, [4]).elsewhere() is not None)
    assert 160 * 40 / 4 < when <= 160 * 40 / 4 + 200
    assert pace.elsewhere() == 4 * NS_PER_MS
    pace.record([4 * NS_PER_MS] * 10)
    assert clocked(pace, now, [4] * 1000).elsewhere() is None


@pytest.mark.parametrize("later", [[40, 60] * 400, [*[40] * 19, 900] * 40, [44] * 800, [34] * 800])
def test_steps_that_differ_in_turn_or_a_little_are_no_other_pace(now: FakeClock, later: list[int]) -> None:
    pace = recorded(now, [*later[:40], *[40] * 10])
    assert clocked(pace, now, later).elsewhere() is None


def test_steps_count_from_the_recording_until_the_pace_changes(now: FakeClock) -> None:
    pace = recorded(now, [900] * 5 + [60] * 10)
    clocked(pace, now, [40] * 100 + [10] * 20 + [40] * 100)
    assert (pace.clocked.steps, pace.clocked.span_ns) == (220, (200 * 40 + 20 * 10) * NS_PER_MS)
    clocked(pace, now, [20] * 500 + [40] * 100)
    assert pace.clocked.steps == 220


def test_the_sentence_has_all_steps_of_a_long_program(now: FakeClock) -> None:
    pace = clocked(Pace(), now, [10, 20, 20, 40] * 10_000)
    assert pace.sentence([50 * NS_PER_MS]) == (
        "40,000 steps in 900 s, median 20.0 ms, most 10.0 to 40.0 ms; while recorded, 50.0 ms in the median."
    )
    assert Pace().sentence([]) is None


@given(st.lists(lengths_ms, min_size=10, max_size=10))
def test_steps_that_become_faster_do_so_all_of_them(lengths: list[int]) -> None:
    first, second = sorted(lengths[:5]), sorted(lengths[5:])
    assert becomes_faster(lengths) == (first[0] > second[-1] and first[2] - second[2] > 0.2 * second[2])
