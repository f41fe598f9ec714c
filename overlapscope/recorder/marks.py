"""Marks in the trace that state what Kineto doesn't: the event that a stream waits for, and garbage collections.

Since CUDA 13, Kineto's record of an event wait names neither the stream on which the event was recorded nor the
call that recorded it (kineto PR #1552). So while the profiler runs, `torch.cuda.Event.record` and `.wait`, which
`Stream.wait_stream`, `wait_event` and `record_event` call, are wrapped in markers that state both. A marker is an op of
the trace on the same thread and encloses the runtime call that it describes, so the two are matched without comparing
clocks. `overlapscope.reading` reads the markers and removes them from the CPU ops.

The methods of process groups that launch collectives, and `Work.wait`, are wrapped likewise. Waits that PyTorch issues
from C++ (autograd between streams, DistributedDataParallel's reducer) have no markers and are reconstructed. Its GPU
trace hooks would show them, but cannot be switched off again and cost 3.7 us for each allocation (H200, torch 2.11:
5.2 us instead of 1.5 for an allocation and its release), more than many ops take.

During a run of Python's garbage collector, its thread does nothing else. A mark around it is an op of the trace, too,
which costs some 2 us for each run; `overlapscope.reading` moves it to the annotations. A recording without ops has no
such marks, since annotations would cost ten times as much.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from operator import methodcaller
from typing import Any
from weakref import WeakKeyDictionary

from overlapscope.base.marks import COLLECTIVE, EVENT_RECORD, EVENT_WAIT, GC_PAUSE, WORK_WAIT
from overlapscope.recorder.cupti import library

_FIRST_CUDA_WITHOUT = 13
_NOT_NOTED = None, 0
_COLLECTIVES = (
    "allreduce",
    "allgather",
    "_allgather_base",
    "all_gather_single",
    "reduce_scatter",
    "_reduce_scatter_base",
    "reduce_scatter_single",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "alltoall",
    "alltoall_base",
    "all_to_all_single",
    "send",
    "recv",
    "allreduce_coalesced",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "reduce_scatter_tensor_coalesced",
)
"""Methods of a process group that launch a collective, in all versions of PyTorch."""


class EventNotes:
    """Marks events between `start` and `stop`, each called once.

    Does nothing where the trace states what is waited for anyway.
    """

    def __init__(self, *, as_annotations: bool) -> None:
        """Prepare to mark events. `as_annotations`: with slower annotations, for a profiler without ops."""
        self._as_annotations = as_annotations
        self._originals: list[tuple[Any, str, Any]] = []

    def start(self) -> None:
        """Wrap the methods."""
        import torch

        stream_id = _stream_ids(torch.version.cuda)
        if stream_id is None:
            return
        event_class: Any = torch.cuda.Event
        record, wait = event_class.record, event_class.wait
        current_stream = torch.cuda.current_stream
        marker: Any = torch._C._profiler._RecordFunctionFast
        if self._as_annotations:
            marker = torch.profiler.record_function
        numbers = itertools.count(1)
        session = object()

        # The number is kept on the event. Weak references to events are not safe: when an event is freed, torch (2.11)
        # does not clear them, and they point into freed memory.
        def noted_record(event: Any, stream: Any = None) -> None:
            stream = current_stream() if stream is None else stream
            number = next(numbers)
            event._overlapscope_note = session, number
            with marker(f"{EVENT_RECORD}{number}@{stream_id(stream)}"):
                record(event, stream)

        def noted_wait(event: Any, stream: Any = None) -> None:
            stream = current_stream() if stream is None else stream
            noted_in, number = getattr(event, "_overlapscope_note", _NOT_NOTED)
            with marker(f"{EVENT_WAIT}{number if noted_in is session else 0}@{stream_id(stream)}"):
                wait(event, stream)

        self._wrap(event_class, "record", noted_record)
        self._wrap(event_class, "wait", noted_wait)
        if torch.distributed.is_available():
            self._note_collectives(
                lambda kind, number: marker(f"{kind}{number}@{stream_id(current_stream())}"), numbers
            )

    def _note_collectives(self, note: Callable[[str, int], Any], numbers: Iterator[int]) -> None:
        import torch
        from torch._C import _distributed_c10d as c10d  # has the classes under the same names in all versions

        group_class, work_class = c10d.ProcessGroup, c10d.Work
        in_use: Callable[[], bool] = torch.cuda.is_initialized
        number_of: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

        def noted(launch: Any) -> Any:
            def noted_launch(*args: Any, **kwargs: Any) -> Any:
                if not in_use():
                    return launch(*args, **kwargs)
                number = next(numbers)
                with note(COLLECTIVE, number):
                    work = launch(*args, **kwargs)
                if isinstance(work, work_class):
                    number_of[work] = number
                return work

            return noted_launch

        wait: Any = work_class.wait

        def noted_wait(work: Any, *args: Any, **kwargs: Any) -> Any:
            if not in_use():
                return wait(work, *args, **kwargs)
            with note(WORK_WAIT, number_of.get(work, 0)):
                return wait(work, *args, **kwargs)

        for name in _COLLECTIVES:
            if hasattr(group_class, name):
                self._wrap(group_class, name, noted(getattr(group_class, name)))
        self._wrap(work_class, "wait", noted_wait)

    def _wrap(self, owner: Any, name: str, noted: Any) -> None:
        self._originals.append((owner, name, vars(owner)[name]))
        setattr(owner, name, noted)

    def stop(self) -> None:
        """Put the methods back."""
        while self._originals:
            owner, name, original = self._originals.pop()
            setattr(owner, name, original)


def _stream_ids(cuda_version: str | None) -> Any:
    """Return a function that returns a stream's device and number as in the trace, such as `0.7`.

    None if it is not needed, or without CUPTI. The numbers are CUPTI's. (The driver's own, of cuStreamGetId, agree only
    at first: 18 for CUPTI's 17 in a process that had made and released streams.) The reader compares the waiting
    stream's number with the number that the trace states.
    """
    import torch

    cupti = library()
    if cupti is None or int((cuda_version or "0").partition(".")[0]) < _FIRST_CUDA_WITHOUT:
        return None
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    names: dict[tuple[int, int], str] = {}

    def stream_id(stream: Any) -> str:
        device, handle = stream.device_index, stream.cuda_stream
        name = names.get((device, handle))
        if name is None:
            number, context = ctypes.c_uint32(), ctypes.c_void_p()
            with torch.cuda.device(device):  # The default stream's handle is the same on every device.
                failed = driver.cuCtxGetCurrent(ctypes.byref(context)) or cupti.cuptiGetStreamIdEx(
                    context, ctypes.c_void_p(handle), ctypes.c_uint8(0), ctypes.byref(number)
                )
            name = names[device, handle] = f"{device}.{-1 if failed else number.value}"
        return name

    return stream_id


# -- Runs of the garbage collector -------------------------------------------------------------------


class GcWatch:
    """Calls a function as a garbage collection starts, and one as it stops, from `start` to `stop`.

    No Python function runs in a collection. Python handles signals when a function begins, and drops what a callback of
    the collector raises. So a Python function there would swallow the exception of the program's signal handler:
    Ctrl-C, or the end of a time limit.
    """

    def __init__(self, at_start: Callable[[], object], at_stop: Callable[[], object]) -> None:
        """Prepare to watch.

        Args:
            at_start: A function that is written in C, as `at_stop` is.
            at_stop: It is also called alone, if the watch begins during a collection.
        """
        # Called as getattr(phases, "start", information).
        self._callback = functools.partial(getattr, _Phases(at_start, at_stop))

    def start(self) -> None:
        """Watch all collections from now on, unless that is so already."""
        if self._callback not in gc.callbacks:
            gc.callbacks.append(self._callback)

    def stop(self) -> None:
        """Stop watching."""
        with suppress(ValueError):
            gc.callbacks.remove(self._callback)


class _Phases:
    """Reading an attribute that is named as a phase calls its function."""

    __slots__ = ("at_start", "at_stop")

    def __init__(self, at_start: Callable[[], object], at_stop: Callable[[], object]) -> None:
        self.at_start, self.at_stop = at_start, at_stop

    start = property(methodcaller("at_start"))
    stop = property(methodcaller("at_stop"))


def gc_marks() -> GcWatch:
    """Return marks around garbage collections on each thread that is recorded."""
    import torch

    marker: Any = torch._C._profiler._RecordFunctionFast
    mark = marker(GC_PAUSE)
    # There is one collection at a time. Leaving a mark that was not entered does nothing.
    return GcWatch(mark.__enter__, mark.__exit__)
