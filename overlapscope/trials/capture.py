"""A module's forward and backward pass as two CUDA graphs, by `torch.cuda.make_graphed_callables`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel


def why_not(module: torch.nn.Module, args: tuple[Any, ...], options: Mapping[str, Any]) -> str:
    """Why that does not fit a module that is called with these arguments, in a clause; empty where it does."""
    tensors = [*args, *module.parameters()]
    if options:
        return "it is called with keyword arguments"
    if not all(isinstance(one, torch.Tensor) and one.is_cuda for one in tensors):
        return "not all that it is called with, and not all of its parameters, are tensors on a GPU"
    if isinstance(module, DistributedDataParallel):
        return "it is wrapped in DistributedDataParallel"
    if module._backward_hooks or module._forward_hooks or module._forward_pre_hooks:
        return "it has hooks"
    if any(buffer.requires_grad for buffer in module.buffers()):
        return "it has buffers with gradients"
    return ""


class Capture:
    """Stands in for a module's `forward`, from its next call that computes gradients on.

    A call with other shapes, or with keyword arguments, is made by the module's own.
    """

    def __init__(self, module: torch.nn.Module, captured: Callable[[], None], failed: Callable[[str], None]) -> None:
        """`captured()` is called when it is captured, `failed(sentence)` where it cannot be."""
        self._module, self._captured, self._failed = module, captured, failed
        self._own = vars(module).get("forward")
        self._forward = module.forward
        self._graphed: Callable[..., Any] | None = None
        self._signature: list[tuple[Any, ...]] = []
        module.forward = self._call

    def undo(self) -> None:
        """The module is as it was."""
        if self._own is None:
            vars(self._module).pop("forward", None)
        else:
            self._module.forward = self._own

    def _call(self, *args: Any, **options: Any) -> Any:
        if self._graphed is not None:
            fits = not options and torch.is_grad_enabled() and self._signature == _signature(args)
            return (self._graphed if fits else self._forward)(*args, **options)
        if self._module.training and torch.is_grad_enabled():
            self.undo()
            why = why_not(self._module, args, options)
            if why:
                self._failed(f"It cannot be captured: {why}.")
            else:
                self._make(args)
                return self._call(*args, **options)
        return self._forward(*args, **options)

    def _make(self, args: tuple[torch.Tensor, ...]) -> None:
        """What capturing runs to warm up must leave no trace: it draws numbers, and norms keep statistics."""
        module, cache = self._module, torch.is_autocast_cache_enabled()
        buffers = [buffer.clone() for buffer in module.buffers()]
        numbers = torch.cuda.get_rng_state()
        samples = tuple(one.detach().clone().requires_grad_(one.requires_grad) for one in args)
        graphed = self._forward
        try:
            torch.set_autocast_cache_enabled(False)
            torch.cuda.make_graphed_callables(module, samples, allow_unused_input=True)
            graphed = module.forward
            self._captured()
        except Exception as error:
            # What CUDA says goes on for lines.
            said = str(error).partition("\n")[0].rstrip(".")
            self._failed(f"It cannot be captured: {type(error).__name__}: {said}.")
        finally:
            torch.set_autocast_cache_enabled(cache)
            torch.cuda.set_rng_state(numbers)
            with torch.no_grad():
                for buffer, kept in zip(module.buffers(), buffers, strict=True):
                    buffer.copy_(kept)
        self._graphed, self._signature = graphed, _signature(args)
        module.forward = self._call


def _signature(args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    return [(one.shape, one.dtype, one.device, one.requires_grad) for one in args]
