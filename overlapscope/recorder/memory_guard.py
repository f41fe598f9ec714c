"""Ends a recording before it takes all memory.

The profiler keeps every event in memory and tells nobody how many there are. What can be seen is the memory of the
whole process, so that is what is watched.

Measured with ops that do next to nothing, on the CPU (torch 2.13) and an H200 (torch 2.11), over all options: an event
of the file (an op is one to five of them) takes 110 to 290 bytes while it is recorded, with shapes up to 510; a byte of
that becomes 0.9 to 2.5 bytes of unpacked trace. To sort the events when it stops, the profiler takes six to eleven
times what they took until then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

_STATUS = Path("/proc/self/status")
_BETWEEN_SAMPLES_S = 0.5
_FASTEST_BYTES_PER_S = 500_000_000
"""More than the profiler takes in a second (measured: at most 421 MB, with everything on and ops that do next to
nothing). What the process grows beyond that, as when it loads a model, is its own."""


class MemoryGuard:
    """Watches how much memory the profiler may have taken since the guard was made, on a thread of its own.

    Once that is over the limit it says so in `exceeded_bytes`, calls `on_exceeded` on that thread, and its work is
    done. On systems without /proc it does nothing.
    """

    def __init__(self, limit_bytes: int, on_exceeded: Callable[[], None]) -> None:
        self.exceeded_bytes: int | None = None
        """What was seen; None while it is within the limit."""
        self._limit_bytes = limit_bytes
        self._on_exceeded = on_exceeded
        self._stopped = threading.Event()
        if anonymous_bytes() is not None:
            threading.Thread(target=self._watch, name="overlapscope memory guard", daemon=True).start()

    def stop(self) -> None:
        """Stop watching. It does not wait for the thread, which may be in `on_exceeded`."""
        self._stopped.set()

    def _watch(self) -> None:
        before, at = anonymous_bytes() or 0, time.monotonic()
        taken = 0
        while not self._stopped.wait(_BETWEEN_SAMPLES_S):
            now = time.monotonic()
            taken = bound(taken, (anonymous_bytes() or 0) - before, now - at)
            at = now
            if taken > self._limit_bytes:
                self.exceeded_bytes = taken
                self._on_exceeded()
                return


def bound(taken: int, grown: int, elapsed_s: float) -> int:
    """The most that the profiler can have taken, in bytes, given the most it had `elapsed_s` ago.

    It takes no more than the whole process has grown, gives nothing back while it runs, and is only so fast.
    """
    return max(0, min(grown, taken + int(elapsed_s * _FASTEST_BYTES_PER_S)))


def anonymous_bytes() -> int | None:
    """Resident memory of this process that is no file's, in bytes; None where the system does not say."""
    try:
        status = _STATUS.read_bytes()
    except OSError:
        return None
    for line in status.splitlines():
        if line.startswith(b"RssAnon:"):
            return int(line.split()[1]) * 1024
    return None
