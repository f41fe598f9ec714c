"""Events, waits and synchronizations, as torch reports them wherever they come from: Python, autograd, C++.

`torch.cuda._gpu_trace` reports them to callbacks; nothing public does. Its callbacks can't be removed, so they are
registered once per process. The clocks are those of `torch.cuda._sanitizer`. Methods that query whether work is done
are not reported, so they are wrapped.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch.cuda import _gpu_trace

from overlapscope.plugins.hazards.bookkeeping import Journal
from overlapscope.recorder.wrapping import around

_VALUE_COUNTS = {
    "event_creation": 1,
    "event_deletion": 1,
    "event_record": 2,
    "event_wait": 2,
    "memory_allocation": 1,
    "memory_deallocation": 1,
    "stream_creation": 1,
    "device_synchronization": 0,
    "stream_synchronization": 1,
    "event_synchronization": 1,
}
"""Events that are reported, with the number of their values: handles of events and streams, and addresses of memory.
Later versions of torch may append further values."""

_BLOCKING_WAIT = ("TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT")
"""Environment variables with which `Work.wait` of NCCL blocks the host."""


class SyncEvent(NamedTuple):
    """An event that torch reported."""

    name: str
    values: tuple[int, ...]
    """Handles of an event and of a stream, or an address, as `_VALUE_COUNTS` says."""


def new_clock() -> Any:
    """Return a new `StreamSynchronizations`, which knows the order between launches."""
    already_imported = "torch.cuda._sanitizer" in sys.modules
    from torch.cuda import _sanitizer

    if not already_imported:
        # The import creates a sanitizer, whose callbacks would record a stack at every allocation.
        _unregister(_sanitizer.cuda_sanitizer.dispatch.event_handler)
    return _sanitizer.StreamSynchronizations()


class SyncEvents:
    """Notes in a journal the events for a clock, from `start` to `stop`."""

    def __init__(self, journal: Journal, clock: Any, renewed: Callable[[int], object]) -> None:
        """Prepare to note events. `renewed(address)` is called for device memory that is allocated or freed."""
        self._journal = journal
        self._clock = clock
        self._undo = ExitStack()
        self._of_thread = threading.local()
        self.collective_streams: set[int] = set()
        """Streams on which collectives ran that may outlast their call."""
        self._handlers: dict[str, Callable[..., object]] = {
            "event_creation": clock.create_event,
            "event_deletion": clock.delete_event,
            "event_record": clock.record_state,
            "event_wait": lambda event, stream: clock.stream_wait_for_event(stream, event),
            "memory_allocation": renewed,
            "memory_deallocation": renewed,
            "stream_creation": clock.create_stream,
            "device_synchronization": clock.sync_all_streams,
            "stream_synchronization": clock.all_streams_wait_for_stream,
            "event_synchronization": clock.all_streams_wait_for_event,
        }

    def start(self) -> None:
        """Begin to note events. This neither needs nor creates a CUDA context."""
        _register_callbacks()
        torch._C._activate_gpu_trace()
        _listening.append(self)
        self._undo.callback(_listening.remove, self)
        self._after(torch.cuda.Event, "query", self._events_are_over)
        # It raises unless both events are over.
        self._after(torch.cuda.Event, "elapsed_time", self._events_are_over)
        self._after(torch.cuda.Stream, "query", self._stream_is_over)
        if torch.distributed.is_available():
            work = torch._C._distributed_c10d.Work
            self._after(work, "is_completed", self._work_is_over)
            self._after(work, "wait", self._work_was_waited_for)

    def _after(self, owner: Any, name: str, over: Callable[..., None]) -> None:
        """Have `over(...)` called with the arguments of a method that has returned, unless it returned false."""

        def called(method: Callable[..., Any], *args: Any, **options: Any) -> Any:
            result = method(*args, **options)
            if result is not False:
                self._journal.attempt(over, *args, **options)
            return result

        self._undo.callback(around(owner, name, called))

    def stop(self) -> None:
        """Stop noting events."""
        self._undo.close()

    @contextmanager
    def held(self) -> Iterator[list[SyncEvent]]:
        """Collect this thread's events instead of noting them. The caller notes them, unless the block raises."""
        events: list[SyncEvent] = []
        outer, self._of_thread.events = self._held, events
        try:
            yield events
        except BaseException:
            self._of_thread.events = outer
            for event in events:
                self.note(event)
            raise
        finally:
            self._of_thread.events = outer

    def note(self, event: SyncEvent) -> None:
        """Note an event, or collect it."""
        if self._held is None:
            name, values = event
            self._journal.note(partial(self._handlers[name], *values[: _VALUE_COUNTS[name]]))
        else:
            self._held.append(event)

    @property
    def _held(self) -> list[SyncEvent] | None:
        return getattr(self._of_thread, "events", None)

    def _events_are_over(self, *events: Any) -> None:
        for event in events:
            if event.cuda_event:
                self._journal.note(partial(self._clock.all_streams_wait_for_event, event.cuda_event))

    def _stream_is_over(self, stream: Any) -> None:
        self._journal.note(partial(self._clock.all_streams_wait_for_stream, stream.cuda_stream))

    def _work_was_waited_for(self, work: Any, *args: Any, **options: Any) -> None:
        if args or options or any(os.environ.get(name, "0") != "0" for name in _BLOCKING_WAIT):
            # With a timeout, the host waits, too.
            self._work_is_over(work)

    def _work_is_over(self, work: Any) -> None:
        # A work doesn't tell its stream, so all of them are taken to be done: no false report follows from that.
        for stream in tuple(self.collective_streams):
            self._journal.note(partial(self._clock.all_streams_wait_for_stream, stream))


_listening: list[SyncEvents] = []


@cache
def _register_callbacks() -> None:
    for name in _VALUE_COUNTS:
        getattr(_gpu_trace, f"register_callback_for_{name}")(partial(_report, name))


def _report(name: str, *values: int) -> None:
    for listener in _listening:
        listener.note(SyncEvent(name, values))


def _unregister(handler: object) -> None:
    for name in _VALUE_COUNTS:
        callbacks = getattr(_gpu_trace, f"{name.title().replace('_', '')}Callbacks").callback_list
        callbacks[:] = [callback for callback in callbacks if getattr(callback, "__self__", None) is not handler]
