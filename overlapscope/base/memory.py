"""Memory of this process that nothing uses any more."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress


def give_back() -> None:
    """Hand freed memory to the system, where the C library can be told to: glibc keeps what lies between pieces in use.

    Of a trace of 1 GB, reading and analysis leave it 200 MB. Takes some milliseconds.
    """
    if sys.platform == "linux":
        # Other C libraries (musl) know no such function.
        with suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
