"""Changes tried on a step function of this process. Imports torch."""

from __future__ import annotations

import gc
import inspect
import time
import traceback
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from torch.optim import Optimizer

from overlapscope.recorder.step_times import StepTimer
from overlapscope.recorder.wrapping import before
from overlapscope.render.progress import Progress
from overlapscope.trace.model import TimedSteps
from overlapscope.trials import fingerprint, seeded_batches
from overlapscope.trials.conduct import Asked, conduct
from overlapscope.trials.inside import seed
from overlapscope.trials.last_step import LastStep
from overlapscope.trials.program import Ended
from overlapscope.trials.protocol import Outcome, Results, Task
from overlapscope.trials.result import Trial
from overlapscope.trials.rounding import round_parameters
from overlapscope.trials.shims import Notes, make
from overlapscope.trials.survey import Survey

Build = Callable[[], Callable[[], object]]
"""Makes everything anew, and returns what makes a step."""


def try_changes(
    build: Build,
    *,
    steps: int | None = None,
    minutes: float = 5.0,
    only: Collection[str] = (),
    also: Collection[str] = (),
) -> Trial:
    """Try changes on a step function, as `overlapscope try` does on a program (`docs/guides/try.md`).

    `build()` makes everything anew: the model, its optimizer, the DataLoader. It returns a function that makes one
    step; one that raises StopIteration has no more. `steps` are timed in each run; `only` names the changes to try,
    `also` those to try besides. All runs are in this process: nothing is predicted, and data races are not looked for.
    The seeds of torch, numpy and random are set.

    Raises UsageError where there are too few steps, and whatever `build` or a step raises without any change.
    """
    asked = Asked(minutes, steps, tuple(only), tuple(also))
    with TemporaryDirectory(prefix="overlapscope-try-") as directory, Progress() as progress:
        return conduct(_Function(build), asked, Path(directory), progress).trial


@dataclass(frozen=True, slots=True)
class _Function:
    """A `program.Program`."""

    build: Build
    records: bool = False

    @property
    def text(self) -> str:
        return getattr(self.build, "__qualname__", type(self.build).__qualname__)

    @property
    def root(self) -> Path:
        return Path(inspect.getsourcefile(inspect.unwrap(self.build)) or "").absolute().parent

    def run(self, task: Task, limit_s: float) -> Ended:
        began = time.monotonic()
        try:
            outcomes: tuple[Outcome, ...] = (_run(self.build, task),)
            output = ""
        except Exception:
            if not task.changes:
                raise
            outcomes, output = (), traceback.format_exc()
        # What the run made is gone before the next one makes it again.
        gc.collect()
        return Ended(outcomes, 1 if output else 0, output, time.monotonic() - began)

    def record(self, task: Task, limit_s: float, options: Sequence[str]) -> Ended:
        raise NotImplementedError("a function is not recorded")


def _run(build: Build, task: Task) -> Outcome:
    optimizers: list[weakref.ref[Optimizer]] = []
    notes, timer = Notes(), StepTimer(task.steps or 0)
    results: Results | None = None
    all_steps = 0
    with ExitStack() as undo:
        seed(task.seed)
        undo.callback(seeded_batches.start(task.seed))
        undo.callback(before(Optimizer, "__init__", lambda made, *_, **__: optimizers.append(weakref.ref(made))))
        if task.rounded:
            undo.callback(round_parameters())
        undo.callback(make(task.changes, notes))
        survey = Survey() if task.survey else None
        if survey is not None:
            undo.callback(survey.end)
            notes.after_step.append(survey.step)
        step = build()
        times, complete = TimedSteps(), False
        with suppress(StopIteration):
            while not timer.full:
                step()
                all_steps += 1
                notes.step()
                if all_steps >= task.warmup_steps:
                    timer.step(all_steps)
            times = timer.read(wait=True)
            if survey is not None:
                # What is read next is read by us.
                survey.end()
            results = fingerprint.of_optimizers(_living(optimizers))
            last = LastStep(output=not _living(optimizers))
            undo.callback(last.end)
            step()
            last.end()
            results = fingerprint.with_last_step(results, last)
            complete = True
        return Outcome(
            rank=0,
            ranks=1,
            all_steps=all_steps + complete,
            complete=complete,
            host_ns=times.host_ns,
            device_ns=times.device_ns,
            results=results,
            facts=None if survey is None else survey.facts(_living(optimizers)),
            made=dict(notes.made),
            refused=notes.refused,
        )


def _living(optimizers: Sequence[weakref.ref[Optimizer]]) -> list[Optimizer]:
    return [one for reference in optimizers if (one := reference()) is not None]
