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
    """Calls of an optimizer's `step`."""

    optimizer: weakref.ref[Optimizer]
    under_way: int = 0
    seen: int = 0
    """Number of steps that the hook saw in the calls under way."""
    undo: Undo | None = None
    """Restores a `step` of the optimizer's own; None if that is not wrapped."""


class OptimizerSteps:
    """Calls `stepped(optimizer)` when an optimizer's step has returned, on the thread that made it.

    torch calls its hooks while its range of the step is open, and a profiler's stop would be part of that range. So at
    the first call a hook wraps `step`, in the optimizer's class, or in the optimizer if it has one of its own, as a
    scheduler of learning rates gives it. Only that call, and a call that bypasses the wrapper, are noted by the hook.

    Neither keeps an optimizer, and with it the memory of the model, for longer than the program does.
    """

    def __init__(self, stepped: Callable[[Optimizer], None]) -> None:
        """Prepare to watch."""
        self._stepped = stepped
        self._calls: dict[int, _Calls] = {}
        """By the optimizer's id, which a later one may have. A weak dictionary would call Python when an optimizer is
        freed, and there the exception of a signal's handler, such as that of Ctrl-C, is lost."""
        self._undo = ExitStack()
        self._on = self._in_hook = False

    def start(self) -> Undo:
        """Watch, and return a function that ends this, even from inside `stepped`. Imports torch."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._on = True
        self._undo.callback(register_optimizer_step_post_hook(self._on_step).remove)
        self._undo.callback(self._forget)
        return self._stop

    def _stop(self) -> None:
        self._on = False
        # While torch goes through its hooks, none may be removed.
        if not self._in_hook:
            self._undo.close()

    def _forget(self) -> None:
        for calls in list(self._calls.values()):
            if calls.undo is not None:
                calls.undo()
        self._calls.clear()

    def _on_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        import torch

        # Anything else would break the graph of a compiled step; such steps do not count.
        if not self._on or torch.compiler.is_compiling():
            return
        calls = self._calls_of(optimizer)
        if calls.under_way:
            calls.seen += 1
            return
        if "step" in vars(optimizer):
            if calls.undo is None:
                calls.undo = _wrap_own(optimizer, self._call)
        elif getattr(type(optimizer).step, "watch", None) is not self:
            self._wrap_class(type(optimizer))
        self._in_hook = True
        try:
            self._stepped(optimizer)
        finally:
            self._in_hook = False

    def _calls_of(self, optimizer: Optimizer) -> _Calls:
        calls = self._calls.get(id(optimizer))
        if calls is None or calls.optimizer() is not optimizer:
            calls = self._calls[id(optimizer)] = _Calls(weakref.ref(optimizer))
        return calls

    def _wrap_class(self, kind: type[Optimizer]) -> None:
        step, own_step = kind.step, vars(kind).get("step")

        @functools.wraps(step)
        def wrapped(optimizer: Optimizer, *args: Any, **options: Any) -> Any:
            try:
                return self._call(optimizer, functools.partial(step, optimizer), args, options)
            except BaseException as error:
                leave_no_frame(error)
                raise

        vars(wrapped)["watch"] = self
        # A class may be made for each training, and refer to its model.
        self._undo.callback(_restoring(kind, wrapped, own_step))
        kind.step = wrapped  # type: ignore[method-assign, assignment]

    def _call(self, optimizer: Optimizer, step: Callable[..., Any], args: Any, options: Any) -> Any:
        if not self._on:
            self._undo.close()
            return step(*args, **options)
        calls = self._calls_of(optimizer)
        calls.under_way += 1
        try:
            result = step(*args, **options)
        finally:
            calls.under_way -= 1
            seen = calls.seen
            if not calls.under_way:
                calls.seen = 0
        if seen and not calls.under_way and self._on:
            self._stepped(optimizer)
        return result


def _wrap_own(optimizer: Optimizer, call: Callable[[Optimizer, Callable[..., Any], Any, Any], Any]) -> Undo:
    """Wrap a `step` that an optimizer itself has in `call(optimizer, step, arguments, options)`.

    Returns:
        A function that restores it, which doesn't keep the optimizer.
    """
    kept, step = weakref.ref(optimizer), optimizer.step

    @functools.wraps(step)
    def wrapped(known: Any, *args: Any, **options: Any) -> Any:
        optimizer = kept()
        try:
            return call(known if optimizer is None else optimizer, step, args, options)
        except BaseException as error:
            leave_no_frame(error)
            raise

    # Schedulers of learning rates wrap a method. A method of the optimizer itself would keep it, and the model's
    # memory, until Python collects garbage.
    optimizer.step = MethodType(wrapped, weakref.proxy(optimizer))  # type: ignore[method-assign]
    return _restoring(optimizer, wrapped, step)


def _restoring(owner: Any, wrapped: Callable[..., Any], own_step: Any) -> Undo:
    """Return a function that gives an owner its own `step` again, unless `wrapped` was replaced. It keeps neither.

    Args:
        owner: A class, or an optimizer.
        wrapped: The function in the place of `step`.
        own_step: What was there; None if `step` is inherited. It may refer to the owner, so `wrapped` holds it.
    """
    vars(wrapped)["own"] = own_step
    kept, ours = weakref.ref(owner), weakref.ref(wrapped)

    def undo() -> None:
        owner, function = kept(), ours()
        if owner is None or function is None:
            return
        step = vars(owner).get("step")
        if getattr(step, "__func__", step) is not function:
            return
        if (own_step := vars(function)["own"]) is None:
            del owner.step
        else:
            owner.step = own_step

    return undo
