"""Options that the program could have passed or set.

DataLoaders take batches from worker processes, and optimizers are fused. The process has objects exempt from garbage
collection, and fewer threads.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from overlapscope.plugins.trials.shims import Note
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
