"""Uploads from pinned memory, and without blocking the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from overlapscope.plugins.trials.shims import Note
from overlapscope.plugins.trials.uploads import Upload, watch
from overlapscope.recorder.wrapping import Undo, around, before_making, together


def start_pin(value: str, note: Note) -> Undo:
    """Pin the batches of DataLoaders, and other uploads from pageable memory in steps.

    Torch's allocator keeps the buffers, and reuses none while a copy reads it.

    Returns:
        A function that ends this.
    """

    def pin(upload: Upload) -> torch.Tensor | None:
        if not note.stepping or upload.source.is_pinned() or not upload.source.numel():
            return None
        note.count()
        return upload.again(upload.source.to(upload.dtype).pin_memory(), upload.non_blocking)

    def make(loader: DataLoader[Any], arguments: dict[str, Any]) -> None:
        if not arguments.get("pin_memory"):
            arguments["pin_memory"] = True
            note.count()

    pinned_on_host = around(torch.Tensor, "pin_memory", _pin_on_host)
    return together(before_making(DataLoader, make), pinned_on_host, watch(pin))


def _pin_on_host(pin: Callable[..., torch.Tensor], tensor: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
    """Leave a tensor on a GPU as it is, which would make a pinning loader fail."""
    return pin(tensor, *args, **options) if tensor.device.type == "cpu" else tensor


def start_non_blocking(value: str, note: Note) -> Undo:
    """Return at once from each upload from pinned memory: later work of the same stream waits for it anyway."""

    def upload(upload: Upload) -> torch.Tensor | None:
        if upload.non_blocking or upload.converted or not upload.source.is_pinned():
            return None
        note.count()
        return upload.again(upload.source, True)

    return watch(upload)
