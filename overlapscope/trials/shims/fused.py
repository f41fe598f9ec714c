"""Optimizers of torch's are made with `fused=True`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch.optim import Optimizer

from overlapscope.recorder.wrapping import around
from overlapscope.trials.shims import Note, Undo


def start(value: str, note: Note) -> Undo:
    """Make each optimizer that has the option, and all of whose parameters can be used with it, fused."""
    undo = ExitStack()
    for kind in with_option():
        undo.callback(around(kind, "__init__", functools.partial(_make, note)))
    return undo.close


def with_option() -> list[type[Optimizer]]:
    """The classes of torch's that have it."""
    found = (getattr(torch.optim, name) for name in dir(torch.optim))
    kinds = [one for one in found if isinstance(one, type) and issubclass(one, Optimizer)]
    return [kind for kind in kinds if "fused" in inspect.signature(kind.__init__).parameters]


def why_not(params: Iterable[object]) -> str:
    """Why parameters, as an optimizer is given them, cannot be used with it: a sentence, empty where they can."""
    for one in _parameters(params):
        if not one.is_floating_point():
            return "A parameter is no floating-point number."
        if one.device.type not in ("cuda", "cpu", "mps", "xpu"):
            return f"There is no fused optimizer for parameters on {one.device.type}."
    return ""


def _make(note: Note, make: Callable[..., None], *args: Any, **options: Any) -> None:
    given = inspect.signature(make).bind(*args, **options)
    arguments = given.arguments
    if arguments.get("foreach") or arguments.get("differentiable"):
        note.refuse("The program asks for another implementation of the optimizer.")
    elif not arguments.get("fused"):
        arguments["params"] = list(arguments["params"])
        why = why_not(arguments["params"])
        if why:
            note.refuse(why)
        else:
            arguments["fused"] = True
            note.made()
    make(*given.args, **given.kwargs)


def _parameters(params: Iterable[object]) -> Iterator[torch.Tensor]:
    for one in params:
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, dict):
            given = one["params"]
            yield from [given] if isinstance(given, torch.Tensor) else given
        elif isinstance(one, tuple):
            yield one[1]
