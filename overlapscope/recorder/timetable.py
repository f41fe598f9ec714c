"""Times at which windows open and close if the clock decides."""

from __future__ import annotations

import math
import threading
from typing import Final

from overlapscope.base.clock import NS_PER_S

_LATE_NS: Final = 500_000_000
"""Report what happens later than this."""


class Timetable:
    """Opens a window `delay_s` after the start, or the end of the last one, and closes it `duration_s` later.

    It decides and does not wait: callers pass the time, in nanoseconds of `base.clock`.
    """

    def __init__(self, delay_s: float, duration_s: float | None) -> None:
        """With a `duration_s` of None, a window stays open until the program ends."""
        self._delay_ns = _ns(delay_s)
        self._duration_ns = _ns(math.inf if duration_s is None else duration_s)
        self._due_ns = 0
        self._refused = False
        """A window is due and cannot open."""

    def start(self, now_ns: int) -> None:
        """Begin with the first delay."""
        self._due_ns = now_ns + self._delay_ns

    def left_ns(self, now_ns: int) -> int:
        """Return the time until the next opening or closing, in nanoseconds. It is due where that is 0 or less."""
        return self._due_ns - now_ns

    def put_off(self, by_s: float) -> None:
        """Postpone the next opening or closing by some seconds."""
        self._due_ns += _ns(by_s)

    def refuse(self) -> None:
        """Note that a window cannot open though it is due. It stays due."""
        self._refused = True

    def open(self, begun_ns: int, now_ns: int) -> str | None:
        """Note that a window opened.

        Args:
            begun_ns: Time at which the profiler was asked to start.
            now_ns: Time at which it ran, which is when the duration begins.

        Returns:
            A sentence if it opened late.
        """
        return self._next("opened", begun_ns, now_ns + self._duration_ns)

    def close(self, begun_ns: int, now_ns: int) -> str | None:
        """Note that a window closed, and return a sentence if it did so late. The arguments are those of `open`."""
        return self._next("closed", begun_ns, now_ns + self._delay_ns)

    def _next(self, event: str, begun_ns: int, due_ns: int) -> str | None:
        late_ns, refused = begun_ns - self._due_ns, self._refused
        self._due_ns, self._refused = due_ns, False
        if late_ns <= _LATE_NS:
            return None
        why = (
            "another profiler ran, or a range of the last window was open"
            if refused
            else "the thread that records was inside one call"
        )
        return f"A window {event} {late_ns / NS_PER_S:.1f} s late: until then {why}."


def _ns(seconds: float) -> int:
    """Return a length of time in nanoseconds, no longer than threads can wait."""
    return round(min(seconds, threading.TIMEOUT_MAX) * NS_PER_S)
