"""When the next recording of a program that is watched continuously is due."""

from __future__ import annotations

from typing import Final

_FIRST_STEPS: Final = 20
_FIRST_NS: Final = 60_000_000_000
"""Before the first recording, the program makes `_FIRST_STEPS` steps and runs for `_FIRST_NS`: until then it compiles,
tunes and fills its caches."""
MOST_OF_TIME: Final = 0.01
"""Maximum fraction of the program's time that recordings may take. A longer recording delays the next."""


class Turns:
    """Decides when the next recording is due.

    It does not wait: callers pass the time, in nanoseconds of `base.clock`.
    """

    def __init__(self, every_ns: int, now_ns: int) -> None:
        """Begin in the stopped state, at `now_ns`."""
        self._every_ns = every_ns
        self._away_ns, self._stopped_ns = 0, now_ns
        """Length of all stops, and the time at which the latest began."""
        self._due_ns = now_ns + min(every_ns, _FIRST_NS)
        self._begun_ns = now_ns
        """Time at which the latest recording began. Stops count neither here nor in `_due_ns`."""

    def start(self, now_ns: int) -> None:
        """Go on where `stop` ended."""
        self._away_ns += now_ns - self._stopped_ns

    def stop(self, now_ns: int) -> None:
        """Stop. The time until `start` does not count."""
        self._stopped_ns = now_ns

    def due(self, now_ns: int, steps: int) -> bool:
        """Return whether a recording is due in a program that has made `steps` steps."""
        return self._watched_ns(now_ns) >= self._due_ns and steps >= _FIRST_STEPS

    def begin(self, now_ns: int) -> None:
        """Note that a recording begins."""
        self._begun_ns = self._watched_ns(now_ns)
        self._due_ns = self._begun_ns + self._every_ns

    def pay(self, cost_ns: int) -> int:
        """Note how much of the program's time the latest recording took.

        Returns:
            Time from its beginning to the next one, in nanoseconds.
        """
        apart_ns = max(self._every_ns, round(cost_ns / MOST_OF_TIME))
        self._due_ns = self._begun_ns + apart_ns
        return apart_ns

    def _watched_ns(self, now_ns: int) -> int:
        return now_ns - self._away_ns
