"""When host memory that copies use goes away.

Memory that torch pinned goes back to its caching allocator, which hands it out again only when the copies that used it
are over: it records an event on each of their streams (`CachingHostAllocatorImpl::free` in
ATen/core/CachingHostAllocator.h). Memory that was pinned where it lay, with cudaHostRegister, has nobody who does that.
"""

from __future__ import annotations

import sys
import weakref
from functools import partial
from typing import Any

import torch

from overlapscope.recorder.hazards.bookkeeping import Bookkeeping
from overlapscope.recorder.hazards.journal import Journal
from overlapscope.recorder.hazards.lines import UserCode
from overlapscope.recorder.hazards.memory import Region, interval


class HostMemory:
    """Watches storages, arrays and registrations, and tells the books what is gone."""

    def __init__(self, books: Bookkeeping, journal: Journal, user_code: UserCode) -> None:
        self._books = books
        self._journal = journal
        self._user_code = user_code
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._arrays: dict[int, weakref.ref[Any]] = {}
        self._registered: dict[int, int] = {}

    def watch(self, tensor: torch.Tensor) -> None:
        """A copy uses this pinned tensor: notice when its storage dies."""
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        known = self._storages.get(address)
        if known is None or known() is not storage:
            region = interval(address, storage.nbytes())
            # What torch allocates itself can be resized, unless torch pinned it; what it borrows cannot.
            died = partial(self._storage_died, region, storage.resizable())
            self._storages[address] = weakref.ref(storage, died)

    def watch_array(self, array: Any) -> None:
        """A tensor borrows the memory of this NumPy array: notice when the array that owns it dies."""
        import numpy as np

        while isinstance(array.base, np.ndarray):
            array = array.base
        if array.flags.owndata and array.nbytes and id(array) not in self._arrays:
            died = partial(self._array_died, id(array), interval(array.ctypes.data, array.nbytes))
            self._arrays[id(array)] = weakref.ref(array, died)

    def registered(self, address: int, size_bytes: int) -> None:
        """Memory was pinned where it lies."""
        self._registered[address] = size_bytes

    def unregistered(self, address: int) -> None:
        """It is about to be pinned no longer."""
        self._unpinned(interval(address, self._registered.pop(address, 1)))

    def close(self) -> None:
        """Notice nothing any more."""
        self._storages.clear()
        self._arrays.clear()

    def _storage_died(self, region: Region, owned: bool, storage: weakref.ref[torch.UntypedStorage]) -> None:
        if self._storages.get(region.start) is storage:
            del self._storages[region.start]
        if not self._is_registered(region):
            self._journal.note(partial(self._books.host_freed, region))
        elif owned:
            self._unpinned(region)

    def _array_died(self, key: int, region: Region, array: weakref.ref[Any]) -> None:
        self._arrays.pop(key, None)
        self._unpinned(region)

    def _unpinned(self, region: Region) -> None:
        line = self._user_code.line(sys._getframe())
        self._journal.note(partial(self._books.host_unpinned, region, line))

    def _is_registered(self, region: Region) -> bool:
        return any(
            address < region.end and region.start < address + size for address, size in list(self._registered.items())
        )
