"""What rounding alone does to a program's results: its parameters begin with another last bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from overlapscope.recorder.wrapping import Undo, around

_SEED = 20170612


def round_parameters() -> Undo:
    """Multiply each parameter by 1 - eps, 1 or 1 + eps of its type when an optimizer is made of it.

    The program's own random numbers stay as they are, and all ranks draw the same. What is
    returned ends it.
    """

    def made(make: Callable[..., None], optimizer: Optimizer, *args: Any, **options: Any) -> None:
        make(optimizer, *args, **options)
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    _round(getattr(parameter, "_local_tensor", parameter))

    return around(Optimizer, "__init__", made)


def _round(parameter: torch.Tensor) -> None:
    if not parameter.is_floating_point() or parameter.is_meta or parameter.layout is not torch.strided:
        return
    generator = torch.Generator(parameter.device).manual_seed(_SEED)
    sign = torch.empty(parameter.shape, dtype=torch.int8, device=parameter.device).random_(-1, 2, generator=generator)
    parameter.mul_(1 + sign.to(parameter.dtype) * torch.finfo(parameter.dtype).eps)
