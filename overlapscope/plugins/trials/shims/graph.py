"""Compiles the outermost modules."""

from __future__ import annotations

import weakref
from contextlib import ExitStack

import torch

from overlapscope.plugins.trials.changes import COMPILE_MODES
from overlapscope.plugins.trials.observed import ModuleCalls
from overlapscope.plugins.trials.shims import Note
from overlapscope.recorder.wrapping import Undo


def start(value: str, note: Note) -> Undo:
    """Observe in the second step which modules are called, and compile them in place from the third.

    `compile` has torch use CUDA graphs, `fuse` doesn't.

    Returns:
        A function that ends this.
    """
    mode, undo = COMPILE_MODES[value], ExitStack()
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
                undo.callback(_compile(mode, module, note))
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
