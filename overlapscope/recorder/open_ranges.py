"""Which `record_function`s of the program are open.

When one that was entered under one session of the profiler is left under the next, torch writes to memory that it has
freed, and the process may crash (torch 2.13).
"""

from __future__ import annotations

import gc
import weakref
from typing import Any


class OpenRanges:
    """Those that were open when they were last looked for, as long as they exist."""

    def __init__(self) -> None:
        self._ranges: list[weakref.ref[Any]] = []

    def look(self) -> None:
        """Look for every `record_function` that was entered and still exists, with the open ones some that were left.

        torch keeps no list of them, and to wrap its methods would be in TorchScript's way. Takes 50 ms for 300,000
        objects.
        """
        from torch.autograd.profiler import record_function

        self._ranges = [
            weakref.ref(range)
            for range in gc.get_objects()
            if issubclass(type(range), record_function) and range.record is not None
        ]

    @property
    def are_left(self) -> bool:
        """True if none of them is open any more."""
        return all(range() is None for range in self._ranges)

    def look_whether_new(self) -> bool:
        """`look`; whether none that is open now was so before."""
        before = {range() for range in self._ranges}
        self.look()
        return all(range() not in before for range in self._ranges)
