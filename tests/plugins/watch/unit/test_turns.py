"""When a program that is watched continuously is recorded next, at times that the tests choose."""

from __future__ import annotations

import pytest

from overlapscope.plugins.watch.continuous import RecordingSchedule

S = 1_000_000_000
MINUTE = 60 * S
START_NS = 777 * S


def watching(every_ns: int) -> RecordingSchedule:
    return RecordingSchedule(every_ns, START_NS)


@pytest.mark.parametrize(("every_ns", "first_ns"), [(10 * MINUTE, MINUTE), (MINUTE, MINUTE), (5 * S, 5 * S)])
def test_the_first_recording_is_due_after_a_minute_or_sooner_if_it_is_to_be_repeated_sooner(
    every_ns: int, first_ns: int
) -> None:
    turns = watching(every_ns)
    assert not turns.due(START_NS + first_ns - 1, steps=10**6)
    assert turns.due(START_NS + first_ns, steps=10**6)


def test_nothing_is_recorded_within_the_first_20_steps_however_long_they_take() -> None:
    turns = watching(S)
    assert not turns.due(START_NS + 1000 * MINUTE, steps=19)
    assert turns.due(START_NS + 1000 * MINUTE, steps=20)


def test_the_next_one_is_due_that_long_after_the_last_began() -> None:
    turns = watching(S)
    turns.begin(START_NS + 5 * S)
    assert not turns.due(START_NS + 6 * S - 1, steps=100)
    assert turns.due(START_NS + 6 * S, steps=100)


def test_one_that_takes_up_to_a_hundredth_of_that_time_changes_nothing() -> None:
    turns = watching(MINUTE)
    turns.begin(START_NS + MINUTE)
    assert turns.delay_by_cost(MINUTE // 100) == MINUTE
    assert turns.due(START_NS + 2 * MINUTE, steps=100)


def test_one_that_takes_longer_puts_the_next_off_and_only_that() -> None:
    turns = watching(MINUTE)
    turns.begin(START_NS + MINUTE)
    assert turns.delay_by_cost(3 * S) == 5 * MINUTE
    assert not turns.due(START_NS + 6 * MINUTE - 1, steps=100)
    assert turns.due(START_NS + 6 * MINUTE, steps=100)
    turns.begin(START_NS + 6 * MINUTE)
    assert turns.delay_by_cost(0) == MINUTE
    assert turns.due(START_NS + 7 * MINUTE, steps=100)
