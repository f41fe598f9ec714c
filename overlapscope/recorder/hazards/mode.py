"""Sees every operator that the program runs on this thread and, in backward passes, on the autograd engine's."""

from __future__ import annotations

import sys
from typing import Any

from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from overlapscope.recorder.hazards import operators
from overlapscope.recorder.hazards.journal import Journal
from overlapscope.recorder.hazards.launches import Launches


class HazardMode(TorchDispatchMode):
    """Passes every operator on unchanged, and tells `Launches` of it."""

    # flex_attention and its like are passed on, instead of refused.
    supports_higher_order_operators = True

    def __init__(self, launches: Launches, journal: Journal) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._launches = launches
        self._journal = journal

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Compiled functions stay compiled: otherwise torch.compile falls back to eager, or refuses."""
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operator, with the books kept before and behind it."""
        kwargs = kwargs or {}
        if not self._journal.is_open or not isinstance(func, OpOverload):
            return func(*args, **kwargs)
        if operators.dispatches_itself(types) and _get_current_dispatch_mode() is None:
            # As without this mode: the tensor subclass runs operators on plain tensors, and they come by here. Where
            # there is another mode, such as FakeTensorMode, the operator may be that one's to run.
            return NotImplemented
        call = self._journal.attempt(self._launches.begin, func, args, kwargs)
        result = func(*args, **kwargs)
        if call is not None:
            self._journal.attempt(self._launches.end, call, result, sys._getframe(1))
        return result

    def enter(self) -> None:
        """Put the mode on, for this thread."""
        self.__enter__()  # type: ignore[no-untyped-call]

    def leave(self) -> None:
        """Take it off again; where the program has put others on top of it, it stays, and passes everything on."""
        if _get_current_dispatch_mode() is self:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
