"""The steps of a program that need know nothing of us."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from overlapscope.recorder import devices, recording
from overlapscope.recorder.optimizer_steps import OptimizerSteps
from overlapscope.recorder.torch_import import when_torch_is_imported


class ProgramSteps:
    """Counts the steps of one thread, and calls `stepped` at the end of each, there.

    They are those of the program's first optimizer, until the program marks its own with `overlapscope.step`. What is
    done while a CUDA graph is captured is none.
    """

    def __init__(
        self, stepped: Callable[[], None], *, here: bool = False, heeds: Callable[[], bool] = lambda: True
    ) -> None:
        """`here`: those of this thread, else of the first that makes any. `heeds()` says whether a mark is one of the
        program's.
        """
        self.count = 0
        """Finished ones, of this process."""
        self.marked = False
        """The program marks its steps itself."""
        self._stepped, self._heeds = stepped, heeds
        self._only = self._thread = threading.get_ident() if here else None
        self._optimizer = OptimizerSteps(self._on_step, self._on_step)

    def start(self) -> None:
        """Count from now on, or as soon as torch is imported."""
        os.register_at_fork(after_in_child=self._forked)
        recording.step_listeners.append(self._on_mark)
        when_torch_is_imported(self._optimizer.start)

    def _forked(self) -> None:
        self.count = 0

    def _on_mark(self) -> None:
        if self._only not in (None, threading.get_ident()) or not self._heeds():
            return
        if not self.marked:
            self.marked = True
            self._optimizer.rest()
            if self.count:
                # The end of this very step.
                self._thread = threading.get_ident()
                return
        self._on_step()

    def _on_step(self) -> None:
        thread = threading.get_ident()
        if self._thread is None:
            self._thread = thread
        if thread != self._thread or "torch" not in sys.modules:
            return
        # A device that has failed says nothing, and the program will be told so soon.
        with suppress(RuntimeError):
            if devices.capturing():
                return
        self.count += 1
        self._stepped()
