"""Unused memory of this process."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress


def give_back() -> None:
    """Return freed memory to the system. glibc keeps free memory that lies between pieces in use.

    After reading and analyzing a trace of 1 GB, this frees 200 MB in some milliseconds.
    """
    if sys.platform == "linux":
        # Other C libraries (musl) lack this function.
        with suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
