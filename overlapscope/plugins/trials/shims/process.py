"""Settings of the process: objects exempt from garbage collection, and the number of torch's threads on the CPU."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial

import torch

from overlapscope.plugins.trials.shims import Note
from overlapscope.recorder.wrapping import Undo, around, together


def start_gc(value: str, note: Note) -> Undo:
    """Collect garbage at the end of the first step, and freeze all other objects."""

    def freeze() -> None:
        if not frozen:
            gc.collect()
            gc.freeze()
            frozen.append(True)
            note.count()

    def undo() -> None:
        end()
        if frozen:
            gc.unfreeze()

    frozen: list[bool] = []
    end = note.after_step(freeze)
    return undo


def start_threads(value: str, note: Note) -> Undo:
    """Have torch use at most `value` threads, whatever the program asks for."""
    most, before = int(value), torch.get_num_threads()

    def limit(set_threads: Callable[[int], None], count: int) -> None:
        set_threads(min(count, most))

    torch.set_num_threads(min(before, most))
    note.count()
    return together(partial(torch.set_num_threads, before), around(torch, "set_num_threads", limit))
