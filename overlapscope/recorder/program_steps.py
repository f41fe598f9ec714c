"""Counting the steps of a program that need not know of it."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from overlapscope.recorder import devices, recording
from overlapscope.recorder.imports import when_torch_is_imported
from overlapscope.recorder.step_sources import OptimizerSteps
from overlapscope.recorder.wrapping import Undo

if TYPE_CHECKING:
    from torch.optim import Optimizer


class ProgramSteps:
    """Counts the steps of one thread, and calls `stepped` there at the end of each.

    Steps are those of the program's first optimizer, until the program marks its steps with `overlapscope.step`. If a
    program has several optimizers, as for a GAN, each steps once in a step of the program, so only the first to step
    counts as long as it exists. Steps during the capture of a CUDA graph do not count.
    """

    def __init__(
        self, stepped: Callable[[], None], *, here: bool = False, heeds: Callable[[], bool] = lambda: True
    ) -> None:
        """Prepare to count steps.

        Args:
            stepped: Function to call at the end of each step.
            here: Whether to count the steps of this thread, instead of the first thread that makes any.
            heeds: Function that returns whether a mark is the program's.
        """
        self.count = 0
        """Number of finished steps of this process."""
        self.marked = False
        """True if the program marks its steps itself."""
        self._stepped, self._heeds = stepped, heeds
        self._only = self._thread = threading.get_ident() if here else None
        self._optimizers = OptimizerSteps(self._on_optimizer)
        self._unwatch: Undo = lambda: None
        self._first: weakref.ref[Optimizer] | None = None

    def start(self) -> None:
        """Begin to count, now or as soon as torch is imported."""
        os.register_at_fork(after_in_child=self._forked)
        recording.step_listeners.append(self._on_mark)
        when_torch_is_imported(self._watch)

    def _watch(self) -> None:
        if not self.marked:
            self._unwatch = self._optimizers.start()

    def _on_optimizer(self, optimizer: Optimizer) -> None:
        if self._thread not in (None, threading.get_ident()):
            return
        first = None if self._first is None else self._first()
        if first is None:
            first, self._first = optimizer, weakref.ref(optimizer)
        if first is optimizer:
            self._on_step()

    def _forked(self) -> None:
        self.count = 0

    def _on_mark(self) -> None:
        if self._only not in (None, threading.get_ident()) or not self._heeds():
            return
        if not self.marked:
            self.marked = True
            self._unwatch()
            if self.count:
                # The optimizer has ended this step already.
                self._thread = threading.get_ident()
                return
        self._on_step()

    def _on_step(self) -> None:
        thread = threading.get_ident()
        if self._thread is None:
            self._thread = thread
        if thread != self._thread or "torch" not in sys.modules:
            return
        # A device that has failed raises. The program will notice the failure itself.
        with suppress(RuntimeError):
            if devices.capturing():
                return
        self.count += 1
        self._stepped()
