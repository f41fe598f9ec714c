"""Tests of the clock of all steps, which finds the pace at which a program spends most of its time."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.base import clock
from overlapscope.recorder.step_times import Pace, becomes_faster
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


def at_pace(pace: Pace) -> list[tuple[int, float]]:
    """Return the numbers and mean lengths, in milliseconds, of steps at the pace of the recording."""
    return [(steps, ns / steps / NS_PER_MS) for steps, ns in pace.at_recorded_pace]


def test_steps_count_from_the_recording_on_while_the_pace_is_the_same(now: FakeClock) -> None:
    pace = recorded(now, [900] * 5 + [60] * 10)
    clocked(pace, now, [40] * 100 + [10] * 20 + [40] * 100)
    assert at_pace(pace) == [(20, 10.0), (200, 40.0)]
    clocked(pace, now, [20] * 500)
    assert at_pace(pace) == [(20, 10.0), (180, 40.0)]
    clocked(pace, now, [40] * 100)
    assert at_pace(pace) == [(20, 10.0), (500, 20.0), (300, 40.0)]


def test_steps_before_the_recording_count_from_the_first_block_of_its_pace_on(now: FakeClock) -> None:
    pace = recorded(now, [900] * 10 + [40] * 90)
    assert at_pace(clocked(pace, now, [44] * 30)) == [(60, 40.0), (30, 44.0)]


def test_steps_of_an_earlier_pace_do_not_count(now: FakeClock) -> None:
    pace = recorded(now, [40] * 160)
    clocked(pace, now, [40] * 160 + [4] * 2000)
    pace.record([4 * NS_PER_MS] * 10)
    assert at_pace(clocked(pace, now, [4] * 100)) == [(2050, 4.0)]


def test_all_steps_of_a_pace_that_changes_again_and_again_count(now: FakeClock) -> None:
    sequence = [ms for ms in (5, 8, 12, 18) for _ in range(50)]
    pace = clocked(recorded(now, [5] * 10), now, sequence * 3)
    pace.record([12 * NS_PER_MS] * 10)
    counted = clocked(pace, now, [12] * 50 + [18] * 50 + sequence * 3).at_recorded_pace
    assert sum(steps for steps, _ in counted) > 0.8 * 7 * len(sequence)


def test_steps_count_from_the_first_of_two_recordings_at_the_same_pace(now: FakeClock) -> None:
    pace = recorded(now, [40] * 10)
    clocked(pace, now, [40] * 33)
    pace.record([44 * NS_PER_MS] * 10)
    assert at_pace(clocked(pace, now, [40] * 3)) == [(36, 40.0)]
    pace.record([90 * NS_PER_MS] * 10)
    assert at_pace(clocked(pace, now, [90])) == [(1, 90.0)]


def test_all_steps_of_a_program_that_ends_soon_count(now: FakeClock) -> None:
    assert at_pace(clocked(recorded(now, [3] * 10), now, [3, 3, 90])) == [(2, 3.0), (1, 90.0)]


def test_the_sentence_has_all_steps_of_a_long_program(now: FakeClock) -> None:
    pace = clocked(Pace(), now, [10, 20, 20, 40] * 10_000)
    assert pace.sentence([50 * NS_PER_MS]) == (
        "40,000 steps in 900 s, mean 22.5 ms, median 20.0 ms, most 10.0 to 40.0 ms; while recorded, 50.0 ms in the "
        "median."
    )
    assert Pace().sentence([]) is None


@given(st.lists(lengths_ms, min_size=10, max_size=10))
def test_steps_that_become_faster_do_so_all_of_them(lengths: list[int]) -> None:
    first, second = sorted(lengths[:5]), sorted(lengths[5:])
    assert becomes_faster(lengths) == (first[0] > second[-1] and first[2] - second[2] > 0.2 * second[2])
