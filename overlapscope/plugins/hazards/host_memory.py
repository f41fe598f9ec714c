"""Host memory that copies use: when it is freed, and when the program reads it without an operator.

Memory that torch pinned returns to its caching allocator, which hands it out again only after the copies that used it:
it records an event on each of their streams (`CachingHostAllocatorImpl::free` in ATen/core/CachingHostAllocator.h).
Memory that was pinned in place, with cudaHostRegister, has no such protection.

Methods that read memory or pin it are wrapped. A TorchFunctionMode would see these calls, too, but also every other
call and attribute of a tensor, and torch takes slower paths under such a mode, which would distort the measurement.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import FrameType
from typing import Any

import torch

from overlapscope.plugins.hazards.bookkeeping import Bookkeeping, Journal, Region, interval
from overlapscope.plugins.hazards.operators import tensors, touch
from overlapscope.recorder.program_lines import CodeLine
from overlapscope.recorder.wrapping import around, before

_READERS = ("numpy", "tolist", "__dlpack__", "__reduce_ex__")
"""Methods of a tensor that read its memory, at once or through their results. `__array__` calls `numpy`; pickle and
torch.save call `__reduce_ex__`."""


class HostMemory:
    """Watches storages, arrays and registrations, and enters reads and frees into the books."""

    def __init__(self, books: Bookkeeping, journal: Journal, line: Callable[[FrameType], CodeLine]) -> None:
        """Prepare to watch. `line(frame)` returns the program's line that a frame comes from."""
        self._books = books
        self._journal = journal
        self._line = line
        self._storages: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._arrays: dict[int, weakref.ref[Any]] = {}
        self._registered: dict[int, int] = {}
        self._undo = ExitStack()

    def start(self) -> None:
        """Wrap the methods."""
        for name in _READERS:
            self._undo.callback(before(torch.Tensor, name, self._reads))
        self._undo.callback(around(torch, "from_numpy", self._from_numpy))
        if runtime := getattr(torch._C, "_cudart", None):
            self._undo.callback(around(runtime, "cudaHostRegister", self._register))
            self._undo.callback(before(runtime, "cudaHostUnregister", self._unregister))

    def stop(self) -> None:
        """Unwrap the methods, and stop watching."""
        self._undo.close()
        self._storages.clear()
        self._arrays.clear()

    def watch(self, tensor: torch.Tensor) -> None:
        """Watch a pinned tensor that a copy uses, to notice when its storage is freed."""
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        watched = self._storages.get(address)
        if watched is None or watched() is not storage:
            region = interval(address, storage.nbytes())
            # Memory that torch allocates can be resized, unless torch pinned it; memory that it borrows cannot.
            died = partial(self._storage_died, region, storage.resizable())
            self._storages[address] = weakref.ref(storage, died)

    def watch_array(self, array: Any) -> None:
        """Watch a NumPy array whose memory a tensor borrows, to notice when the array that owns it is freed."""
        import numpy as np

        while isinstance(array.base, np.ndarray):
            array = array.base
        if array.flags.owndata and array.nbytes and id(array) not in self._arrays:
            died = partial(self._array_died, id(array), interval(array.ctypes.data, array.nbytes))
            self._arrays[id(array)] = weakref.ref(array, died)

    def registered(self, address: int, size_bytes: int) -> None:
        """Note that memory was pinned in place."""
        self._registered[address] = size_bytes

    def unregistered(self, address: int) -> None:
        """Note that memory is about to be unpinned."""
        self._unpinned(interval(address, self._registered.pop(address, 1)))

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
        line = self._line(sys._getframe())
        self._journal.note(partial(self._books.host_unpinned, region, line))

    def _is_registered(self, region: Region) -> bool:
        return any(
            address < region.end and region.start < address + size for address, size in list(self._registered.items())
        )

    # -- Wrappers of the program's calls ---------------------------------------------------------------

    def _reads(self, tensor: torch.Tensor, *_: Any, **__: Any) -> None:
        if self._books.copies:
            self._journal.attempt(self._is_read, tensor)

    def _is_read(self, tensor: torch.Tensor) -> None:
        for plain in tensors(tensor):
            memory = touch(plain) if plain.is_cpu else None
            if memory is not None:
                line = self._line(sys._getframe())
                self._journal.note(partial(self._books.host_accessed_now, memory.region, line, write=False))
                self._journal.write_up()

    def _from_numpy(self, from_numpy: Callable[..., torch.Tensor], array: Any) -> torch.Tensor:
        tensor = from_numpy(array)
        self._journal.attempt(self.watch_array, array)
        return tensor

    def _unregister(self, address: int) -> None:
        self._journal.attempt(self.unregistered, address)

    def _register(self, register: Callable[..., Any], address: int, size_bytes: int, flags: int) -> Any:
        result = register(address, size_bytes, flags)
        self._journal.attempt(self.registered, address, size_bytes)
        return result
