"""Reads values from the GPU a step late, so that the host need not wait."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch

from overlapscope.plugins.trials import late_values
from overlapscope.plugins.trials.observed import is_ours, is_program
from overlapscope.plugins.trials.shims import Note
from overlapscope.recorder.wrapping import Undo, around, together

_OF_TORCH = torch.Tensor.__format__.__code__.co_filename
"""File of the code that reads a tensor to format it."""

_Key = tuple[CodeType, int, int]
"""A place in the program, with the number of earlier reads there in the same step."""


def start(value: str, note: Note) -> Undo:
    """Return the value of the step before for `.item()` and `float()`, at places that only add, keep or show it."""
    places: dict[_Key, _ReadPlace | None] = {}
    read_before: Counter[_Key] = Counter()

    def read(now: Callable[..., Any], tensor: torch.Tensor) -> Any:
        if not (note.stepping and tensor.is_cuda and tensor.numel() == 1):
            return now(tensor)
        frame = _caller(sys._getframe(2))
        if is_ours(frame.f_code.co_filename):
            return now(tensor)
        first = frame.f_code, frame.f_lasti, 0
        key = *first[:2], read_before[first]
        read_before[first] += 1
        if key not in places:
            why = why_not(frame)
            places[key] = None if why else _ReadPlace()
            if why:
                note.refuse(why)
        place = places[key]
        if place is None:
            return now(tensor)
        note.count()
        return place.read(now, tensor)

    reads = (around(torch.Tensor, name, read) for name in ("item", "__float__"))
    return together(*reads, note.after_step(read_before.clear))


def _caller(frame: FrameType) -> FrameType:
    while frame.f_code.co_filename == _OF_TORCH and frame.f_back is not None:
        frame = frame.f_back
    return frame


def why_not(frame: FrameType) -> str:
    """Return a sentence on why a value must come at once; empty if it may come later."""
    if not is_program(frame.f_code.co_filename):
        return "A library reads the value."
    return late_values.why_not(frame.f_code.co_filename, frame.f_lineno)


class _ReadPlace:
    """A place in the program, with its last read, which may still be on its way."""

    def __init__(self) -> None:
        self._last: tuple[torch.Tensor, torch.cuda.Event] | None = None

    def read(self, now: Callable[..., Any], tensor: torch.Tensor) -> Any:
        last, event = self._last, torch.cuda.Event()
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor.detach(), non_blocking=True)
        event.record()
        self._last = copy, event
        if last is None:
            return now(tensor)
        last[1].synchronize()
        return now(last[0])
