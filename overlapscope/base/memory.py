"""Memory that this process no longer needs or can still take, and the cores that it may use."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Final

from overlapscope.base.words import size
from overlapscope.errors import UnreadableTrace

_BYTES_OF_ROW: Final = 400
"""Memory that an event takes at most while its trace is analyzed, as measured with traces of short kernels only."""
_UNSUSPICIOUS_BYTES: Final = 1 << 30
_lock = Lock()
_blocks: list[tuple[int, int]] = []
"""The system's limits on this process without any block of `at_most`, once for each block that has not ended."""


def release_free_memory() -> None:
    """Return freed memory to the system. glibc keeps free memory that lies between pieces in use.

    After reading and analyzing a trace of 1 GB, this frees 200 MB in some milliseconds.
    """
    if sys.platform == "linux":
        # Other C libraries (musl) lack this function.
        with suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def at_most(more_bytes: int) -> Iterator[None]:
    """Have allocations fail with MemoryError if the process takes more memory than this before the block ends.

    Several threads may be in such a block. Each sets the limit anew, and it lasts until all have left. Systems other
    than Linux set no limit.
    """
    if sys.platform != "linux":
        yield
        return
    import resource

    with _lock:
        before = _blocks[0] if _blocks else resource.getrlimit(resource.RLIMIT_DATA)
        taken = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
        limits = [limit for limit in (*before, taken + more_bytes) if limit != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_DATA, (min(limits), before[1]))
        _blocks.append(before)
    try:
        yield
    finally:
        with _lock:
            _blocks.pop()
            if not _blocks:
                resource.setrlimit(resource.RLIMIT_DATA, before)


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


def check_room(source: str, rows: int) -> None:
    """Refuse a trace of so many events, if the system would end this process, which could then give no reason.

    Raises:
        UnreadableTrace: Its analysis needs more memory than is free.
    """
    needed = _BYTES_OF_ROW * rows
    free = free_bytes() if needed > _UNSUSPICIOUS_BYTES else None
    if free is not None and needed > free:
        raise UnreadableTrace(
            source,
            f"has at least {rows:,} events, whose analysis needs about {size(needed)} of memory, but only "
            f"{size(max(free, 0))} are free; record fewer steps, or pass fewer traces at once.",
        )


def _numbers(path: Path) -> dict[str, int]:
    """Return the first number of each line of a file of the system, by the word before it."""
    return {name: int(number) for name, number, *_ in map(str.split, path.read_text().splitlines())}


# -- Cores -------------------------------------------------------------------------------------------

_MAX_CORES: Final = 8


def cores() -> int:
    """Return the number of cores that this process may use."""
    if sys.platform != "linux":
        return os.cpu_count() or 1
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def usable_cores() -> int:
    """Return the number of cores for threads that share work on one trace, up to _MAX_CORES."""
    return min(cores(), _MAX_CORES) if sys.platform == "linux" else 1
