"""One process of a run: its changes are made, its steps counted and timed, its results told. See `child`."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import random
import sys
import threading
import time
import weakref
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.optim import Optimizer

from overlapscope.recorder import devices, recording
from overlapscope.recorder.destination import Rank, rank_of
from overlapscope.recorder.optimizer_steps import OptimizerSteps
from overlapscope.recorder.step_times import StepTimer
from overlapscope.recorder.wrapping import before
from overlapscope.trace.model import TimedSteps
from overlapscope.trials import fingerprint, seeded_batches
from overlapscope.trials.last_step import LastStep
from overlapscope.trials.protocol import Outcome, Results, Task
from overlapscope.trials.rounding import round_parameters
from overlapscope.trials.shims import Notes, make
from overlapscope.trials.survey import Survey

_PATIENCE_S = 60.0
_POLL_S = 0.02


class Run:
    """From the import of torch to the last of the steps that the task asks for, or to the program's end.

    Steps are those of the program's first optimizer, until the program marks its own.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._notes = Notes()
        self._survey: Survey | None = None
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._counter = OptimizerSteps(self._stepped, lambda: None)
        self._timer = StepTimer(task.steps or 0)
        self._thread = threading.get_ident()
        self._process = os.getpid()
        self._all_steps = 0
        self._marked = False
        """The program marks its steps itself."""
        self._last: LastStep | None = None
        """Looked at more closely, once all others are timed."""
        self._times: TimedSteps | None = None
        self._results: Results | None = None
        self._told = False

    def begin(self) -> None:
        """Make the changes, and count steps from now on."""
        seed(self._task.seed)
        before(Optimizer, "__init__", self._on_optimizer)
        if self._task.rounded:
            round_parameters()
        make(self._task.changes, self._notes)
        if self._task.survey:
            self._survey = Survey()
            self._notes.after_step.append(self._survey.step)
        self._counter.start()
        recording.step_listeners.append(self._marked_step)
        if self._task.steps is not None or self._task.survey:
            seeded_batches.start(self._task.seed)
            os.register_at_fork(after_in_child=self._forked)
            atexit.register(self._at_exit)

    # -- steps -----------------------------------------------------------------------------------

    def _on_optimizer(self, optimizer: Optimizer, *args: Any, **options: Any) -> None:
        self._optimizers.append(weakref.ref(optimizer))

    def _marked_step(self) -> None:
        if threading.get_ident() != self._thread:
            return
        if not self._marked:
            self._marked = True
            self._counter.stop()
            if self._all_steps:
                # The end of this very step.
                return
        self._stepped()

    def _stepped(self) -> None:
        if devices.capturing():
            return
        self._all_steps += 1
        self._notes.step()
        if self._all_steps == 1 and multiprocessing.parent_process() is not None:
            # Exit handlers of Python's are not run there.
            Finalize(None, self._at_exit, exitpriority=0)
        if self._task.steps is None or self._told:
            return
        if self._last is not None:
            self._seen(self._last)
            self._tell(complete=True)
            self._await_others()
            raise SystemExit
        if self._all_steps >= self._task.warmup_steps:
            self._timer.step(self._all_steps)
            if self._timer.full:
                self._look_closer()

    def _look_closer(self) -> None:
        """All steps are timed: keep what they have computed, and look on while the next is made, for its loss."""
        self._times = self._timer.read(wait=True)
        optimizers = self._living
        # It may have a tensor of a kind that nobody has thought of.
        with suppress(Exception):
            self._results = fingerprint.of_optimizers(optimizers)
        self._last = LastStep(output=not optimizers)

    @property
    def _living(self) -> list[Optimizer]:
        return [one for reference in self._optimizers if (one := reference()) is not None]

    def _seen(self, last: LastStep) -> None:
        last.end()
        with suppress(Exception):
            self._results = fingerprint.with_last_step(self._results, last)

    # -- the end ---------------------------------------------------------------------------------

    def _forked(self) -> None:
        """This is a child that has made no step yet."""
        self._process, self._all_steps, self._told = os.getpid(), 0, False
        self._timer.restart()

    def _at_exit(self) -> None:
        # Without a step only the process that was started by whoever waits for an outcome has something to tell.
        if not self._told and (self._all_steps or os.getsid(0) == os.getpid()):
            self._tell(complete=self._last is not None)

    def _tell(self, *, complete: bool) -> None:
        self._told = True
        place = rank_of(os.environ) or Rank(0, 1)
        path = Path(self._task.directory, f"rank{place.number}.json")
        if not self._all_steps and path.exists():
            return
        times = self._times or self._timer.read(wait=True)
        outcome = Outcome(
            rank=place.number,
            ranks=place.world_size,
            all_steps=self._all_steps,
            complete=complete,
            host_ns=times.host_ns,
            device_ns=times.device_ns,
            results=self._results,
            facts=None if self._survey is None else self._survey.facts(self._living),
            made=dict(self._notes.made),
            refused=self._notes.refused,
        )
        half = path.with_suffix(f".{os.getpid()}")
        half.write_bytes(msgspec.json.encode(outcome))
        os.replace(half, path)

    def _await_others(self) -> None:
        """Until the ranks of this machine have told as well: a launcher ends them all when one has ended."""
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
        until = time.monotonic() + _PATIENCE_S
        while len(list(Path(self._task.directory).glob("rank*.json"))) < ranks and time.monotonic() < until:
            time.sleep(_POLL_S)


def seed(number: int) -> None:
    """Have the random numbers of Python, torch and numpy begin there."""
    random.seed(number)
    torch.manual_seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number)
