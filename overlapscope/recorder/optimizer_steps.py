"""Where a program marks no steps, its optimizer's do."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch.optim import Optimizer


class OptimizerSteps:
    """Calls `stepped` after each step of the program's first optimizer, between `start` and `stop`.

    Of several optimizers, as a GAN has, only the one that stepped first counts, as long as it lives: each of them
    steps once in a step of the program.
    """

    def __init__(self, stepped: Callable[[], None], stepped_elsewhere: Callable[[], None]) -> None:
        """`stepped_elsewhere()` is called on any other thread, after its steps."""
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
        """Count no more."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def rest(self) -> None:
        """Count no more, called from `stepped`: there torch goes through its hooks, of which none may be removed."""
        self._resting = True

    def _on_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        if self._resting:
            return
        import torch

        if torch.compiler.is_compiling():
            # What follows would break the graph of a compiled step; such steps do not count.
            return
        if threading.get_ident() != self._thread:
            self._stepped_elsewhere()
            return
        first = None if self._first is None else self._first()
        if first is None:
            first, self._first = optimizer, weakref.ref(optimizer)
        if first is optimizer:
            self._stepped()
