"""Trials of changes on a step function of this process. Imports torch."""

from __future__ import annotations

import gc
import inspect
import time
import traceback
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from overlapscope.plugins.trials.conduct import TrialOptions, conduct
from overlapscope.plugins.trials.inside import TaskRun
from overlapscope.plugins.trials.protocol import EndedRun, RankOutcome, Task, TrialProgram
from overlapscope.plugins.trials.result import Trial
from overlapscope.render.progress import Progress

Build = Callable[[], Callable[[], object]]
"""Builds everything anew, and returns a function that makes a step."""


def try_changes(
    build: Build,
    *,
    steps: int | None = None,
    minutes: float = 5.0,
    only: Collection[str] = (),
) -> Trial:
    """Try changes on a step function, as `overlapscope try` does on a program (`docs/guides/try.md`).

    All runs are in this process, so nothing is predicted, and data races are not checked. The seeds of torch, numpy and
    random are set.

    Args:
        build: Builds everything anew: the model, its optimizer, the DataLoader. Returns a function that makes a step,
            and raises StopIteration when there are no more.
        steps: Number of steps to time in each run.
        minutes: Maximum time for all runs.
        only: Changes to try instead of all.

    Returns:
        What each change saves, and whether the program still computes the same.

    Raises:
        UsageError: There are too few steps.
        Exception: Any error of `build` or a step without a change.
    """
    options = TrialOptions(minutes, steps, tuple(only))
    name = getattr(build, "__qualname__", type(build).__qualname__)
    root = Path(inspect.getsourcefile(inspect.unwrap(build)) or "").absolute().parent
    with TemporaryDirectory(prefix="overlapscope-try-") as directory, Progress() as progress:
        trial, _ = conduct(_Function(text=name, root=root, build=build), options, Path(directory), progress)
        return trial


class _Function(TrialProgram, frozen=True, kw_only=True):
    """A step function. What it raises, `run` raises, and it is not recorded."""

    build: Build

    def run(self, task: Task, limit_s: float) -> EndedRun:
        began = time.monotonic()
        try:
            outcomes: tuple[RankOutcome, ...] = (_run_task(self.build, task),)
            output = ""
        except Exception:
            if not task.changes:
                raise
            outcomes, output = (), traceback.format_exc()
        # Free a run's objects before the next run makes them again.
        gc.collect()
        return EndedRun(outcomes, 1 if output else 0, output, time.monotonic() - began)


def _run_task(build: Build, task: Task) -> RankOutcome:
    run = TaskRun(task)
    with ExitStack() as undo:
        undo.callback(run.begin())
        step = build()
        with suppress(StopIteration):
            while not run.complete:
                step()
                run.step()
        return run.outcome(rank=0, ranks=1)
