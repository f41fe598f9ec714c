"""Triggers that open and close windows without steps, by the clock."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from overlapscope.base import clock
from overlapscope.recorder.main_thread import Interruption, Wake, threads_without_signals

if TYPE_CHECKING:
    from overlapscope.recorder.recorder import WindowRecorder


UNMARKED_S: float = 5
"""Length of each recording of a program that marks no step, in seconds."""
START_UP_S: float = 10
"""Time between the end of the first one and the start of the second, in seconds."""
FIRST_STEP_S: float = 60
"""Length of the first one at most, in seconds, if the program seems to be in its first step meanwhile."""
_LOOK_AGAIN_S = 1
_AGAIN_S = 0.05
_LATE_NS = 500_000_000
"""Report what happens later than this."""


class ClockTrigger:
    """Opens a window `delay_s` after the start, or the end of the last one, and closes it `duration_s` later.

    On the main thread, `due` interrupts the program when a window is due, even while the thread waits. On another
    thread, windows open and close with the next step. Both are late inside a long call into C, and a note says so.
    """

    def __init__(self, delay_s: float, duration_s: float | None, due: Interruption) -> None:
        """With a `duration_s` of None, a window stays open until the program ends. `due` calls `advance`."""
        self.notes: list[str] = []
        """Sentences on windows that opened or closed late."""
        self._delay_ns, self._duration_ns = _ns(delay_s), _ns(math.inf if duration_s is None else duration_s)
        self._due_ns = 0
        """Time of the next opening or closing, in nanoseconds of `base.clock`."""
        self._refused = False
        """True if a window is due and cannot open."""
        self._interruption, self._wake = due, Wake()
        self._woken = self._stopped = False
        self._changed = threading.Condition()

    def start(self, recorder: WindowRecorder) -> None:
        """Begin. Called on the recorder's thread."""
        self._next_after(self._delay_ns)
        if threading.current_thread() is threading.main_thread():
            self._wake.start()
            with threads_without_signals():
                threading.Thread(target=self._watch, name="overlapscope clock", daemon=True).start()

    def stop(self) -> None:
        """End for good. Further calls do nothing."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._wake.stop()

    def advance(self, recorder: WindowRecorder) -> None:
        """Open or close a window if that is due. Called on the recorder's thread."""
        begun_ns = clock.now_ns()
        if self._stopped or begun_ns < self._due_ns:
            return
        closes = recorder.recording
        recorder.happen("close" if closes else "open")
        if closes or recorder.recording:
            self._note("closed" if closes else "opened", begun_ns - self._due_ns)
            # The time that the profiler needs to start is not part of the window.
            self._next_after(self._delay_ns if closes else self._duration_ns)
        else:
            self._refused = True

    def _next_after(self, length_ns: int) -> None:
        """Let the next opening or closing be due after this time."""
        with self._changed:
            self._due_ns, self._refused = clock.now_ns() + length_ns, False
            self._changed.notify()

    def _note(self, event: str, late_ns: int) -> None:
        if late_ns > _LATE_NS:
            why = (
                "another profiler ran, or a range of the last window was open"
                if self._refused
                else "the thread that records was inside one call"
            )
            self.notes.append(f"A window {event} {late_ns / clock.NS_PER_S:.1f} s late: until then {why}.")

    def _watch(self) -> None:
        with self._changed:
            while not self._stopped:
                left_ns = self._due_ns - clock.now_ns()
                if left_ns > 0:
                    self._woken = False
                    self._changed.wait(left_ns / clock.NS_PER_S)
                    continue
                if not self._interruption.under_way:
                    self._interruption.request()
                elif not self._woken:
                    self._woken = True
                    self._wake.wake()
                self._changed.wait(_AGAIN_S)


def _ns(seconds: float) -> int:
    """Return a length of time in nanoseconds, no longer than threads can wait."""
    return round(min(seconds, threading.TIMEOUT_MAX) * clock.NS_PER_S)


class UnmarkedTrigger(ClockTrigger):
    """Limits the recording of a program that marks no step to its first seconds, and as many after its start-up.

    It ends with the first mark of a step, or with the second window. The first window is longer for a program that
    seems to be in its first step, which compiles, tunes or loads its first batch.
    """

    def __init__(self, due: Interruption, awaits_first_step: Callable[[], bool]) -> None:
        super().__init__(START_UP_S, UNMARKED_S, due)
        self._awaits_first_step = awaits_first_step
        """Function that returns whether the program seems to be in its first step."""
        self._started = False
        self._latest_ns = 0
        """Time at which the first window ends even if a step is under way."""

    def start(self, recorder: WindowRecorder) -> None:
        """Wait for the first window to open, if its start was put off."""
        self.advance(recorder)

    def advance(self, recorder: WindowRecorder) -> None:
        now_ns = clock.now_ns()
        if recorder.marked or recorder.bounded_out:
            self.stop()
        elif self._started:
            if self._due_ns <= now_ns < self._latest_ns and recorder.recording and self._awaits_first_step():
                self._next_after(_ns(_LOOK_AGAIN_S))
            super().advance(recorder)
        elif recorder.recording:
            self._started = True
            self._latest_ns = now_ns + _ns(FIRST_STEP_S)
            super().start(recorder)
            self._next_after(self._duration_ns)

    def _note(self, event: str, late_ns: int) -> None:
        """Note nothing: the user has chosen no times, so nothing is late."""
