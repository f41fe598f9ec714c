"""Open `record_function` ranges of the program.

If a range is entered under one session of the profiler and left under the next, torch writes to memory that it has
freed, and the process may crash (torch 2.13).
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

from overlapscope.base.marks import STEP


class OpenRanges:
    """Ranges that were open at the last `look` and still exist."""

    def __init__(self) -> None:
        self._ranges: list[weakref.ref[Any]] = []

    def look(self) -> None:
        """Find every `record_function` that was entered and still exists, including some that were left already.

        torch keeps no list of them, and TorchScript does not allow wrapping its methods. Takes 50 ms for 300,000
        objects.
        """
        from torch.autograd.profiler import record_function

        self._ranges = [
            weakref.ref(range)
            for range in gc.get_objects()
            # The steps that a session has marked end with it.
            if issubclass(type(range), record_function)
            and getattr(range, "record", None) is not None
            and not range.name.startswith(STEP)
        ]

    @property
    def are_left(self) -> bool:
        """True if none of these ranges is open any more."""
        return all(range() is None for range in self._ranges)

    def look_whether_new(self) -> bool:
        """Call `look`, and return whether no range that is open now was open before."""
        before = {range() for range in self._ranges}
        self.look()
        return all(range() not in before for range in self._ranges)
