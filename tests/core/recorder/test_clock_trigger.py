"""When windows that the clock opens are due, at times that the tests choose."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from overlapscope.base import clock
from overlapscope.recorder.driver import ClockTrigger
from overlapscope.recorder.main_thread import Interruption

S = 1_000_000_000
MS = 1_000_000


class WindowsByClock:
    """A recorder whose windows open and close, each of which may take a time, and the clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, takes_ns: int = 0) -> None:
        self.now_ns, self.recording = 777 * S, False
        self._takes_ns = takes_ns
        self.changes_ns: list[int] = []
        monkeypatch.setattr(clock, "now_ns", lambda: self.now_ns)

    def handle(self, _: str) -> None:
        self.changes_ns.append(self.now_ns - 777 * S)
        self.recording = not self.recording
        self.now_ns += self._takes_ns

    def run(self, delay_s: float, duration_s: float | None, *, every_ns: int = 100 * MS, until_ns: int) -> list[int]:
        """Return the times at which windows opened and closed in a program whose steps take `every_ns`."""
        trigger, recorder = ClockTrigger(delay_s, duration_s, Interruption(lambda: None)), self

        def program() -> None:
            as_recorder: Any = recorder
            trigger.start(as_recorder)
            while self.now_ns < 777 * S + until_ns:
                trigger.advance(as_recorder)
                self.now_ns += every_ns

        # On the main thread, it would interrupt the test.
        with ThreadPoolExecutor(1) as pool:
            pool.submit(program).result()
        self.notes = trigger.notes
        return self.changes_ns


def test_a_window_opens_after_the_delay_and_closes_after_the_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = WindowsByClock(monkeypatch)
    assert windows.run(0.5, 2, until_ns=3 * S) == [500 * MS, 2500 * MS]
    assert windows.notes == []


def test_a_window_opens_at_once_without_a_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    assert WindowsByClock(monkeypatch).run(0, None, until_ns=3 * S) == [0]


def test_the_time_that_the_profiler_needs_to_start_is_not_part_of_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    assert WindowsByClock(monkeypatch, takes_ns=3 * S).run(0, 2, until_ns=8 * S) == [0, 5 * S]


def test_the_next_delay_begins_once_the_last_window_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    assert WindowsByClock(monkeypatch, takes_ns=4 * S).run(1, 2, until_ns=16 * S) == [1 * S, 7 * S, 12 * S]


@pytest.mark.parametrize("duration_s", [None, float("inf")])
def test_a_window_without_an_end_is_as_long_as_threads_can_wait(
    duration_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    until_ns = 2 * round(threading.TIMEOUT_MAX * S)
    changes_ns = WindowsByClock(monkeypatch).run(0, duration_s, every_ns=until_ns // 8, until_ns=until_ns)
    assert changes_ns[0] == 0 and changes_ns[1] >= round(threading.TIMEOUT_MAX * S)


def test_a_window_that_opens_late_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    windows = WindowsByClock(monkeypatch)
    assert windows.run(1, None, every_ns=3 * S, until_ns=7 * S) == [3 * S]
    assert windows.notes == ["A window opened 2.0 s late: until then the thread that records was inside one call."]
