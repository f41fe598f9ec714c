"""Batches are loaded in worker processes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from overlapscope.recorder.wrapping import around
from overlapscope.trials.shims import Note, Undo

_MADE_TO_PERSIST = "_overlapscope_made_to_persist"


def start(value: str, note: Note) -> Undo:
    """Give each DataLoader that is made `value` workers, which persist, unless it has more."""
    undo = ExitStack()
    undo.callback(around(DataLoader, "__init__", functools.partial(_make, int(value), note)))
    undo.callback(around(DataLoader, "__iter__", _iterate))
    return undo.close


def _make(workers: int, note: Note, make: Callable[..., None], *args: Any, **options: Any) -> None:
    given = inspect.signature(make).bind(*args, **options)
    if isinstance(given.arguments.get("dataset"), IterableDataset):
        note.refuse("The dataset is iterable: each worker would read all of it.")
    elif given.arguments.get("num_workers", 0) < workers:
        if not given.arguments.get("persistent_workers"):
            vars(args[0])[_MADE_TO_PERSIST] = True
        given.arguments.update(num_workers=workers, persistent_workers=True)
        note.made()
    make(*given.args, **given.kwargs)


def _iterate(iterate: Callable[..., Any], loader: DataLoader[Any]) -> Any:
    """Workers that are made to persist take no seed for a further epoch. It is drawn all the same, so that all that is
    drawn then, as the order of batches, is as in the unchanged program.
    """
    if _MADE_TO_PERSIST in vars(loader) and getattr(loader, "_iterator", None) is not None:
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
    return iterate(loader)
