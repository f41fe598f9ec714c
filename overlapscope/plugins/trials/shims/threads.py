"""Limits torch's threads on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from overlapscope.plugins.trials.shims import Note
from overlapscope.recorder.wrapping import Undo, around, together


def start(value: str, note: Note) -> Undo:
    """Have torch use at most `value` threads, whatever the program asks for."""
    most, before = int(value), torch.get_num_threads()

    def limit(set_threads: Callable[[int], None], count: int) -> None:
        set_threads(min(count, most))

    torch.set_num_threads(min(before, most))
    note.count()
    return together(partial(torch.set_num_threads, before), around(torch, "set_num_threads", limit))
