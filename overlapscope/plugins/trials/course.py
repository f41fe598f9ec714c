"""Course of a run in a process: changes are made, steps are timed, results are kept.

Random numbers are fixed, for each batch of a map-style dataset too, so that runs with different numbers of workers can
be compared. Parameters may be rounded differently, to see the effect of rounding on the results.
"""

from __future__ import annotations

import random
import sys
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.weak import WeakIdKeyDictionary

from overlapscope.plugins.trials import fingerprint
from overlapscope.plugins.trials.fingerprint import LastStep
from overlapscope.plugins.trials.protocol import RankOutcome, RankResults, Task
from overlapscope.plugins.trials.shims import Notes, make
from overlapscope.plugins.trials.survey import Survey
from overlapscope.recorder.step_times import StepTimer
from overlapscope.recorder.wrapping import Undo, around, before, together
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
            undo.callback(start(task.seed))
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


_SEED = 20170612


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
    generator = torch.Generator(tensor.device).manual_seed(_SEED)
    sign = torch.empty(tensor.shape, dtype=torch.int8, device=tensor.device).random_(-1, 2, generator=generator)
    tensor.mul_(1 + sign.to(tensor.dtype) * eps)


_LOOKED_AT = 4
"""Number of first batches of each fetcher that show which generators the dataset uses."""
_KEPT = "_overlapscope_draws"


def start(seed: int) -> Undo:
    """Seed each batch of a map-style dataset by its indices, without affecting the program's random numbers.

    Returns:
        A function that ends this.
    """

    def fetch(load: Callable[..., Any], fetcher: Any, index: object) -> Any:
        draws: _Draws = vars(fetcher).setdefault(_KEPT, _Draws())
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


class _Draws:
    """The generators that a dataset draws from. Seeding only these costs little, and nothing without any."""

    def __init__(self) -> None:
        self._unknown = _LOOKED_AT
        """Number of batches left to observe."""
        self._used: tuple[_Generator, ...] = ()

    @contextmanager
    def seeded(self, text: str) -> Iterator[None]:
        """Seed the generators from a text, inside the block."""
        generators = _GENERATORS if self._unknown else self._used
        number = zlib.crc32(text.encode())
        before = [generator.state() for generator in generators]
        try:
            with self._looking(generators, number) if self._unknown else nullcontext():
                for generator in generators:
                    generator.seed(number)
                yield
        finally:
            for generator, state in zip(generators, before, strict=True):
                generator.restore(state)

    @contextmanager
    def _looking(self, generators: tuple[_Generator, ...], number: int) -> Iterator[None]:
        """Find the generators used inside the block, by their next draw."""
        for generator in generators:
            generator.seed(number)
        first = [generator.draw() for generator in generators]
        yield
        self._unknown -= 1
        drawn = [generator for generator, value in zip(generators, first, strict=True) if generator.draw() != value]
        self._used = tuple(generator for generator in generators if generator in drawn or generator in self._used)
