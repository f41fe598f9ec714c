"""The marks that end the steps of a recording."""

from __future__ import annotations

import enum
from collections.abc import Callable

from overlapscope.recorder.automatic_steps import MARKS, AutomaticSteps
from overlapscope.recorder.driver import Driver


class Marker(enum.IntEnum):
    """Origin of a mark. Marks of a higher value replace those of a lower one."""

    AUTOMATIC = 0
    """A call that the program repeats."""
    PROFILER = 1
    """`step` of the program's own profiler, which is ignored."""
    PROGRAM = 2


_SOURCES = {Marker.PROFILER: "profiler.step()", Marker.PROGRAM: "overlapscope.step()"}


class StepMarks:
    """Calls `step` for the marks that count: those of the highest marker so far, on the recording's thread."""

    def __init__(self, driver: Driver, step: Callable[[], None], *, by: str | None, whole_program: bool) -> None:
        """Prepare to count marks. `by` is the option `steps_by`."""
        self._driver, self._step, self._by, self._whole_program = driver, step, by, whole_program
        self._marker: Marker | None = None
        """The highest marker so far."""
        self._steps_are_elsewhere = False
        """True if another thread makes the steps than was thought, and the recorder was too busy to move there."""
        self.elsewhere = False
        """True if another thread marked a step, which does not count."""
        self.automatic = AutomaticSteps(
            lambda: self.mark(Marker.AUTOMATIC), self._automatic_changed, by=by, at_once=whole_program
        )

    @property
    def source(self) -> str | None:
        """Description of what ends steps; None before the first."""
        return None if self._marker is None else _SOURCES.get(self._marker, self.automatic.label)

    def mark(self, marker: Marker) -> None:
        """Take note of a mark."""
        user_chose_automatic = self._by not in (None, MARKS)
        if (self._marker or 0) > marker or (user_chose_automatic and marker > Marker.AUTOMATIC):
            return
        may_move = marker is Marker.AUTOMATIC or self._whole_program
        if not self._driver.on_this_thread and not (
            may_move and self._driver.move_here(again=self._steps_are_elsewhere)
        ):
            self.elsewhere = True
            return
        before, self._marker = self._marker, marker
        if before != marker and marker > Marker.AUTOMATIC:
            self.automatic.stop()
            if before is not None:
                # The marks that these replace have ended this step already.
                return
        self._step()

    def _automatic_changed(self) -> None:
        if self._driver.recorder is not None:
            self._driver.recorder.steps_changed()
            on_this_thread = self._driver.on_this_thread or self._driver.move_here(again=True)
            self._steps_are_elsewhere = not on_this_thread
