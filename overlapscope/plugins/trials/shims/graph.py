"""Compiles the outermost modules, or launches their kernels as CUDA graphs."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel

from overlapscope.plugins.trials.changes import COMPILE_MODES
from overlapscope.plugins.trials.observed import ModuleCalls
from overlapscope.plugins.trials.shims import Note
from overlapscope.recorder.wrapping import Undo


def start(value: str, note: Note) -> Undo:
    """Observe in the second step which modules are called, and change them in place from the third.

    `compile` has torch compile them with CUDA graphs, `fuse` without, and `capture` captures their passes.

    Returns:
        A function that ends this.
    """
    change, undo = _CHANGES[value], ExitStack()
    called: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
    observers: list[ModuleCalls] = []
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        if steps == 1:
            observers.append(ModuleCalls(lambda module, frame: called.add(module)))
        elif observers:
            observers.pop().end()
            for module in called:
                make(module)

    def make(module: torch.nn.Module) -> None:
        if is_compiled(module):
            note.refuse("The program compiles its module itself.")
        elif not all(parameter.is_cuda for parameter in module.parameters()):
            note.refuse("The module's parameters are not on a GPU.")
        else:
            try:
                undo.callback(change(module, note))
            except Exception as error:
                note.refuse(f"It could not be made: {type(error).__name__}: {error}.")

    def end() -> None:
        for observer in observers:
            observer.end()
        # The last change first: each restores what it found.
        undo.close()

    undo.callback(note.after_step(step))
    return end


def is_compiled(module: torch.nn.Module) -> bool:
    """Return whether torch already compiles it, or a part of it."""
    return any(
        part._compiled_call_impl is not None or type(part).__name__ == "OptimizedModule" for part in module.modules()
    )


def is_of_torch(module: torch.nn.Module) -> bool:
    """Return whether its class is torch's own, such as `Sequential`, which `compile()` does not affect (torch 2.13)."""
    return type(module).__module__.startswith("torch.nn.modules.")


def _compile(mode: str, module: torch.nn.Module, note: Note) -> Undo:
    from torch._inductor import config  # Takes a second, which a survey need not.

    # It would draw other random numbers than the program does, so that results could not be compared.
    before, config.fallback_random = config.fallback_random, True
    forward = vars(module).get("forward")
    if is_of_torch(module):
        module.forward = torch.compile(module.forward, mode=mode)
    else:
        module.compile(mode=mode)
    note.count()

    def undo() -> None:
        config.fallback_random = before
        module._compiled_call_impl = None
        vars(module).pop("forward", None)
        if forward is not None:
            module.forward = forward

    return undo


def _capture(module: torch.nn.Module, note: Note) -> Undo:
    return Capture(module, note.count, note.refuse).undo


_CHANGES = {value: partial(_compile, mode) for value, mode in COMPILE_MODES.items()} | {"capture": _capture}


# -- CUDA graphs -------------------------------------------------------------------------------------


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
