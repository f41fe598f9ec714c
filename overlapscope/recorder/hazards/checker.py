"""Looks for data races while the program runs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from overlapscope.errors import UsageError
from overlapscope.recorder.hazards.findings import Findings
from overlapscope.recorder.hazards.hazard import Hazard

if TYPE_CHECKING:
    from overlapscope.recorder.hazards.watch import Watch


class HazardChecker:
    """Data races between host and device and between streams, from `start` to `stop`.

    It sees the thread that calls `start`, and the backward passes that thread waits for. It never raises inside the
    program, prints nothing and does not change what the program computes.
    """

    def __init__(self) -> None:
        self._findings = Findings()
        self._watch: Watch | None = None
        self._notes: tuple[str, ...] = ()

    @property
    def hazards(self) -> tuple[Hazard, ...]:
        """What has been found so far, in the order in which it was."""
        if self._watch is not None:
            self._watch.write_up()
        return self._findings.hazards

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be looked for, in sentences."""
        return self._notes if self._watch is None else self._watch.notes

    def start(self) -> None:
        """Begin, whether or not CUDA is initialised or there is a GPU. Needs torch.

        Raises UsageError where a checker of this process has begun already: there can be one.
        """
        from overlapscope.recorder.hazards.watch import Watch

        if _running:
            raise UsageError("hazards are being looked for already; stop that checker first.")
        if not _forking:
            os.register_at_fork(after_in_child=_forget)
            _forking.append(True)
        self._watch = Watch(self._findings)
        _running.append(self)
        self._watch.start()

    def stop(self) -> None:
        """End, on the thread that began. Does nothing where nothing was begun."""
        if self._watch is not None:
            self._watch.stop()
            self._notes = self._watch.notes
            self._watch = None
        if self in _running:
            _running.remove(self)


_running: list[HazardChecker] = []
"""At most one."""
_forking: list[bool] = []


def _forget() -> None:
    """A forked process, such as a DataLoader's worker, is not looked at: nobody would read what it finds."""
    for checker in _running:
        checker.stop()
