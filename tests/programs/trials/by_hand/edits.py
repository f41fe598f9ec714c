"""Code shared by the edited scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from tests.programs.trials.options import TrialScriptOptions


def loading(o: TrialScriptOptions) -> dict[str, Any]:
    """Return further arguments of a DataLoader."""
    passed: dict[str, Any] = {}
    if "workers" in o.edited:
        passed |= {"num_workers": int(o.edited["workers"]), "persistent_workers": True}
    if "pin" in o.edited:
        passed["pin_memory"] = o.cuda
    return passed


def fused(o: TrialScriptOptions) -> dict[str, Any]:
    """Return further arguments of an optimizer."""
    return {"fused": True} if "fused" in o.edited else {}


def graphed(o: TrialScriptOptions, model: nn.Module, *example: torch.Tensor) -> None:
    """Have the model's kernels launched as CUDA graphs; to capture them takes tensors as it is called with."""
    match o.edited.get("graph"):
        case "compile":
            model.compile(mode="reduce-overhead")
        case "capture":
            torch.cuda.make_graphed_callables(model, example)


def uploaded(part: torch.Tensor, o: TrialScriptOptions) -> torch.Tensor:
    """Return the tensor on the device, by way of pinned memory where that is an edit."""
    if "pin" in o.edited and o.cuda and not part.is_pinned():
        part = part.pin_memory()
    return part.to(o.device, non_blocking="non-blocking" in o.edited)


def batches(loader: Iterable[Any], o: TrialScriptOptions) -> Iterator[Any]:
    """Return the loader's batches; with the edit `prefetch` copied ahead."""
    return ahead(loader) if "prefetch" in o.edited else iter(loader)


def ahead(loader: Iterable[Any]) -> Iterator[Any]:
    """Its batches on the GPU, each copied on a stream of its own while the step before it runs."""
    stream = torch.cuda.Stream()

    def uploaded(part: torch.Tensor) -> torch.Tensor:
        return (part if part.is_pinned() else part.pin_memory()).to("cuda", non_blocking=True)

    def begun(batch: Any) -> Any:
        with torch.cuda.stream(stream):
            return _each(batch, uploaded)

    def arrived(batch: Any) -> Any:
        torch.cuda.current_stream().wait_stream(stream)
        _each(batch, lambda part: part.record_stream(torch.cuda.current_stream()))
        return batch

    coming = iter(loader)
    following = begun(next(coming))
    for batch in coming:
        ready = arrived(following)
        following = begun(batch)
        yield ready
    yield arrived(following)


def _each(batch: Any, do: Callable[[torch.Tensor], Any]) -> Any:
    """Return a tensor, or a dictionary or list of them, with something done to each."""
    if isinstance(batch, dict):
        return {name: do(part) for name, part in batch.items()}
    return [do(part) for part in batch] if isinstance(batch, list | tuple) else do(batch)


class DelayedReads:
    """Reads values one step after they were computed, when they have long been copied; the first one is 0."""

    def __init__(self) -> None:
        self._copied = torch.zeros(())
        self._arrived: torch.cuda.Event | None = None

    def item(self, value: torch.Tensor) -> float:
        if self._arrived:
            self._arrived.synchronize()
        before = self._copied.item()
        self._copied = value.detach().to("cpu", non_blocking=True)
        self._arrived = torch.cuda.Event()
        self._arrived.record()
        return before
