"""What one step of the program computes: its loss, and what its outermost module returns."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch

from overlapscope.recorder.wrapping import before

_CALL = torch.nn.Module._wrapped_call_impl.__code__
"""Of each call of a module, compiled or not."""


class LastStep:
    """Looks on from now until `end`, at one step's cost: nothing of the program is replaced that it may compile."""

    def __init__(self, *, output: bool) -> None:
        """`output`: keep a module's output, too, unless the program is being profiled by Python's means."""
        self.loss: torch.Tensor | None = None
        """On which `backward` was called last, detached."""
        self.output: Any = None
        """Of the last call of a module with parameters that no other module called."""
        self._frame: FrameType | None = None
        self._undo = before(torch.autograd, "backward", self._backward)
        self._profiles = output and sys.getprofile() is None
        if self._profiles:
            sys.setprofile(self._on_event)

    def end(self) -> None:
        """Look no more."""
        self._undo()
        if self._profiles:
            sys.setprofile(None)
        self._frame = None

    def _backward(self, tensors: Any, *args: Any, **options: Any) -> None:
        first = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors), None)
        self.loss = first.detach() if isinstance(first, torch.Tensor) else None

    def _on_event(self, frame: FrameType, event: str, result: Any) -> None:
        if frame.f_code is not _CALL:
            return
        if event == "call" and self._frame is None:
            if next(frame.f_locals["self"].parameters(), None) is not None:
                self._frame = frame
        elif event == "return" and frame is self._frame:
            self._frame, self.output = None, result
