"""Looks for data races while the program runs."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from overlapscope.errors import UsageError
from overlapscope.recorder.hazards.bookkeeping import Bookkeeping
from overlapscope.recorder.hazards.findings import Findings, Hazard
from overlapscope.recorder.hazards.host_memory import HostMemory
from overlapscope.recorder.hazards.journal import Journal
from overlapscope.recorder.hazards.launches import HazardMode
from overlapscope.recorder.hazards.lines import UserCode
from overlapscope.recorder.hazards.sync_events import SyncEvents, new_clock

_PACKAGE = str(Path(__file__).parents[2])


class HazardChecker:
    """Data races between host and device and between streams, from `start` to `stop`.

    It sees the thread that makes and starts it, and the backward passes that thread waits for. It never raises inside
    the program, prints nothing and does not change what the program computes.
    """

    def __init__(self) -> None:
        user_code = UserCode((os.path.dirname(str(torch.__file__)), _PACKAGE))
        clock = new_clock()
        self._findings = Findings()
        self._notes: list[str] = []
        self._journal = Journal(self._failed)
        self.books = books = Bookkeeping(clock, self._findings)
        self._host_memory = HostMemory(books, self._journal, user_code)
        self._sync_events = SyncEvents(self._journal, clock, books.uses.forget)
        self._mode = HazardMode(books, clock, self._journal, self._host_memory, user_code, self._notes.append)

    @property
    def hazards(self) -> tuple[Hazard, ...]:
        """What has been found so far, in the order in which it was."""
        self._journal.write_up()
        return self._findings.hazards

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be looked for, in sentences."""
        return tuple(self._notes)

    def start(self) -> None:
        """Begin, once, whether or not CUDA is initialised or there is a GPU.

        Raises UsageError where a checker of this process has begun already: there can be one.
        """
        if _running:
            raise UsageError("a hazard checker is running already; stop it first.")
        _running.append(self)
        self._sync_events.start()
        self._host_memory.start()
        self._mode.enter()

    def stop(self) -> None:
        """End, on the thread that began. Does nothing where nothing was begun."""
        if self in _running:
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
"""At most one."""


def _forget() -> None:
    """A forked process, such as a DataLoader's worker, is not looked at: nobody would read what it finds."""
    for checker in tuple(_running):
        checker.stop()


os.register_at_fork(after_in_child=_forget)
