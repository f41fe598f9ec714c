"""A change of the last bit of a program's parameters, to see the effect of rounding on its results."""

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

    The first use is when an optimizer is made of it, or its module is called. The program's own random numbers stay the
    same, and all ranks draw the same. The returned function ends it.
    """
    rounded = WeakIdKeyDictionary()

    def change(parameters: Iterable[torch.Tensor]) -> None:
        with torch.no_grad():
            for parameter in parameters:
                if parameter not in rounded:
                    rounded[parameter] = True
                    _round(getattr(parameter, "_local_tensor", parameter))

    def construct(make: Callable[..., None], optimizer: Optimizer, *args: Any, **options: Any) -> None:
        make(optimizer, *args, **options)
        change(parameter for group in optimizer.param_groups for parameter in group["params"])

    def called(module: torch.nn.Module, args: object) -> None:
        if not torch.compiler.is_compiling():
            change(module.parameters(recurse=False))

    return together(around(Optimizer, "__init__", construct), register_module_forward_pre_hook(called).remove)


def _round(parameter: torch.Tensor) -> None:
    if not parameter.is_floating_point() or parameter.is_meta or parameter.layout is not torch.strided:
        return
    generator = torch.Generator(parameter.device).manual_seed(_SEED)
    sign = torch.empty(parameter.shape, dtype=torch.int8, device=parameter.device).random_(-1, 2, generator=generator)
    parameter.mul_(1 + sign.to(parameter.dtype) * torch.finfo(parameter.dtype).eps)
