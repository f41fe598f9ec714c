"""Options that the program could have passed or set.

DataLoaders take batches from worker processes, optimizers are fused, and the outermost modules compiled. The process
has objects exempt from garbage collection, and fewer threads.
"""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from overlapscope.plugins.trials.changes import COMPILE_MODES, Note
from overlapscope.plugins.trials.observed import ModuleCalls
from overlapscope.recorder.wrapping import Undo, around, before_making, together

_MADE_TO_PERSIST = "_overlapscope_made_to_persist"


def start_workers(value: str, note: Note) -> Undo:
    """Give each new DataLoader at least `value` workers, which persist."""
    workers = int(value)

    def make(loader: DataLoader[Any], arguments: dict[str, Any]) -> None:
        if isinstance(arguments.get("dataset"), IterableDataset):
            note.refuse("The dataset is iterable: each worker would read all of it.")
        elif arguments.get("num_workers", 0) < workers:
            if not arguments.get("persistent_workers"):
                vars(loader)[_MADE_TO_PERSIST] = True
            arguments.update(num_workers=workers, persistent_workers=True)
            note.count()

    return together(before_making(DataLoader, make), around(DataLoader, "__iter__", _iterate))


def _iterate(iterate: Callable[..., Any], loader: DataLoader[Any]) -> Any:
    """Start an epoch of a loader, after drawing a seed if its persistent workers won't take one.

    Later random numbers, as for the order of batches, are then the same as in the unchanged program.

    Returns:
        The loader's iterator.
    """
    if _MADE_TO_PERSIST in vars(loader) and getattr(loader, "_iterator", None) is not None:
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
    return iterate(loader)


def start_gc(value: str, note: Note) -> Undo:
    """Collect garbage at the end of the first step, and freeze all other objects."""

    def freeze() -> None:
        if not frozen:
            gc.collect()
            gc.freeze()
            frozen.append(True)
            note.count()

    def undo() -> None:
        end()
        if frozen:
            gc.unfreeze()

    frozen: list[bool] = []
    end = note.after_step(freeze)
    return undo


def start_threads(value: str, note: Note) -> Undo:
    """Have torch use at most `value` threads, whatever the program asks for."""
    most, before = int(value), torch.get_num_threads()

    def limit(set_threads: Callable[[int], None], count: int) -> None:
        set_threads(min(count, most))

    torch.set_num_threads(min(before, most))
    note.count()
    return together(partial(torch.set_num_threads, before), around(torch, "set_num_threads", limit))


def start_fused(value: str, note: Note) -> Undo:
    """Switch optimizers with the option `fused` to it, if all their parameters allow that."""

    def fuse(optimizer: Optimizer, arguments: dict[str, Any]) -> None:
        if arguments.get("foreach") or arguments.get("differentiable"):
            note.refuse("The program asks for another implementation of the optimizer.")
        elif not arguments.get("fused"):
            arguments["params"] = list(arguments["params"])
            if why := why_not(type(optimizer), arguments["params"]):
                note.refuse(why)
            else:
                arguments["fused"] = True
                note.count()

    return together(*(before_making(kind, fuse) for kind in with_option("fused")))


def with_option(option: str) -> list[type[Optimizer]]:
    """Return torch's optimizer classes with an option."""
    members = (getattr(torch.optim, name) for name in dir(torch.optim))
    kinds = [member for member in members if isinstance(member, type) and issubclass(member, Optimizer)]
    return [kind for kind in kinds if option in inspect.signature(kind.__init__).parameters]


def why_not(kind: type[Optimizer], params: Iterable[object]) -> str:
    """Return a sentence on why parameters, as passed to an optimizer, don't allow the option; empty if they do."""
    for parameter in _parameters(params):
        if issubclass(kind, torch.optim.Adagrad) and parameter.is_cuda:
            return "There is no fused Adagrad for a GPU."
        if not parameter.is_floating_point():
            return "A parameter is not a floating-point number."
        if parameter.device.type not in ("cuda", "cpu", "mps", "xpu"):
            return f"There is no fused optimizer for parameters on {parameter.device.type}."
    return ""


def _parameters(params: Iterable[object]) -> Iterator[torch.Tensor]:
    for entry in params:
        if isinstance(entry, torch.Tensor):
            yield entry
        elif isinstance(entry, dict):
            given = entry["params"]
            yield from [given] if isinstance(given, torch.Tensor) else given
        elif isinstance(entry, tuple):
            yield entry[1]


# -- Compiled modules --------------------------------------------------------------------------------


def start_graph(value: str, note: Note) -> Undo:
    """Observe in the second step which modules are called, and compile them in place from the third.

    `compile` has torch use CUDA graphs, `fuse` doesn't.

    Returns:
        A function that ends this.
    """
    mode, undo = COMPILE_MODES[value], ExitStack()
    called: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
    observers: list[ModuleCalls] = []
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == 1:
            observers.append(ModuleCalls(lambda module, frame: called.add(module)))
        elif observers:
            observers.pop().end()
            for module in called:
                make(module)

    def make(module: torch.nn.Module) -> None:
        if is_compiled(module):
            note.refuse("The program compiles its module itself.")
        elif not all(parameter.is_cuda for parameter in module.parameters()):
            note.refuse("The module's parameters are not on a GPU.")
        else:
            try:
                undo.callback(_compile(mode, module, note))
            except Exception as error:
                note.refuse(f"It could not be made: {type(error).__name__}: {error}.")

    def end() -> None:
        for observer in observers:
            observer.end()
        # The last change first: each restores what it found.
        undo.close()

    undo.callback(note.after_step(step))
    return end


def is_compiled(module: torch.nn.Module) -> bool:
    """Return whether torch already compiles it, or a part of it."""
    return any(
        part._compiled_call_impl is not None or type(part).__name__ == "OptimizedModule" for part in module.modules()
    )


def is_of_torch(module: torch.nn.Module) -> bool:
    """Return whether its class is torch's own, such as `Sequential`, which `compile()` does not affect (torch 2.13)."""
    return type(module).__module__.startswith("torch.nn.modules.")


def _compile(mode: str, module: torch.nn.Module, note: Note) -> Undo:
    from torch._inductor import config  # Takes a second, which a survey need not.

    # It would draw other random numbers than the program does, so that results could not be compared.
    before, config.fallback_random = config.fallback_random, True
    forward = vars(module).get("forward")
    if is_of_torch(module):
        module.forward = torch.compile(module.forward, mode=mode)
    else:
        module.compile(mode=mode)
    note.count()

    def undo() -> None:
        config.fallback_random = before
        module._compiled_call_impl = None
        vars(module).pop("forward", None)
        if forward is not None:
            module.forward = forward

    return undo
