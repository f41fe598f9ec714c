"""Which `record_function`s of the program are open.

When one that was entered under one session of the profiler is left under the next, torch writes to memory that it has
freed, and the process may crash (torch 2.13).
"""

from __future__ import annotations

import gc
import weakref
from typing import Any


def open_ranges() -> list[weakref.ref[Any]]:
    """Every `record_function` that was entered and still exists, so with the open ones some that were left.

    torch keeps no list of them, and to wrap its methods would be in TorchScript's way. Takes 50 ms for 300,000
    objects.
    """
    from torch.autograd.profiler import record_function

    return [
        weakref.ref(found)
        for found in gc.get_objects()
        if issubclass(type(found), record_function) and found.record is not None
    ]
