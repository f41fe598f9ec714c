"""Takes the batches of a `TensorDataset` from its tensors with a single index operation each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, TensorDataset, default_collate
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from overlapscope.plugins.trials.shims import Note
from overlapscope.recorder.wrapping import Undo, around, together


def start(value: str, note: Note) -> Undo:
    """Index the tensors with all indices of a batch, which gives the batch that `default_collate` would make."""

    def iterate(make: Callable[..., Any], loader: DataLoader[Any]) -> Any:
        if fits(loader.dataset, loader.collate_fn, loader.batch_sampler):
            note.count()
        return make(loader)

    return together(around(DataLoader, "__iter__", iterate), around(_MapDatasetFetcher, "fetch", _fetch))


def fits(dataset: object, collate: object, batches: object) -> bool:
    """Return whether a loader takes single samples from a `TensorDataset`, and stacks them as usual."""
    return type(dataset) is TensorDataset and collate is default_collate and bool(batches)


def _fetch(load: Callable[..., Any], fetcher: Any, indices: Any) -> Any:
    if fits(fetcher.dataset, fetcher.collate_fn, fetcher.auto_collation):
        return [tensor[indices] for tensor in fetcher.dataset.tensors]
    return load(fetcher, indices)
