"""Course of a run in a process: changes are made, steps are timed, results are kept."""

from __future__ import annotations

import random
import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import torch
from torch.optim import Optimizer

from overlapscope.plugins.trials import fingerprint, seeded_batches
from overlapscope.plugins.trials.compiling import Compiling
from overlapscope.plugins.trials.last_step import LastStep
from overlapscope.plugins.trials.protocol import RankOutcome, RankResults, Task
from overlapscope.plugins.trials.rounding import round_parameters
from overlapscope.plugins.trials.shims import Notes, make
from overlapscope.plugins.trials.survey import Survey
from overlapscope.recorder.step_times import StepTimer
from overlapscope.recorder.wrapping import before
from overlapscope.trace.model import TimedSteps


class RunCourse:
    """A run from `begin` to the last step of the task. The step after the timed ones is observed more closely."""

    def __init__(self, task: Task) -> None:
        self.steps = 0
        """Number of steps made, timed or not."""
        self.complete = False
        """True if all steps of the task are made."""
        self._task = task
        self._notes = Notes()
        self._survey: Survey | None = None
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._timer = StepTimer(task.steps or 0)
        self._times: TimedSteps | None = None
        self._compiling = Compiling()
        self._compiled: list[int] = []
        """Indices of timed steps in which torch compiled."""
        self._last: LastStep | None = None
        """Observer of the last step, once all others are timed."""
        self._results: RankResults | None = None

    def begin(self) -> Callable[[], None]:
        """Make the changes, and return a function that undoes them."""
        task, undo = self._task, ExitStack()
        seed(task.seed)
        undo.callback(before(Optimizer, "__init__", self._on_optimizer))
        if task.rounded:
            undo.callback(round_parameters())
        undo.callback(make(task.changes, self._notes))
        if task.survey:
            self._survey = Survey()
            undo.callback(self._survey.end)
            self._notes.after_step.append(self._survey.step)
        if task.steps is not None or task.survey:
            undo.callback(seeded_batches.start(task.seed))
        undo.callback(self._look_no_more)
        undo.callback(self._compiling.end)
        return undo.close

    def restart(self) -> None:
        """Forget the steps so far, as in a forked child."""
        self.steps = 0
        self._timer.restart()

    def step(self) -> None:
        """Handle the end of a step."""
        self.steps += 1
        compiled = self._compiling.since()
        self._notes.step()
        if self._task.steps is None or self.complete:
            return
        if self._last is not None:
            self._last.end()
            with suppress(Exception):
                self._results = fingerprint.with_last_step(self._results, self._last)
            self.complete = True
        elif self.steps >= self._task.warmup_steps:
            self._timer.step(self.steps)
            if not self._timer.timed:
                self._compiled.clear()
            elif compiled:
                self._compiled.append(self._timer.timed - 1)
            if self._timer.full:
                self._look_closer()

    def outcome(self, rank: int, ranks: int) -> RankOutcome:
        """Return the current outcome."""
        times = self._times or self._timer.read(wait=True)
        return RankOutcome(
            rank=rank,
            ranks=ranks,
            all_steps=self.steps,
            complete=self.complete,
            host_ns=times.host_ns,
            device_ns=times.device_ns,
            compiled=tuple(self._compiled),
            results=self._results,
            facts=None if self._survey is None else self._survey.facts(self._living),
            effects=dict(self._notes.effects),
            refused=self._notes.refused,
        )

    def _on_optimizer(self, optimizer: Optimizer, *args: Any, **options: Any) -> None:
        self._optimizers.append(weakref.ref(optimizer))

    @property
    def _living(self) -> list[Optimizer]:
        return [optimizer for reference in self._optimizers if (optimizer := reference()) is not None]

    def _look_no_more(self) -> None:
        if self._last is not None:
            self._last.end()

    def _look_closer(self) -> None:
        """Keep the results once all steps are timed, and observe the next step for its loss."""
        self._times = self._timer.read(wait=True)
        if self._survey is not None:
            # The reads that follow are ours.
            self._survey.end()
        optimizers = self._living
        # Optimizers may hold tensors of an unknown kind.
        with suppress(Exception):
            self._results = fingerprint.of_optimizers(optimizers)
        self._last = LastStep(output=not optimizers)


def seed(number: int) -> None:
    """Seed the random numbers of Python, torch and numpy."""
    random.seed(number)
    torch.manual_seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number)
