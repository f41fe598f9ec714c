"""Results of a single step of the program: its loss, and the output of its outermost module."""

from __future__ import annotations

from typing import Any

import torch

from overlapscope.plugins.trials.module_calls import ModuleCalls
from overlapscope.recorder.wrapping import before


class LastStep:
    """Observes the program until `end`."""

    def __init__(self, *, output: bool) -> None:
        """Begin to observe; `output` to keep a module's output as well."""
        self.loss: torch.Tensor | None = None
        """Tensor of the last `backward` call, detached."""
        self.output: Any = None
        self._undo = before(torch.autograd, "backward", self._backward)
        self._calls = ModuleCalls() if output else None

    def end(self) -> None:
        """Stop observing."""
        self._undo()
        if self._calls is not None:
            self._calls.end()
            self.output = self._calls.output

    def _backward(self, tensors: Any, *args: Any, **options: Any) -> None:
        first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        self.loss = first.detach() if isinstance(first, torch.Tensor) else None
