"""The checker for data races, while the program runs."""

from __future__ import annotations

import os
import threading
from functools import partial

from overlapscope.base.words import listed, plural
from overlapscope.errors import UsageError
from overlapscope.plugins.hazards.bookkeeping import Bookkeeping, Hazard, Journal, describe
from overlapscope.plugins.hazards.host_memory import HostMemory
from overlapscope.plugins.hazards.launches import HazardMode
from overlapscope.plugins.hazards.sync_events import SyncEvents, new_clock
from overlapscope.recorder import devices, program_lines

_NONE = "no data races found in what could be checked."
_STOPPED_EARLY = "Data races were checked until the recording was complete; a larger --active checks longer."


class HazardChecker:
    """Data races between host and device and between streams, from `start` to `stop`.

    It watches the thread that makes and starts it, and the backward passes that this thread waits for. It never raises
    inside the program, prints nothing, and leaves the program's results unchanged.
    """

    def __init__(self) -> None:
        line = partial(program_lines.line, waiting=threading.get_ident())
        clock = new_clock()
        self._notes: list[str] = []
        self._stopped_early = False
        self._journal = Journal(self._failed)
        self.books = books = Bookkeeping(clock)
        self._host_memory = HostMemory(books, self._journal, line)
        self._sync_events = SyncEvents(self._journal, clock, books.uses.forget)
        self._mode = HazardMode(
            books, clock, self._journal, self._host_memory, self._sync_events, line, self._notes.append
        )

    @property
    def hazards(self) -> tuple[Hazard, ...]:
        """Data races found so far, in the order of their discovery."""
        self._journal.write_up()
        return self.books.hazards

    @property
    def count(self) -> int | None:
        """Number of data races; None if the program used no GPU."""
        return len(self.hazards) if devices.cuda_is_up() else None

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on missing checks."""
        return (*self._unchecked, *([_STOPPED_EARLY] if self._stopped_early else ()))

    @property
    def _unchecked(self) -> tuple[str, ...]:
        names = sorted(self._mode.not_followed)
        return (*self._notes, *([f"Races with collectives were not checked for {listed(names)}."] if names else ()))

    def report(self) -> tuple[str, list[str]]:
        """Return a sentence on the number of data races, and the description of each."""
        if self.count is None:
            return "data races were not checked, because the program used no GPU.", []
        count = f"{plural(self.count, 'data race')} found." if self.count else _NONE
        return " ".join((count, *self._unchecked)), list(map(describe, self.hazards))

    def start(self) -> None:
        """Begin, once, whether or not CUDA is initialized or a GPU exists.

        Raises:
            UsageError: Another checker of this process has begun; at most one can run.
        """
        if _running:
            raise UsageError("a hazard checker is running already; stop it first.")
        _running.append(self)
        self._sync_events.start()
        self._host_memory.start()
        self._mode.enter()

    def stop(self, *, early: bool = False) -> None:
        """End, on the thread that began. Does nothing before `start`. With `early`, the program goes on unchecked."""
        if self in _running:
            self._stopped_early = early
            _running.remove(self)
            self._mode.leave()
            self._sync_events.stop()
            self._host_memory.stop()
            self._journal.write_up()
            self._journal.close()

    def _failed(self, error: Exception) -> None:
        self._notes.append(
            f"The check for hazards ended early because of an internal error: {type(error).__name__}: {error}"
        )


_running: list[HazardChecker] = []
"""Checkers that have begun: at most one."""


def _forget() -> None:
    """Stop in a forked process, such as a DataLoader's worker, whose results would not be read."""
    for checker in tuple(_running):
        checker.stop()


os.register_at_fork(after_in_child=_forget)
