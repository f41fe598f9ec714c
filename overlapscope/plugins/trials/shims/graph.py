"""Compiles the outermost modules, or launches their kernels as CUDA graphs."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from types import FrameType

import torch

from overlapscope.plugins.trials.capture import Capture
from overlapscope.plugins.trials.changes import COMPILE_MODES
from overlapscope.plugins.trials.module_calls import ModuleCalls
from overlapscope.plugins.trials.shims import Note
from overlapscope.recorder.wrapping import Undo


def start(value: str, note: Note) -> Undo:
    """Observe in the second step which modules are called, and change them in place from the third.

    `compile` has torch compile them with CUDA graphs, `fuse` without, and `capture` captures their passes.

    Returns:
        A function that ends this.
    """
    return _Graph(_CHANGES[value], note).undo


class _Graph:
    def __init__(self, change: Callable[[torch.nn.Module, Note], Undo], note: Note) -> None:
        self._change, self._note = change, note
        self._calls: ModuleCalls | None = None
        self._called: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._steps = 0
        self._undo: list[Undo] = []
        note.notes.after_step.append(self._step)

    def undo(self) -> None:
        if self._calls is not None:
            self._calls.end()
        self._note.notes.after_step.remove(self._step)
        for undo in self._undo:
            undo()

    def _step(self) -> None:
        self._steps += 1
        if self._steps == 1:
            self._calls = ModuleCalls(self._on_call)
        elif self._calls is not None:
            self._calls.end()
            self._calls = None
            for module in self._called:
                self._make(module)

    def _on_call(self, module: torch.nn.Module, frame: FrameType) -> None:
        self._called.add(module)

    def _make(self, module: torch.nn.Module) -> None:
        if is_compiled(module):
            self._note.refuse("The program compiles its module itself.")
        elif not all(parameter.is_cuda for parameter in module.parameters()):
            self._note.refuse("The module's parameters are not on a GPU.")
        else:
            try:
                self._undo.append(self._change(module, self._note))
            except Exception as error:
                self._note.refuse(f"It could not be made: {type(error).__name__}: {error}.")


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
