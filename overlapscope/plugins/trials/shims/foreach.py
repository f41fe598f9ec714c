"""Updates and clips many parameters at a time, by the option `foreach`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.optim import Optimizer

from overlapscope.plugins.trials.shims import Note
from overlapscope.plugins.trials.shims.fused import with_option
from overlapscope.recorder.wrapping import Undo, around, before_making, together

CLIPPING: Final = ("clip_grad_norm_", "clip_grad_value_")
"""Functions of `torch.nn.utils` with the option, which they use by default where it fits."""


def start(value: str, note: Note) -> Undo:
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
