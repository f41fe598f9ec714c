"""Capture of a module's forward and backward pass as two CUDA graphs, with `torch.cuda.make_graphed_callables`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel


def why_not(module: torch.nn.Module, args: tuple[Any, ...], options: Mapping[str, Any]) -> str:
    """Return why a module called with these arguments can't be captured, in a clause; empty if it can."""
    tensors = [*args, *module.parameters()]
    if options:
        return "it is called with keyword arguments"
    if not all(isinstance(tensor, torch.Tensor) and tensor.is_cuda for tensor in tensors):
        return "not all that it is called with, and not all of its parameters, are tensors on a GPU"
    if isinstance(module, DistributedDataParallel):
        return "it is wrapped in DistributedDataParallel"
    if module._backward_hooks or module._forward_hooks or module._forward_pre_hooks:
        return "it has hooks"
    if any(buffer.requires_grad for buffer in module.buffers()):
        return "it has buffers with gradients"
    return ""


class Capture:
    """A replacement for a module's `forward`, which captures the next call that computes gradients.

    Calls with other shapes, with keyword arguments or in evaluation use the module's own `forward`.
    """

    def __init__(self, module: torch.nn.Module, captured: Callable[[], None], failed: Callable[[str], None]) -> None:
        """Replace the module's `forward`.

        Args:
            captured: Called after the capture.
            failed: Called with a sentence if the module can't be captured.
        """
        self._module, self._captured, self._failed = module, captured, failed
        self._own_forward = vars(module).get("forward")
        self._forward = module.forward
        self._graphed: Callable[..., Any] | None = None
        self._signature: list[tuple[Any, ...]] = []
        module.forward = self._call

    def undo(self) -> None:
        """Restore the module's `forward`."""
        if self._own_forward is None:
            vars(self._module).pop("forward", None)
        else:
            self._module.forward = self._own_forward

    def _call(self, *args: Any, **options: Any) -> Any:
        learns = self._module.training and torch.is_grad_enabled()
        if self._graphed is not None:
            if learns and not options and self._signature == _signature(args):
                return self._graphed(*args, *self._module.parameters())
            return self._forward(*args, **options)
        if learns:
            self.undo()
            why = why_not(self._module, args, options)
            if why:
                self._failed(f"It cannot be captured: {why}.")
            else:
                self._graphed = self._captured_as(args)
                return (self._forward if self._graphed is None else self._call)(*args)
        return self._forward(*args, **options)

    def _captured_as(self, args: tuple[torch.Tensor, ...]) -> Callable[..., Any] | None:
        """Capture a call.

        The warm-up of a capture draws random numbers and updates statistics of norms, so both are restored.

        Returns:
            The captured call, which takes the parameters after the arguments; None on failure.
        """
        module, cache = self._module, torch.is_autocast_cache_enabled()
        buffers = [buffer.clone() for buffer in module.buffers()]
        numbers = torch.cuda.get_rng_state()
        names = [name for name, _ in module.named_parameters()]

        def call(*tensors: torch.Tensor) -> Any:
            given, parameters = tensors[: len(args)], tensors[len(args) :]
            return functional_call(module, dict(zip(names, parameters, strict=True)), given)

        # The program may keep its last loss, and thereby autograd's nodes of the parameters, which belong to another
        # stream and would end the capture. Other tensors on the same memory have nodes of their own.
        samples = [tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in args]
        samples += [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in module.parameters()]
        try:
            torch.set_autocast_cache_enabled(False)
            graphed: Callable[..., Any] = torch.cuda.make_graphed_callables(
                call, tuple(samples), allow_unused_input=True
            )
            self._captured()
        except Exception as error:
            # CUDA's messages have many lines.
            message = str(error).partition("\n")[0].rstrip(".")
            self._failed(f"It cannot be captured: {type(error).__name__}: {message}.")
            return None
        finally:
            torch.set_autocast_cache_enabled(cache)
            torch.cuda.set_rng_state(numbers)
            with torch.no_grad():
                for buffer, kept in zip(module.buffers(), buffers, strict=True):
                    buffer.copy_(kept)
        self._signature = _signature(args)
        module.forward = self._call
        return graphed


def _signature(args: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    return [(tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad) for tensor in args]
