"""Steps of the program's optimizers."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import MethodType
from typing import TYPE_CHECKING, Any

from overlapscope.recorder.wrapping import Undo, leave_no_frame

if TYPE_CHECKING:
    from torch.optim import Optimizer


@dataclass(slots=True)
class _Calls:
    """Calls of the wrapper of an optimizer's `step`."""

    under_way: int = 0
    seen: int = 0
    """Number of steps that the hook saw in the calls under way."""


class OptimizerSteps:
    """Calls `stepped(optimizer)` when an optimizer's step has returned, on the thread that made it.

    torch calls its hooks while its range of the step is open, and a profiler's stop would be part of that range. So a
    hook wraps the `step` of each optimizer at its first call. Only that call, and a call that bypasses the wrapper, are
    noted by the hook.
    """

    def __init__(self, stepped: Callable[[Optimizer], None]) -> None:
        """Prepare to watch."""
        self._stepped = stepped
        self._wrapped: weakref.WeakKeyDictionary[Optimizer, _Calls] = weakref.WeakKeyDictionary()
        self._undo = ExitStack()
        self._on = self._in_hook = False

    def start(self) -> Undo:
        """Watch, and return a function that ends this, even from inside `stepped`. Imports torch."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._on = True
        self._undo.callback(register_optimizer_step_post_hook(self._on_step).remove)
        return self._stop

    def _stop(self) -> None:
        self._on = False
        self._wrapped.clear()
        # While torch goes through its hooks, none may be removed.
        if not self._in_hook:
            self._undo.close()

    def _on_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        import torch

        # Anything else would break the graph of a compiled step; such steps do not count.
        if not self._on or torch.compiler.is_compiling():
            return
        calls = self._wrapped.get(optimizer)
        if calls is not None and calls.under_way:
            calls.seen += 1
            return
        if calls is None:
            self._wrap(optimizer)
        self._in_hook = True
        try:
            self._stepped(optimizer)
        finally:
            self._in_hook = False

    def _wrap(self, optimizer: Optimizer) -> None:
        step, own_step = optimizer.step, vars(optimizer).get("step")
        calls = self._wrapped[optimizer] = _Calls()
        kept = weakref.ref(optimizer)

        @functools.wraps(step)
        def wrapped(optimizer: Optimizer, *args: Any, **options: Any) -> Any:
            calls.under_way += 1
            try:
                result = step(*args, **options)
            except BaseException as error:
                leave_no_frame(error)
                raise
            finally:
                calls.under_way -= 1
                seen, calls.seen = calls.seen, 0
            if seen and self._on:
                self._stepped(optimizer)
            elif not self._on:
                self._undo.close()
            return result

        # The bound method refers to the optimizer, which the program may drop before this is undone.
        vars(wrapped)["own"] = own_step
        ours = weakref.ref(wrapped)

        def undo() -> None:
            optimizer, function = kept(), ours()
            if optimizer is None or getattr(vars(optimizer).get("step"), "__func__", None) is not function:
                return
            if (own_step := vars(function)["own"]) is None:
                del optimizer.step
            else:
                optimizer.step = own_step  # type: ignore[method-assign]

        # Schedulers of learning rates wrap a method.
        optimizer.step = MethodType(wrapped, optimizer)  # type: ignore[method-assign]
        self._undo.callback(undo)
