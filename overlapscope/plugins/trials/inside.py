"""A trial's run, inside its process: makes changes, counts and times steps, and reports the outcome at the end.

Random numbers are fixed, for each batch of a map-style dataset too, so that runs with different numbers of workers can
be compared. Parameters may be rounded differently, to see the effect of rounding on the results.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import random
import sys
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from msgspec import Struct
from msgspec.structs import replace
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.utils.data import get_worker_info
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.weak import WeakIdKeyDictionary

from overlapscope.plugins.trials import fingerprint
from overlapscope.plugins.trials.changes import Notes, make
from overlapscope.plugins.trials.fingerprint import LastStep
from overlapscope.plugins.trials.protocol import RankOutcome, RankResults, Steps, Task
from overlapscope.plugins.trials.survey import Survey
from overlapscope.recorder.automatic_steps import AutomaticSteps, ProgramSteps
from overlapscope.recorder.destination import Rank, rank_of
from overlapscope.recorder.step_choice import SourceKind, StepSource
from overlapscope.recorder.step_sources import StepSources
from overlapscope.recorder.step_times import StepTimer
from overlapscope.recorder.wrapping import Undo, around, before, together
from overlapscope.trace.model import TimedSteps

_PATIENCE_S = 60.0
_POLL_S = 0.02


class ProcessRun:
    """A process from the import of torch to the last step of the task, or to the program's end."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._run = TaskRun(task)
        self._steps = ProgramSteps(self._marked, here=True)
        self._automatic: AutomaticSteps | None = None
        """Chooses steps during a survey, until the program marks a step or its optimizer makes a step."""
        self._reported = False

    def begin(self) -> None:
        """Make the changes, and begin to count steps."""
        self._run.begin()
        if self._task.steps_by is not None:
            _watch(self._task.steps_by, self._stepped)
        else:
            self._steps.start()
        if self._task.survey and not self._steps.count:
            # Its optimizer is already watched.
            self._automatic = AutomaticSteps(
                self._stepped, self._run.restart, by=None, at_once=True, without=(SourceKind.OPTIMIZER,)
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
            self._run.restart()
        self._stepped()

    def _stepped(self) -> None:
        if get_worker_info() is not None:
            # Modules that a DataLoader's worker calls prepare batches.
            return
        if self._reported:
            # The program caught SystemExit.
            os._exit(0)
        self._run.step()
        if self._run.steps == 1 and multiprocessing.parent_process() is not None:
            # Python's exit handlers do not run there.
            Finalize(None, self._at_exit, exitpriority=0)
        if self._run.complete:
            self._report()
            self._await_others()
            raise SystemExit

    # -- End -------------------------------------------------------------------------------------

    def _forked(self) -> None:
        """Reset a forked child, which has made no step yet."""
        self._reported = False
        self._run.restart()

    def _at_exit(self) -> None:
        # Without a step, only the process that the parent started reports an outcome.
        if not self._reported and (self._run.steps or os.getsid(0) == os.getpid()):
            self._report()

    def _report(self) -> None:
        self._reported = True
        place = rank_of(os.environ) or Rank(0, 1)
        path = Path(self._task.directory, f"rank{place.number}.json")
        if not self._run.steps and path.exists():
            return
        half = path.with_suffix(f".{os.getpid()}")
        outcome = self._run.outcome(place.number, place.world_size)
        if self._automatic is not None:
            outcome = replace(outcome, steps_by=_chosen_steps(self._automatic))
        half.write_bytes(msgspec.json.encode(outcome))
        os.replace(half, path)

    def _await_others(self) -> None:
        """Wait until all ranks of this machine have reported: a launcher ends them all when a rank has ended."""
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
        until = time.monotonic() + _PATIENCE_S
        while len(list(Path(self._task.directory).glob("rank*.json"))) < ranks and time.monotonic() < until:
            time.sleep(_POLL_S)


def _chosen_steps(automatic: AutomaticSteps) -> Steps | None:
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


# -- Changes, timed steps and results of a run -------------------------------------------------------


class TaskRun:
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
        undo.callback(
            before(Optimizer, "__init__", lambda optimizer, *_, **__: self._optimizers.append(weakref.ref(optimizer)))
        )
        if task.rounded:
            undo.callback(round_parameters())
        undo.callback(make(task.changes, self._notes))
        if task.survey:
            self._survey = Survey()
            undo.callback(self._survey.end)
            self._notes.after_step.append(self._survey.step)
        if task.steps is not None or task.survey:
            undo.callback(seed_batches(task.seed))
        undo.callback(self._end_last_step)
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
                self._begin_last_step()

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
            facts=None if self._survey is None else self._survey.facts(self._live_optimizers),
            effects=dict(self._notes.effects),
            refused=self._notes.refused,
        )

    @property
    def _live_optimizers(self) -> list[Optimizer]:
        return [optimizer for reference in self._optimizers if (optimizer := reference()) is not None]

    def _end_last_step(self) -> None:
        if self._last is not None:
            self._last.end()

    def _begin_last_step(self) -> None:
        """Keep the results once all steps are timed, and begin to observe the last step for its loss."""
        self._times = self._timer.read(wait=True)
        if self._survey is not None:
            # The reads that follow are ours.
            self._survey.end()
        optimizers = self._live_optimizers
        # Optimizers may hold tensors of an unknown kind.
        with suppress(Exception):
            self._results = fingerprint.optimizer_results(optimizers)
        self._last = LastStep(output=not optimizers)


def seed(number: int) -> None:
    """Seed the random numbers of Python, torch and numpy."""
    random.seed(number)
    torch.manual_seed(number)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(number)


class Compiling:
    """Notices that torch compiles, from the import of its compiler on, which `torch.compile` and optimizers cause."""

    def __init__(self) -> None:
        self._happened = False

    def since(self) -> bool:
        """Return whether torch has compiled anything since the last call."""
        happened, self._happened = self._happened, False
        handler = _handler()
        # `torch.compiler.reset` removes it.
        if handler is not None and self._begun not in handler.start_callbacks:
            handler.register_start_callback(self._begun)
        return happened

    def end(self) -> None:
        """Stop noticing."""
        handler = _handler()
        if handler is not None and self._begun in handler.start_callbacks:
            handler.remove_start_callback(self._begun)

    def _begun(self, *_: Any) -> None:
        self._happened = True


def _handler() -> Any:
    """Return torch's object that calls back at compilations; None until torch's compiler is imported."""
    return getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)


_SEED_OF_ROUNDING = 20170612


def round_parameters() -> Undo:
    """Multiply each parameter by 1 - eps, 1 or 1 + eps of its type before its first use.

    The first use is when an optimizer is made of it, or its module is called. Under autocast, the first call multiplies
    once more, with eps of autocast's type if that is coarser. The program's own random numbers stay the same, and all
    ranks draw the same.

    Returns:
        A function that ends this.
    """
    rounded = WeakIdKeyDictionary()

    def change(parameters: Iterable[torch.Tensor]) -> None:
        with torch.no_grad():
            for parameter in parameters:
                tensor = getattr(parameter, "_local_tensor", parameter)
                if not tensor.is_floating_point() or tensor.is_meta or tensor.layout is not torch.strided:
                    continue
                eps = _eps(tensor)
                if eps > rounded.get(parameter, 0.0):
                    rounded[parameter] = eps
                    _round(tensor, eps)

    def construct(make: Callable[..., None], optimizer: Optimizer, *args: Any, **options: Any) -> None:
        make(optimizer, *args, **options)
        change(parameter for group in optimizer.param_groups for parameter in group["params"])

    def called(module: torch.nn.Module, args: object) -> None:
        if not torch.compiler.is_compiling():
            change(module.parameters(recurse=False))

    return together(around(Optimizer, "__init__", construct), register_module_forward_pre_hook(called).remove)


def _eps(tensor: torch.Tensor) -> float:
    """Return the distance from 1 to the next number of the type in which a parameter is used."""
    device = tensor.device.type
    types = [tensor.dtype]
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        types.append(torch.get_autocast_dtype(device))
    return max(torch.finfo(each).eps for each in types)


def _round(tensor: torch.Tensor, eps: float) -> None:
    generator = torch.Generator(tensor.device).manual_seed(_SEED_OF_ROUNDING)
    sign = torch.empty(tensor.shape, dtype=torch.int8, device=tensor.device).random_(-1, 2, generator=generator)
    tensor.mul_(1 + sign.to(tensor.dtype) * eps)


_OBSERVED_BATCHES = 4
"""Number of first batches of each fetcher to observe for the generators that the dataset uses."""
_KEPT = "_overlapscope_draws"


def seed_batches(seed: int) -> Undo:
    """Seed each batch of a map-style dataset by its indices, without affecting the program's random numbers.

    Returns:
        A function that ends this.
    """

    def fetch(load: Callable[..., Any], fetcher: Any, index: object) -> Any:
        draws: _BatchSeeding = vars(fetcher).setdefault(_KEPT, _BatchSeeding())
        with draws.seeded(f"{seed} {index}"):
            return load(fetcher, index)

    return around(_MapDatasetFetcher, "fetch", fetch)


class _Generator(Struct, frozen=True):
    """A global random number generator."""

    seed: Callable[[int], object]
    state: Callable[[], Any]
    restore: Callable[[Any], object]
    draw: Callable[[], float]


_TORCH = torch.default_generator  # Not `torch.manual_seed`, which seeds those of GPUs, too.
_GENERATORS = (
    _Generator(random.seed, random.getstate, random.setstate, random.random),
    _Generator(np.random.seed, np.random.get_state, np.random.set_state, np.random.random),
    _Generator(
        _TORCH.manual_seed, _TORCH.get_state, _TORCH.set_state, lambda: torch.rand(1, dtype=torch.double).item()
    ),
)


class _BatchSeeding:
    """The generators that a dataset draws from. Seeding only these costs little, and nothing without any."""

    def __init__(self) -> None:
        self._unobserved = _OBSERVED_BATCHES
        """Number of batches left to observe."""
        self._used: tuple[_Generator, ...] = ()

    @contextmanager
    def seeded(self, text: str) -> Iterator[None]:
        """Seed the generators from a text, inside the block."""
        generators = _GENERATORS if self._unobserved else self._used
        number = zlib.crc32(text.encode())
        before = [generator.state() for generator in generators]
        try:
            with self._find_used(generators, number) if self._unobserved else nullcontext():
                for generator in generators:
                    generator.seed(number)
                yield
        finally:
            for generator, state in zip(generators, before, strict=True):
                generator.restore(state)

    @contextmanager
    def _find_used(self, generators: tuple[_Generator, ...], number: int) -> Iterator[None]:
        """Find the generators used inside the block, by their next draw."""
        for generator in generators:
            generator.seed(number)
        first = [generator.draw() for generator in generators]
        yield
        self._unobserved -= 1
        drawn = [generator for generator, value in zip(generators, first, strict=True) if generator.draw() != value]
        self._used = tuple(generator for generator in generators if generator in drawn or generator in self._used)
