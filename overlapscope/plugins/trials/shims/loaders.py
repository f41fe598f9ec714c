"""DataLoaders whose batches come from worker processes, or from a `TensorDataset` by a single index operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from overlapscope.plugins.trials.shims import Note
from overlapscope.recorder.wrapping import Undo, around, before_making, together

_MADE_TO_PERSIST = "_overlapscope_made_to_persist"


def start_workers(value: str, note: Note) -> Undo:
    """Give each new DataLoader at least `value` workers, which persist."""
    workers = int(value)

    def make(loader: DataLoader[Any], arguments: dict[str, Any]) -> None:
        if isinstance(arguments.get("dataset"), IterableDataset):
            note.refuse("The dataset is iterable: each worker would read all of it.")
        elif arguments.get("num_workers", 0) < workers:
            if not arguments.get("persistent_workers"):
                vars(loader)[_MADE_TO_PERSIST] = True
            arguments.update(num_workers=workers, persistent_workers=True)
            note.count()

    return together(before_making(DataLoader, make), around(DataLoader, "__iter__", _iterate))


def _iterate(iterate: Callable[..., Any], loader: DataLoader[Any]) -> Any:
    """Start an epoch of a loader, after drawing a seed if its persistent workers won't take one.

    Later random numbers, as for the order of batches, are then the same as in the unchanged program.

    Returns:
        The loader's iterator.
    """
    if _MADE_TO_PERSIST in vars(loader) and getattr(loader, "_iterator", None) is not None:
        torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
    return iterate(loader)


def start_collate(value: str, note: Note) -> Undo:
    """Index the tensors with all indices of a batch, which gives the batch that `default_collate` would make."""

    def iterate(make: Callable[..., Any], loader: DataLoader[Any]) -> Any:
        if collates(loader.dataset, loader.collate_fn, loader.batch_sampler):
            note.count()
        return make(loader)

    return together(around(DataLoader, "__iter__", iterate), around(_MapDatasetFetcher, "fetch", _fetch))


def collates(dataset: object, collate: object, batches: object) -> bool:
    """Return whether a loader takes single samples from a `TensorDataset`, and stacks them as usual."""
    return type(dataset) is TensorDataset and collate is default_collate and bool(batches)


def _fetch(load: Callable[..., Any], fetcher: Any, indices: Any) -> Any:
    if collates(fetcher.dataset, fetcher.collate_fn, fetcher.auto_collation):
        return [tensor[indices] for tensor in fetcher.dataset.tensors]
    return load(fetcher, indices)
