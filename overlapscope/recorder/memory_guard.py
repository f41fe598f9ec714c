"""A guard that ends a recording before it takes all memory.

The profiler keeps every event in memory and does not expose the count. But malloc reports how much of its memory is in
use: it contains every event, and the program's own pieces of up to 32 MB. Tensors among the latter are found and
subtracted; the program's other pieces count as the profiler's.

Measured with tiny ops, on the CPU (torch 2.13) and an H200 (torch 2.11), over all options: an event of the file (an op
has one to five) takes 110 to 290 bytes while it is recorded, and with shapes up to 510. Each of these bytes becomes 0.9
to 2.5 bytes of uncompressed trace. When the profiler stops, sorting the events takes six to eleven times their memory.
With stacks, a Python call takes 23 bytes while it is recorded, and 1630 when the profiler stops, 70 times as much. The
limit is an eighth then, so that the stop takes no more memory than without stacks.
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

from overlapscope.recorder.main_thread import threads_without_signals

_MAPS = Path("/proc/self/maps")
_BETWEEN_SAMPLES_S = 0.5
_FASTEST_BYTES_PER_S = 500_000_000
"""Upper bound on the profiler's memory per second (measured: up to 421 MB, with all options and tiny ops).

Any faster growth, as when the program loads a model, is the program's own.
"""
_STACKS_MORE = 8


class MemoryGuard:
    """Watches on a thread how much memory the profiler may have taken since the guard was made.

    Whenever this seems to exceed the limit, it calls `on_exceeded` on that thread. `exceeded_bytes` on the program's
    thread then gives the exact answer. If the system does not report memory, the guard does nothing.
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
            with threads_without_signals():
                threading.Thread(target=self._watch, name="overlapscope memory guard", daemon=True).start()

    def stop(self) -> None:
        """Stop watching, without waiting for the thread, which may be in `on_exceeded`."""
        self._stopped.set()

    def allow(self, limit_bytes: int) -> None:
        """Change the limit."""
        self._limit_bytes = limit_bytes // self._share

    @property
    def exceeded_bytes(self) -> int | None:
        """Upper bound on the profiler's memory; None within the limit. Call this on the program's thread."""
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
    """Return an upper bound on the profiler's memory in bytes, given that of `elapsed_s` ago.

    The profiler takes no more than the whole process has grown, frees nothing while it runs, and has a maximum speed.
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
    """Return the memory in use that malloc hands out from its heap, in bytes; None if the system does not report it.

    glibc reports it since 2.33. It includes all memory of the profiler. It excludes memory that malloc maps separately
    (pieces over 128 KB at first, and over 32 MB always), Python's objects, and pinned memory.
    """
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        return None
    mallinfo2.restype = _Mallinfo2
    return int(mallinfo2().uordblks)


def heap_tensors_bytes() -> int:
    """Return the heap memory in bytes of the CPU tensors that Python knows of, as far as they certainly are there."""
    import torch

    heap = heap_addresses()
    storages: dict[int, int] = {}
    objects = gc.get_objects()
    # There is no loop in Python over all objects, since a recording with stacks would contain each call.
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, torch.Tensor)}
    for tensor in compress(objects, map(kinds.__contains__, map(type, objects))):
        with suppress(Exception):  # Some have no storage.
            storage = tensor.untyped_storage()
            if storage.device.type == "cpu" and storage.data_ptr() in heap:
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def heap_addresses() -> range:
    """Return the addresses of the main thread's heap; an empty range if the system does not report them."""
    try:
        maps = _MAPS.read_text()
    except OSError:
        return range(0)
    for line in maps.splitlines():
        if line.endswith("[heap]"):
            begin, _, end = line.partition(" ")[0].partition("-")
            return range(int(begin, 16), int(end, 16))
    return range(0)
