"""Memory that this process no longer needs, or can still take."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from pathlib import Path


def give_back() -> None:
    """Return freed memory to the system. glibc keeps free memory that lies between pieces in use.

    After reading and analyzing a trace of 1 GB, this frees 200 MB in some milliseconds.
    """
    if sys.platform == "linux":
        # Other C libraries (musl) lack this function.
        with suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def free_bytes() -> int | None:
    """Return the memory that the machine, or this process's container, can still give; None where unknown."""
    free = []
    with suppress(OSError, ValueError, KeyError):
        free.append(_numbers(Path("/proc/meminfo"))["MemAvailable:"] << 10)
    folder = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError, KeyError):
        limit, used = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
        # The system drops cached files when it needs their memory.
        stated = _numbers(folder / "memory.stat")
        free.append(limit - used + stated["active_file"] + stated["inactive_file"])
    return min(free, default=None)


def _numbers(path: Path) -> dict[str, int]:
    """Return the first number of each line of a file of the system, by the word before it."""
    return {name: int(number) for name, number, *_ in map(str.split, path.read_text().splitlines())}
