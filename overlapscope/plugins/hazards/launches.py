"""Entries of the books for each operator that the program runs on this thread, or on autograd's in backward passes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from overlapscope.plugins.hazards.bookkeeping import Bookkeeping, Copy, Direction, Journal, Touch
from overlapscope.plugins.hazards.host_memory import HostMemory
from overlapscope.plugins.hazards.operators import (
    READ_SCALAR,
    Transfer,
    clones_inputs,
    collective_arguments,
    dispatches_itself,
    is_asynchronous,
    is_collective,
    launch_index,
    made_by,
    stream_of,
    tensors,
    tensors_returned,
    tensors_used,
    touch,
)
from overlapscope.plugins.hazards.sync_events import SyncEvent, SyncEvents
from overlapscope.recorder.program_lines import CodeLine


@dataclass(slots=True)
class _HostAccess:
    """A host tensor among an operator's arguments, and the copies that it races with."""

    tensor: torch.Tensor
    touch: Touch
    write: bool
    conflicts: list[Copy] = field(default_factory=list)


@dataclass(slots=True)
class _OnStream:
    """Work of a call on a stream."""

    stream: int = -1
    """Handle of the stream; unknown until the call ends."""
    reads: list[Touch] = field(default_factory=list)
    writes: list[Touch] = field(default_factory=list)
    copies: list[tuple[Direction, Touch]] = field(default_factory=list)
    """Copies that may outlast the call."""
    waited_for: bool = False
    """True if the call has waited for the end of the work."""
    is_collective: bool = False
    """True for a collective that may outlast its call."""


@dataclass(slots=True)
class OperatorCall:
    """A call of an operator."""

    operator: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    on_device: dict[int, _OnStream] = field(default_factory=dict)
    """Its work on each device."""
    host: list[_HostAccess] = field(default_factory=list)

    def uses(self, tensor: torch.Tensor, *, written: bool) -> None:
        """Note a tensor of a device that it reads or writes."""
        memory = touch(tensor)
        if memory is not None:
            work = self.on_device.setdefault(tensor.get_device(), _OnStream())
            (work.writes if written else work.reads).append(memory)


class HazardMode(TorchDispatchMode):
    """Runs every operator unchanged, and writes the books before and after it."""

    # Higher-order operators such as flex_attention run, instead of being refused.
    supports_higher_order_operators = True

    def __init__(
        self,
        books: Bookkeeping,
        clock: Any,
        journal: Journal,
        host_memory: HostMemory,
        sync_events: SyncEvents,
        line: Callable[[FrameType], CodeLine],
        say: Callable[[str], object],
    ) -> None:
        """Prepare to watch operators.

        `line(frame)` returns the program's line that a frame comes from. `say(sentence)` receives sentences on checks
        that are impossible.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.not_followed: set[str] = set()
        """Collectives on a GPU whose stream or memory is unknown."""
        self._say = say
        self._books = books
        self._clock = clock
        self._journal = journal
        self._host_memory = host_memory
        self._sync_events = sync_events
        self._line = line
        self._native_allocator: bool | None = None

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Keep compiled functions compiled: otherwise torch.compile falls back to eager mode, or refuses."""
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operator."""
        kwargs = kwargs or {}
        if not self._journal.is_open or not isinstance(func, OpOverload):
            return func(*args, **kwargs)
        if dispatches_itself(types) and _get_current_dispatch_mode() is None:
            # As without this mode, the tensor subclass runs operators on plain tensors, which come here, too. Another
            # mode, such as FakeTensorMode, may run the operator instead.
            return NotImplemented
        if is_collective(func):
            return self._communicate(func, args, kwargs, sys._getframe(1))
        call = self._journal.attempt(self.begin, func, args, kwargs)
        result = func(*args, **kwargs)
        if call is not None:
            self._journal.attempt(self.end, call, result, sys._getframe(1))
        return result

    def enter(self) -> None:
        """Enter the mode on this thread."""
        self.__enter__()  # type: ignore[no-untyped-call]

    def leave(self) -> None:
        """Leave the mode. If the program has entered others on top of it, it stays and only runs operators."""
        if _get_current_dispatch_mode() is self:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def begin(self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OperatorCall:
        """Note the call of an operator, and compare the host's accesses with the copies under way before it."""
        call = OperatorCall(operator, args, kwargs)
        for tensor, written in tensors_used(operator, args, kwargs):
            if tensor.is_cuda:
                call.uses(tensor, written=written)
            elif tensor.is_cpu and self._books.copies and (memory := touch(tensor)) is not None:
                call.host.append(_HostAccess(tensor, memory, written))
        if call.host:
            self._journal.note(partial(self._find_conflicts, call))
            self._journal.write_up()
        return call

    def end(self, call: OperatorCall, result: Any, frame: FrameType) -> None:
        """Note the end of a call from `frame`."""
        self._note_returned(call, result)
        # Captured work runs when its graph is replayed, which is not reported.
        if not (call.on_device or call.host) or (call.on_device and torch.cuda.is_current_stream_capturing()):
            return
        transfers = made_by(call.operator, call.args, call.kwargs, result)
        by_device = [transfer for transfer in transfers if transfer.is_dma]
        launches = self._launches(call, transfers, by_device)
        for transfer in by_device:
            self._host_memory.watch(transfer.host)
        line = self._line(frame)
        by_host = [access for access in call.host if all(access.tensor is not transfer.host for transfer in by_device)]
        self._journal.note(partial(self._write_down, by_host, launches, line))
        self._journal.write_up()

    def _note_returned(self, call: OperatorCall, result: Any) -> None:
        for tensor in tensors_returned(call.operator, call.args, call.kwargs, result):
            if tensor.is_cuda:
                call.uses(tensor, written=True)

    def _communicate(
        self, operator: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType
    ) -> Any:
        """Run a collective. Its stream follows from the events of its call, and its launch is between two of them."""
        call = self._journal.attempt(self.begin, operator, args, kwargs)
        with self._sync_events.held() as events:
            result = operator(*args, **kwargs)
        if call is not None:
            self._journal.attempt(self._end_collective, call, result, events, frame)
        return result

    def _end_collective(self, call: OperatorCall, result: Any, events: list[SyncEvent], frame: FrameType) -> None:
        self._note_returned(call, result)
        line = self._line(frame)
        copying, launch = self._collective_launches(call, events)
        at = len(events) if launch is None else launch_index(events, launch.stream)
        self._journal.note(partial(self._write_down, call.host, copying, line))
        for event in events[:at]:
            self._sync_events.note(event)
        if launch is not None:
            self._journal.note(partial(self._write_down, [], [launch], line))
        for event in events[at:]:
            self._sync_events.note(event)
        self._journal.write_up()

    def _collective_launches(
        self, call: OperatorCall, events: list[SyncEvent]
    ) -> tuple[list[_OnStream], _OnStream | None]:
        """Return a collective's work on the current stream before it communicates, and the rest of its work."""
        operator, devices = call.operator, [*call.on_device]
        gpu_is_used = bool(devices) or any(tensor.is_cuda for tensor in tensors([*call.args, *call.kwargs.values()]))
        if not gpu_is_used or torch.cuda.is_current_stream_capturing() or not self._hears_of_allocations():
            return [], None
        stream = None
        if len(devices) == 1 and collective_arguments(operator) is not None:
            current = torch.cuda.current_stream(*devices).cuda_stream
            asynchronous = is_asynchronous(operator, call.args, call.kwargs)
            stream = stream_of(events, current, asynchronous=asynchronous)
        if stream is None:
            self.not_followed.add(operator._schema.name)
            return [], None
        (launch,) = call.on_device.values()
        launch.stream, launch.is_collective = stream, stream != current
        if launch.is_collective:
            self._sync_events.collective_streams.add(stream)
        if not clones_inputs(operator):
            return [], launch
        reads, launch.reads = launch.reads, []
        return [_OnStream(current, reads)], launch

    def _launches(self, call: OperatorCall, transfers: list[Transfer], by_device: list[Transfer]) -> list[_OnStream]:
        waits = call.operator is READ_SCALAR or (
            bool(transfers) and all(transfer.ends_with_call for transfer in transfers)
        )
        for device, launch in call.on_device.items():
            launch.stream, launch.waited_for = torch.cuda.current_stream(device).cuda_stream, waits
            if not self._hears_of_allocations():
                launch.reads, launch.writes = [], []
        for transfer in by_device:
            on_stream, memory = call.on_device.get(transfer.device.get_device()), touch(transfer.host)
            if on_stream is not None and memory is not None:
                (on_stream.writes if transfer.to_host else on_stream.reads).append(memory)
                if transfer.non_blocking:
                    on_stream.copies.append(("d2h" if transfer.to_host else "h2d", memory))
        return list(call.on_device.values())

    def _hears_of_allocations(self) -> bool:
        """Return whether torch reports when device memory is reused, so that it has no earlier uses."""
        if self._native_allocator is None:
            backend = torch.cuda.get_allocator_backend()
            self._native_allocator = backend == "native"
            if not self._native_allocator:
                self._say(
                    f"Races between streams on device memory were not checked: the allocator {backend} does not "
                    "report its actions."
                )
        return self._native_allocator

    def _find_conflicts(self, call: OperatorCall) -> None:
        for access in call.host:
            access.conflicts = self._books.conflicts(access.touch.region, write=access.write)

    def _write_down(self, accesses: list[_HostAccess], launches: list[_OnStream], line: CodeLine) -> None:
        for access in accesses:
            self._books.host_accessed(access.conflicts, line, write=access.write)
        for launch in launches:
            launched = self._books.launched(
                launch.stream, launch.reads, launch.writes, line, is_collective=launch.is_collective
            )
            for direction, memory in launch.copies:
                self._books.copy_issued(direction, launched, memory)
            if launch.waited_for:
                # torch reported the wait before the launch was in the books.
                self._clock.all_streams_wait_for_stream(launch.stream)
