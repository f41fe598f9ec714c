"""Steps of an optimizer, for programs that mark no steps."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.optim import Optimizer


class OptimizerSteps:
    """Calls `stepped` after each step of the program's first optimizer, between `start` and `stop`.

    If a program has several optimizers, as a GAN does, only the first to step counts as long as it exists: each of them
    steps once in a step of the program.
    """

    def __init__(self, stepped: Callable[[], None], stepped_elsewhere: Callable[[], None]) -> None:
        """Prepare to count steps. `stepped_elsewhere()` is called after steps on other threads."""
        self._stepped = stepped
        self._stepped_elsewhere = stepped_elsewhere
        self._thread = -1
        self._first: weakref.ref[Optimizer] | None = None
        self._hook: Any = None
        self._resting = False

    def start(self) -> None:
        """Count the steps of the calling thread. Imports torch."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._thread = threading.get_ident()
        self._hook = register_optimizer_step_post_hook(self._on_step)

    def stop(self) -> None:
        """Stop counting."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def rest(self) -> None:
        """Stop counting from inside `stepped`, where torch iterates over its hooks and none may be removed."""
        self._resting = True

    def _on_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        if self._resting:
            return
        import torch

        if torch.compiler.is_compiling():
            # The rest would break the graph of a compiled step, so such steps do not count.
            return
        if threading.get_ident() != self._thread:
            self._stepped_elsewhere()
            return
        first = None if self._first is None else self._first()
        if first is None:
            first, self._first = optimizer, weakref.ref(optimizer)
        if first is optimizer:
            self._stepped()
