"""A clock that tests move."""

from __future__ import annotations

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


class FakeClock:
    """Takes the place of `overlapscope.base.clock.now_ns`; it stands still except in `wait`."""

    def __init__(self) -> None:
        self._now_ns = 777 * NS_PER_S

    def __call__(self) -> int:
        return self._now_ns

    def wait(self, *, s: int = 0, ms: int = 0) -> None:
        """Let so many seconds and milliseconds pass."""
        self._now_ns += s * NS_PER_S + ms * NS_PER_MS
