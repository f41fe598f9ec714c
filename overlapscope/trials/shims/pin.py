"""What is uploaded in steps lies in pinned memory."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.utils.data import DataLoader

from overlapscope.recorder.wrapping import around
from overlapscope.trials.shims import Note, Undo
from overlapscope.trials.uploads import Upload, watch


def start(value: str, note: Note) -> Undo:
    """Have DataLoaders pin their batches, and pin what else is uploaded in steps from pageable memory.

    The buffers are those of torch's allocator, which keeps them, and gives none away while a copy reads it.
    """

    def pin(upload: Upload) -> torch.Tensor | None:
        if not note.stepping or upload.source.is_pinned() or not upload.source.numel():
            return None
        note.made()
        return upload.again(upload.source.to(upload.dtype).pin_memory(), upload.non_blocking)

    undo = ExitStack()
    undo.callback(around(DataLoader, "__init__", functools.partial(_make, note)))
    undo.callback(around(torch.Tensor, "pin_memory", _pin_on_host))
    undo.callback(watch(pin))
    return undo.close


def _make(note: Note, make: Callable[..., None], *args: Any, **options: Any) -> None:
    given = inspect.signature(make).bind(*args, **options)
    if not given.arguments.get("pin_memory"):
        given.arguments["pin_memory"] = True
        note.made()
    make(*given.args, **given.kwargs)


def _pin_on_host(pin: Callable[..., torch.Tensor], tensor: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    """A loader that pins its batches fails where one holds a tensor of a GPU's; here that one stays as it is."""
    return pin(tensor, *args, **options) if tensor.device.type == "cpu" else tensor
