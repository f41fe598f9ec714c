"""What no operator and no callback tells of: methods that ask whether work is done, or hand out host memory.

They are wrapped while hazards are looked for. A TorchFunctionMode would see them too, and every other call and
attribute of a tensor besides; torch takes slower paths where there is one, so that it would change what is measured.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from overlapscope.recorder.hazards.bookkeeping import Bookkeeping
from overlapscope.recorder.hazards.host_memory import HostMemory
from overlapscope.recorder.hazards.journal import Journal
from overlapscope.recorder.hazards.lines import UserCode
from overlapscope.recorder.hazards.operators import tensors, touch

_READERS = ("numpy", "tolist", "__dlpack__", "__reduce_ex__")
"""Methods of a tensor through which its memory is read, at once or by what they return. `__array__` calls `numpy`;
pickle and torch.save call `__reduce_ex__`."""

_Method = Callable[..., Any]


class Methods:
    """Wraps methods from `start` to `stop`. A wrapper calls the original and returns what that returns."""

    def __init__(
        self, books: Bookkeeping, clock: Any, journal: Journal, host_memory: HostMemory, user_code: UserCode
    ) -> None:
        self._books = books
        self._clock = clock
        self._journal = journal
        self._host_memory = host_memory
        self._user_code = user_code
        self._wrapped: list[tuple[Any, str, _Method, _Method | None]] = []

    def start(self) -> None:
        """Put the wrappers on."""
        self._wrap(torch.cuda.Event, "query", self._event_query)
        self._wrap(torch.cuda.Event, "elapsed_time", self._elapsed_time)
        self._wrap(torch.cuda.Stream, "query", self._stream_query)
        for name in _READERS:
            self._wrap(torch.Tensor, name, self._reader)
        self._wrap(torch, "from_numpy", self._from_numpy)
        runtime = getattr(torch._C, "_cudart", None)
        if runtime is not None:
            self._wrap(runtime, "cudaHostRegister", self._register)
            self._wrap(runtime, "cudaHostUnregister", self._unregister)

    def stop(self) -> None:
        """Take them off again, except where somebody has put another one on top."""
        for owner, name, wrapper, own in reversed(self._wrapped):
            if vars(owner).get(name) is not wrapper:
                continue
            if own is None:
                delattr(owner, name)
            else:
                setattr(owner, name, own)
        self._wrapped.clear()

    def _wrap(self, owner: Any, name: str, wrap: Callable[[_Method], _Method]) -> None:
        """`owner.name` may be inherited; then it is again when the wrapper is taken off."""
        original = getattr(owner, name)
        wrapper = functools.wraps(original)(wrap(original))
        self._wrapped.append((owner, name, wrapper, vars(owner).get(name)))
        setattr(owner, name, wrapper)

    def _event_query(self, original: _Method) -> _Method:
        def query(event: torch.cuda.Event) -> bool:
            done: bool = original(event)
            if done:
                self._journal.attempt(self._event_is_over, event)
            return done

        return query

    def _elapsed_time(self, original: _Method) -> _Method:
        def elapsed_time(event: torch.cuda.Event, end_event: torch.cuda.Event) -> float:
            # It raises where one of them is not over.
            elapsed_ms: float = original(event, end_event)
            self._journal.attempt(self._event_is_over, event)
            self._journal.attempt(self._event_is_over, end_event)
            return elapsed_ms

        return elapsed_time

    def _event_is_over(self, event: torch.cuda.Event) -> None:
        if event.cuda_event:
            self._journal.note(partial(self._clock.all_streams_wait_for_event, event.cuda_event))

    def _stream_query(self, original: _Method) -> _Method:
        def query(stream: torch.cuda.Stream) -> bool:
            done: bool = original(stream)
            if done:
                self._journal.attempt(self._stream_is_over, stream)
            return done

        return query

    def _stream_is_over(self, stream: torch.cuda.Stream) -> None:
        self._journal.note(partial(self._clock.all_streams_wait_for_stream, stream.cuda_stream))

    def _reader(self, original: _Method) -> _Method:
        def read(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if self._books.copies:
                self._journal.attempt(self._is_read, tensor)
            return original(tensor, *args, **kwargs)

        return read

    def _is_read(self, tensor: torch.Tensor) -> None:
        for plain in tensors(tensor):
            memory = touch(plain) if plain.is_cpu else None
            if memory is not None:
                line = self._user_code.line(sys._getframe())
                self._journal.note(partial(self._books.host_read, memory.region, line))
                self._journal.write_up()

    def _from_numpy(self, original: _Method) -> _Method:
        def from_numpy(array: Any) -> torch.Tensor:
            tensor: torch.Tensor = original(array)
            self._journal.attempt(self._host_memory.watch_array, array)
            return tensor

        return from_numpy

    def _register(self, original: _Method) -> _Method:
        def register(address: int, size_bytes: int, flags: int) -> Any:
            result = original(address, size_bytes, flags)
            self._journal.attempt(self._host_memory.registered, address, size_bytes)
            return result

        return register

    def _unregister(self, original: _Method) -> _Method:
        def unregister(address: int) -> Any:
            self._journal.attempt(self._host_memory.unregistered, address)
            return original(address)

        return unregister
