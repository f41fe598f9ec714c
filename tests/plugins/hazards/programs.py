"""Parts of programs for the hazard checker, on a GPU or a pretended one."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional

from overlapscope.plugins.hazards.checker import HazardChecker


def watched(program: Callable[[], object]) -> HazardChecker:
    """Run a program on a GPU under the checker."""
    torch.cuda.synchronize()
    checker = HazardChecker()
    checker.start()
    try:
        program()
    finally:
        checker.stop()
        torch.cuda.synchronize()
    return checker


def name_of(code: str) -> str:
    """Return the name of a line, which is the comment at its end."""
    return code.rpartition("# ")[2]


def world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def functional_calls(x: torch.Tensor) -> list[Callable[[], torch.Tensor]]:
    """Return functional collectives of a tensor."""
    return [
        lambda: functional.all_reduce(x, "sum", world()),
        lambda: functional.all_gather_tensor(x, 0, world()),
        lambda: functional.reduce_scatter_tensor(x, "sum", 0, world()),
        lambda: functional.all_to_all_single(x, None, None, world()),
    ]
