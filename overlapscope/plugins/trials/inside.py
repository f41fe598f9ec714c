"""Process of a run: finds and counts its steps, and reports its outcome at the end."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import time
from collections.abc import Callable
from multiprocessing.util import Finalize
from pathlib import Path

import msgspec
from msgspec.structs import replace
from torch.utils.data import get_worker_info

from overlapscope.plugins.trials.course import RunCourse
from overlapscope.plugins.trials.protocol import Steps, Task
from overlapscope.recorder.automatic_steps import AutomaticSteps, ProgramSteps
from overlapscope.recorder.destination import Rank, rank_of
from overlapscope.recorder.step_choice import SourceKind, StepSource
from overlapscope.recorder.step_sources import StepSources
from overlapscope.recorder.wrapping import Undo

_PATIENCE_S = 60.0
_POLL_S = 0.02


class ProcessRun:
    """A process from the import of torch to the last step of the task, or to the program's end."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._course = RunCourse(task)
        self._steps = ProgramSteps(self._marked, here=True)
        self._automatic: AutomaticSteps | None = None
        """Chooses steps during a survey, until the program marks a step or its optimizer makes a step."""
        self._reported = False

    def begin(self) -> None:
        """Make the changes, and begin to count steps."""
        self._course.begin()
        if self._task.steps_by is not None:
            _watch(self._task.steps_by, self._stepped)
        else:
            self._steps.start()
        if self._task.survey and not self._steps.count:
            # Its optimizer is already watched.
            self._automatic = AutomaticSteps(
                self._stepped, self._course.restart, by=None, at_once=True, without=(SourceKind.OPTIMIZER,)
            )
            self._automatic.start()
        if self._task.steps is not None or self._task.survey:
            os.register_at_fork(after_in_child=self._forked)
            atexit.register(self._at_exit)

    # -- Steps -----------------------------------------------------------------------------------

    def _marked(self) -> None:
        if self._automatic is not None:
            self._automatic.stop()
            self._automatic = None
            self._course.restart()
        self._stepped()

    def _stepped(self) -> None:
        if get_worker_info() is not None:
            # Modules that a DataLoader's worker calls prepare batches.
            return
        if self._reported:
            # The program caught SystemExit.
            os._exit(0)
        self._course.step()
        if self._course.steps == 1 and multiprocessing.parent_process() is not None:
            # Python's exit handlers do not run there.
            Finalize(None, self._at_exit, exitpriority=0)
        if self._course.complete:
            self._report()
            self._await_others()
            raise SystemExit

    # -- End -------------------------------------------------------------------------------------

    def _forked(self) -> None:
        """Reset a forked child, which has made no step yet."""
        self._reported = False
        self._course.restart()

    def _at_exit(self) -> None:
        # Without a step, only the process that the parent started reports an outcome.
        if not self._reported and (self._course.steps or os.getsid(0) == os.getpid()):
            self._report()

    def _report(self) -> None:
        self._reported = True
        place = rank_of(os.environ) or Rank(0, 1)
        path = Path(self._task.directory, f"rank{place.number}.json")
        if not self._course.steps and path.exists():
            return
        half = path.with_suffix(f".{os.getpid()}")
        outcome = self._course.outcome(place.number, place.world_size)
        if self._automatic is not None:
            outcome = replace(outcome, steps_by=_chosen(self._automatic))
        half.write_bytes(msgspec.json.encode(outcome))
        os.replace(half, path)

    def _await_others(self) -> None:
        """Wait until all ranks of this machine have reported: a launcher ends them all when a rank has ended."""
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
        until = time.monotonic() + _PATIENCE_S
        while len(list(Path(self._task.directory).glob("rank*.json"))) < ranks and time.monotonic() < until:
            time.sleep(_POLL_S)


def _chosen(automatic: AutomaticSteps) -> Steps | None:
    """Return the steps that were chosen, as another run can find them; None if none were."""
    choice = automatic.choice
    if choice is None:
        return None
    name = choice.name if choice.source is None else choice.source.name
    return Steps(kind=choice.kind.name, name=name or "", each=choice.each, label=choice.label)


def _watch(steps: Steps, stepped: Callable[[], None]) -> Undo:
    """Call `stepped` at the end of each step, counting from the program's first event, the same in every run."""
    seen = 0

    def happened(source: StepSource) -> None:
        nonlocal seen
        if source.name == steps.name or not steps.name:
            seen += 1
            if seen % steps.each == 0:
                stepped()

    sources = StepSources(happened)
    sources.start((SourceKind[steps.kind],))
    return sources.stop
