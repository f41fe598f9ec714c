"""When windows that the clock opens are due, at times that the tests choose."""

from __future__ import annotations

import threading

import pytest

from overlapscope.recorder.triggers import Timetable

S = 1_000_000_000
MS = 1_000_000
START_NS = 777 * S


def begun(delay_s: float, duration_s: float | None) -> Timetable:
    timetable = Timetable(delay_s, duration_s)
    timetable.start(START_NS)
    return timetable


def test_a_window_opens_after_the_delay_and_closes_after_the_duration() -> None:
    timetable = begun(0.5, 2)
    assert timetable.left_ns(START_NS) == 500 * MS
    assert timetable.left_ns(START_NS + 500 * MS) == 0
    assert timetable.open(START_NS + 500 * MS, START_NS + 500 * MS) is None
    assert timetable.left_ns(START_NS + 500 * MS) == 2 * S


def test_a_window_is_due_at_once_without_a_delay() -> None:
    assert begun(0, None).left_ns(START_NS) == 0


def test_the_time_that_the_profiler_needs_to_start_is_not_part_of_the_window() -> None:
    timetable = begun(0, 2)
    timetable.open(START_NS, START_NS + 3 * S)
    assert timetable.left_ns(START_NS + 3 * S) == 2 * S


def test_the_next_delay_begins_once_the_last_window_is_written() -> None:
    timetable = begun(1, 2)
    timetable.open(START_NS + 1 * S, START_NS + 1 * S)
    timetable.close(START_NS + 3 * S, START_NS + 7 * S)
    assert timetable.left_ns(START_NS + 7 * S) == 1 * S


@pytest.mark.parametrize("duration_s", [None, float("inf")])
def test_a_window_without_an_end_is_as_long_as_threads_can_wait(duration_s: float | None) -> None:
    timetable = begun(float("inf"), duration_s)
    assert timetable.left_ns(START_NS) == round(threading.TIMEOUT_MAX * S)
    timetable.open(START_NS, START_NS)
    assert timetable.left_ns(START_NS) == round(threading.TIMEOUT_MAX * S)


def test_half_a_second_late_is_not_worth_a_sentence() -> None:
    timetable = begun(1, 2)
    assert timetable.open(START_NS + 1500 * MS, START_NS + 9 * S) is None
    assert timetable.close(START_NS + 11_500 * MS, START_NS + 20 * S) is None


def test_what_happens_later_is_stated_with_its_reason() -> None:
    timetable = begun(1, 2)
    assert timetable.open(START_NS + 1501 * MS, START_NS + 9 * S) == (
        "A window opened 0.5 s late: until then the thread that records was inside one call."
    )
    assert timetable.close(START_NS + 13 * S, START_NS + 13 * S) == (
        "A window closed 2.0 s late: until then the thread that records was inside one call."
    )


def test_a_window_that_could_not_open_stays_due_and_the_reason_is_another() -> None:
    timetable = begun(1, 2)
    timetable.refuse()
    assert timetable.left_ns(START_NS + 2 * S) == -1 * S
    assert timetable.open(START_NS + 2 * S, START_NS + 2 * S) == (
        "A window opened 1.0 s late: until then another profiler ran, or a range of the last window was open."
    )
    late = timetable.close(START_NS + 9 * S, START_NS + 9 * S)
    assert late is not None and "inside one call" in late
