"""The outermost modules that a program calls, found without replacing anything that it may compile."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import torch


class ModuleCalls:
    """Looks on from now until `end`, on this thread, at all that Python calls: that is slow.

    It sees nothing where the program itself is being profiled by Python's means.
    """

    def __init__(self, called: Callable[[torch.nn.Module, FrameType], None] = lambda module, frame: None) -> None:
        """`called` is told of each call of a module with parameters that no other module has called, before it."""
        self.output: Any = None
        """Of the last of those calls."""
        self._called = called
        self._under_way: FrameType | None = None
        self._code = torch.nn.Module._wrapped_call_impl.__code__
        """Code of each call of a module, compiled or not, to which the recorder may have added a line."""
        self._looks = sys.getprofile() is None
        if self._looks:
            self._look_back(sys._getframe())
            sys.setprofile(self._on_event)

    def end(self) -> None:
        """Look no more."""
        if self._looks:
            sys.setprofile(None)
        self._under_way = None

    def _look_back(self, frame: FrameType | None) -> None:
        """Note the call that is under way: a step may end inside one."""
        outermost = None
        while frame is not None:
            outermost, frame = frame if frame.f_code is self._code else outermost, frame.f_back
        if outermost is not None:
            self._on_event(outermost, "call", None)

    def _on_event(self, frame: FrameType, event: str, result: Any) -> None:
        if frame.f_code is not self._code:
            return
        if event == "call" and self._under_way is None:
            # What a module of the program's own makes of this is not to reach the program.
            with suppress(Exception):
                module = frame.f_locals["self"]
                if next(module.parameters(), None) is not None:
                    self._under_way = frame
                    self._called(module, frame)
        elif event == "return" and frame is self._under_way:
            self._under_way, self.output = None, result
