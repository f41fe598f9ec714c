"""Makes torch's optimizers with `fused=True`."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from overlapscope.plugins.trials.shims import Note
from overlapscope.recorder.wrapping import Undo, before_making, together


def start(value: str, note: Note) -> Undo:
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
