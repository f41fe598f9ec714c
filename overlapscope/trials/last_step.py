"""What one step of the program computes: its loss, and what its outermost module returns."""

from __future__ import annotations

from typing import Any

import torch

from overlapscope.recorder.wrapping import before
from overlapscope.trials.module_calls import ModuleCalls


class LastStep:
    """Looks on from now until `end`."""

    def __init__(self, *, output: bool) -> None:
        """`output`: keep a module's output, too."""
        self.loss: torch.Tensor | None = None
        """On which `backward` was called last, detached."""
        self.output: Any = None
        self._undo = before(torch.autograd, "backward", self._backward)
        self._calls = ModuleCalls() if output else None

    def end(self) -> None:
        """Look no more."""
        self._undo()
        if self._calls is not None:
            self._calls.end()
            self.output = self._calls.output

    def _backward(self, tensors: Any, *args: Any, **options: Any) -> None:
        first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        self.loss = first.detach() if isinstance(first, torch.Tensor) else None
