"""Observation of a program: lines that calls come from, tensors in its structures, calls of its modules."""

from __future__ import annotations

import copy
import dataclasses
import os
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from types import FrameType
from typing import Any

import torch

from overlapscope.recorder.program_lines import UNKNOWN, CodeLine, lines


def site(frame: FrameType | None) -> CodeLine:
    """Return the innermost line of the program from `frame` outwards, with the library that makes the call, if any.

    Without a line of the program, it is the library's. On an autograd thread, it is unknown.
    """
    found = list(lines(frame))
    if not found:
        return UNKNOWN
    line = next((line for line in found if not line.library), found[0])
    return CodeLine(os.path.abspath(line.file), line.number, found[0].library)


# -- Calls of modules --------------------------------------------------------------------------------


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


# -- Tensors in structures ---------------------------------------------------------------------------

TensorPath = tuple[object, ...]
"""Path to a tensor in a structure: its keys, from the outside in."""


def tensors(value: object, path: TensorPath = ()) -> Iterator[tuple[TensorPath, torch.Tensor]]:
    """Yield each tensor with its path."""
    if isinstance(value, torch.Tensor):
        yield path, value
    else:
        for key, part in _parts(value):
            yield from tensors(part, (*path, key))


def with_tensors(value: Any, change: Callable[[TensorPath, torch.Tensor], torch.Tensor], path: TensorPath = ()) -> Any:
    """Return the structure with changed tensors; other objects are passed on unchanged."""
    if isinstance(value, torch.Tensor):
        return change(path, value)
    changed = {key: with_tensors(part, change, (*path, key)) for key, part in _parts(value)}
    if all(changed[key] is part for key, part in _parts(value)):
        return value
    if isinstance(value, list | tuple):
        return type(value)(*changed.values()) if hasattr(value, "_fields") else type(value)(changed.values())
    again = copy.copy(value)
    for key, part in changed.items():
        if isinstance(again, MutableMapping):
            again[key] = part
        else:
            object.__setattr__(again, str(key), part)
    return again


def _parts(value: object) -> Iterator[tuple[object, Any]]:
    if isinstance(value, list | tuple):
        yield from enumerate(value)
    elif isinstance(value, Mapping):
        yield from value.items()
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield field.name, getattr(value, field.name, None)
