"""Optimizers with `fused=True`, or that update and clip many parameters at a time (`foreach`)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import torch
from torch.optim import Optimizer

from overlapscope.plugins.trials.shims import Note
from overlapscope.recorder.wrapping import Undo, around, before_making, together


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


CLIPPING: Final = ("clip_grad_norm_", "clip_grad_value_")
"""Functions of `torch.nn.utils` with the option, which they use by default where it fits."""


def start_foreach(value: str, note: Note) -> Undo:
    """Pass the option to each new optimizer that has it, and to calls that clip gradients without it."""

    def make(optimizer: Optimizer, given: dict[str, Any]) -> None:
        if given.get("fused") or given.get("differentiable"):
            note.refuse("The program asks for another implementation of the optimizer.")
        elif not given.get("foreach"):
            given["foreach"] = True
            note.count()

    def clip(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        given = arguments(function, *args, **options)
        if is_off(given.arguments):
            given.arguments["foreach"] = True
            note.count()
        return function(*given.args, **given.kwargs)

    optimizers = (before_making(kind, make) for kind in with_option("foreach"))
    return together(*optimizers, *(around(torch.nn.utils, name, clip) for name in CLIPPING))


def arguments(function: Callable[..., Any], *args: Any, **options: Any) -> inspect.BoundArguments:
    """Return the arguments of a call by name."""
    return inspect.signature(function).bind(*args, **options)


def is_off(given: dict[str, Any]) -> bool:
    """Return whether a call switches the option off."""
    return given.get("foreach") is False


def is_missing(optimizer: Optimizer) -> bool:
    """Return whether an optimizer has the option, but would not use it.

    By default torch uses it for parameters on a GPU.
    """
    if not isinstance(optimizer, tuple(with_option("foreach"))):
        return False
    return any(
        not group.get("fused")
        and not group.get("differentiable")
        and (is_off(group) or (group.get("foreach") is None and not all(each.is_cuda for each in group["params"])))
        for group in optimizer.param_groups
    )
