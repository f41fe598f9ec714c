"""Watch for compilations by torch, and for its recordings of CUDA graphs, which make a step long for once."""

from __future__ import annotations

import sys
from typing import Any


class Compiling:
    """Notices that torch compiles, from the import of its compiler on, which `torch.compile` and optimizers cause."""

    def __init__(self) -> None:
        self._happened = False

    def since(self) -> bool:
        """Return whether torch has compiled anything since the last call."""
        happened, self._happened = self._happened, False
        handler = _handler()
        # `torch.compiler.reset` removes it.
        if handler is not None and self._begun not in handler.start_callbacks:
            handler.register_start_callback(self._begun)
        return happened

    def end(self) -> None:
        """Stop noticing."""
        handler = _handler()
        if handler is not None and self._begun in handler.start_callbacks:
            handler.remove_start_callback(self._begun)

    def _begun(self, *_: Any) -> None:
        self._happened = True


def _handler() -> Any:
    """Return torch's object that calls back at compilations; None until torch's compiler is imported."""
    return getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
