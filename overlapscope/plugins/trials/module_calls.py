"""Observer of the outermost modules that a program calls, which replaces nothing that the program may compile."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

import torch


class ModuleCalls:
    """Observes all Python calls of this thread until `end`, which is slow.

    It sees nothing if the program itself uses a Python profiler.
    """

    def __init__(self, called: Callable[[torch.nn.Module, FrameType], None] = lambda module, frame: None) -> None:
        """Begin to observe; `called` is called before each call of a module with parameters by the program itself."""
        self.output: Any = None
        """Output of the last of those calls."""
        self._called = called
        self._under_way: FrameType | None = None
        self._code = torch.nn.Module._wrapped_call_impl.__code__
        """Code of each call of a module, compiled or not; the recorder may have added a line to it."""
        self._looks = sys.getprofile() is None
        if self._looks:
            self._look_back(sys._getframe())
            sys.setprofile(self._on_event)

    def end(self) -> None:
        """Stop observing."""
        if self._looks:
            sys.setprofile(None)
        self._under_way = None

    def _look_back(self, frame: FrameType | None) -> None:
        """Note the call in progress: a step may end inside a call."""
        outermost = None
        while frame is not None:
            outermost, frame = frame if frame.f_code is self._code else outermost, frame.f_back
        if outermost is not None:
            self._on_event(outermost, "call", None)

    def _on_event(self, frame: FrameType, event: str, result: Any) -> None:
        if frame.f_code is not self._code:
            return
        if event == "call" and self._under_way is None:
            # Errors of a module in the program must not reach the program from here.
            with suppress(Exception):
                module = frame.f_locals["self"]
                if next(module.parameters(), None) is not None:
                    self._under_way = frame
                    self._called(module, frame)
        elif event == "return" and frame is self._under_way:
            self._under_way, self.output = None, result
