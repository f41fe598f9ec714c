"""The parts of a checker that need torch, put together."""

from __future__ import annotations

import os

import torch

import overlapscope
from overlapscope.recorder.hazards.bookkeeping import Bookkeeping
from overlapscope.recorder.hazards.findings import Findings
from overlapscope.recorder.hazards.host_memory import HostMemory
from overlapscope.recorder.hazards.journal import Journal
from overlapscope.recorder.hazards.launches import Launches
from overlapscope.recorder.hazards.lines import UserCode
from overlapscope.recorder.hazards.methods import Methods
from overlapscope.recorder.hazards.mode import HazardMode
from overlapscope.recorder.hazards.sync_events import SyncEvents, new_clock


class Watch:
    """Everything that watches the program, from `start` to `stop`."""

    def __init__(self, findings: Findings) -> None:
        """`findings` is where hazards go."""
        user_code = UserCode(os.path.dirname(str(package.__file__)) for package in (torch, overlapscope))
        clock = new_clock()
        self._notes: list[str] = []
        self._journal = Journal(self._failed)
        self.books = books = Bookkeeping(clock, findings)
        self._host_memory = HostMemory(books, self._journal, user_code)
        self._sync_events = SyncEvents(self._journal, clock, books.uses.forget)
        self._methods = Methods(books, clock, self._journal, self._host_memory, user_code)
        launches = Launches(books, clock, self._journal, self._host_memory, user_code, self._notes.append)
        self._mode = HazardMode(launches, self._journal)

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be looked for, in sentences."""
        return tuple(self._notes)

    def start(self) -> None:
        """Begin, on this thread."""
        self._sync_events.start()
        self._methods.start()
        self._mode.enter()

    def write_up(self) -> None:
        """See to it that all that has happened is judged."""
        self._journal.write_up()

    def stop(self) -> None:
        """End, on the thread that began."""
        self._mode.leave()
        self._methods.stop()
        self._sync_events.stop()
        self._host_memory.close()
        self._journal.write_up()
        self._journal.close()

    def _failed(self, error: Exception) -> None:
        self._notes.append(
            f"The search for hazards ended early, because of an error of its own: {type(error).__name__}: {error}"
        )
