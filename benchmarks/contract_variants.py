"""Variants of the programs of `contract_programs`, what must be reported of each, and their tensors and layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from msgspec import Struct
from torch import Tensor

gpu = torch.cuda if torch.cuda.is_available() else torch.cpu
"""On a machine without a GPU, streams and events do nothing."""
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

Step = Callable[[], object]


class MutationVariant(Struct, frozen=True):
    """A program as it is recorded."""

    mutation: str = ""
    """Name of the mutation; empty for the program itself."""
    scale: float = 1.0
    """Factor of the batch size."""

    def has(self, mutation: str) -> bool:
        """Return whether this is the program with that mutation."""
        return self.mutation == mutation

    def rows(self, rows: int) -> int:
        """Return the batch size, small without a GPU."""
        return max(1, int(rows * self.scale)) if DEVICE == "cuda" else 8

    def width(self, width: int) -> int:
        """Return the width of a layer, small without a GPU."""
        return width if DEVICE == "cuda" else 16


class Expected(Struct, frozen=True):
    """A mutation, and what must be reported about it."""

    parts: tuple[str, ...]
    """Parts of the contract, one of which must be lost (`contracts.compare.Promise.part`)."""
    reason: str
    """Text of the message that gives the reason, as a regular expression."""
    marks: tuple[str, ...] = ()
    """Comments at the lines, one of which the message or its place must name; by default the mutation's own name."""


def host(*shape: int, pinned: bool = True) -> Tensor:
    """Return a tensor of the host."""
    return torch.randn(*shape).pin_memory() if pinned and DEVICE == "cuda" else torch.randn(*shape)


def layers(count: int, width: int) -> list[torch.nn.Linear]:
    """Return linear layers on the device."""
    return [torch.nn.Linear(width, width, device=DEVICE) for _ in range(count)]
