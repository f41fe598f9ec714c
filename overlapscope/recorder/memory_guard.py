"""Ends a recording before it takes all memory.

The profiler keeps every event in memory and tells nobody how many there are. What can be seen is how much of malloc's
memory is in use: every event is there, and so are the program's own pieces of up to 32 MB. Of these the tensors are
found and left out; what else the program takes that way counts as if the profiler had taken it.

Measured with ops that do next to nothing, on the CPU (torch 2.13) and an H200 (torch 2.11), over all options: an event
of the file (an op is one to five of them) takes 110 to 290 bytes while it is recorded, with shapes up to 510; a byte of
that becomes 0.9 to 2.5 bytes of unpacked trace. To sort the events when it stops, the profiler takes six to eleven
times what they took until then. With stacks a Python call takes 23 bytes while it is recorded, and 1630 when the
profiler stops, 70 times as much: so the limit is an eighth then, which keeps the end within what it takes without.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import compress
from pathlib import Path

_MAPS = Path("/proc/self/maps")
_BETWEEN_SAMPLES_S = 0.5
_FASTEST_BYTES_PER_S = 500_000_000
"""More than the profiler takes in a second (measured: at most 421 MB, with everything on and ops that do next to
nothing). What the process grows beyond that, as when it loads a model, is its own."""
_STACKS_MORE = 8


class MemoryGuard:
    """Watches how much memory the profiler may have taken since the guard was made, on a thread of its own.

    Each time that this seems to be over the limit it calls `on_exceeded` on that thread, and `exceeded_bytes` should be
    asked on the program's. Where the system does not say what is taken it does nothing.
    """

    def __init__(self, limit_bytes: int, on_exceeded: Callable[[], None], *, stacks: bool) -> None:
        self._share = _STACKS_MORE if stacks else 1
        self.allow(limit_bytes)
        self._on_exceeded = on_exceeded
        self._stopped = threading.Event()
        self._tensors_before = self._tensors = heap_tensors_bytes()
        self._taken = 0
        self._before, self._at = taken_bytes() or 0, time.monotonic()
        if taken_bytes() is not None:
            threading.Thread(target=self._watch, name="overlapscope memory guard", daemon=True).start()

    def stop(self) -> None:
        """Stop watching. It does not wait for the thread, which may be in `on_exceeded`."""
        self._stopped.set()

    def allow(self, limit_bytes: int) -> None:
        """Change the limit."""
        self._limit_bytes = limit_bytes // self._share

    @property
    def exceeded_bytes(self) -> int | None:
        """What the profiler has taken at most; None while that is within the limit. For the program's own thread."""
        if self._taken > self._limit_bytes:
            self._tensors = heap_tensors_bytes()
            self._look()
        return self._taken if self._taken > self._limit_bytes else None

    def _look(self) -> None:
        now = time.monotonic()
        grown = (taken_bytes() or 0) - self._before - max(0, self._tensors - self._tensors_before)
        self._taken, self._at = bound(self._taken, grown, now - self._at), now

    def _watch(self) -> None:
        while not self._stopped.wait(_BETWEEN_SAMPLES_S):
            self._look()
            if self._taken > self._limit_bytes:
                self._on_exceeded()


def bound(taken: int, grown: int, elapsed_s: float) -> int:
    """The most that the profiler can have taken, in bytes, given the most it had `elapsed_s` ago.

    It takes no more than the whole process has grown, gives nothing back while it runs, and is only so fast.
    """
    return max(0, min(grown, taken + int(elapsed_s * _FASTEST_BYTES_PER_S)))


class _Mallinfo2(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def taken_bytes() -> int | None:
    """What is in use of the memory that malloc gives out in pieces, in bytes; None where the system does not say.

    It does so with glibc 2.33 and later. All that the profiler keeps is in there. What malloc maps for itself, as it
    does with pieces over 128 KB at first and over 32 MB always, is not, nor are Python's objects and pinned memory.
    """
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        return None
    mallinfo2.restype = _Mallinfo2
    return int(mallinfo2().uordblks)


def heap_tensors_bytes() -> int:
    """What is in there of tensors on the CPU that Python knows of, in bytes: only of those that can be told to be."""
    import torch

    heap = _heap()
    storages: dict[int, int] = {}
    objects = gc.get_objects()
    # No loop in Python over all of them: where stacks are recorded, each call would be, too.
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, torch.Tensor)}
    for tensor in compress(objects, map(kinds.__contains__, map(type, objects))):
        with suppress(Exception):  # Some have no storage.
            storage = tensor.untyped_storage()
            if storage.device.type == "cpu" and storage.data_ptr() in heap:
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _heap() -> range:
    """Where the main thread's malloc gives out pieces. Empty where the system does not say."""
    try:
        maps = _MAPS.read_text()
    except OSError:
        return range(0)
    for line in maps.splitlines():
        if line.endswith("[heap]"):
            begin, _, end = line.partition(" ")[0].partition("-")
            return range(int(begin, 16), int(end, 16))
    return range(0)
