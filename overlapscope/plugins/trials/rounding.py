"""A change of the last bit of a program's parameters, to see the effect of rounding on its results.

Under autocast, it is the last bit of the type in which the program computes: a compiled module rounds fewer
intermediate results to it than the program does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from overlapscope.recorder.wrapping import Undo, around, together

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
