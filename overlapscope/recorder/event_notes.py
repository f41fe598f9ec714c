"""Notes in the trace on the event that a stream waits for, which Kineto no longer states.

Since CUDA 13, Kineto's record of an event wait names neither the stream on which the event was recorded nor the
call that recorded it (kineto PR #1552). So while the profiler runs, `torch.cuda.Event.record` and `.wait`, which
`Stream.wait_stream`, `wait_event` and `record_event` call, are wrapped in markers that state both. A marker is an op of
the trace on the same thread and encloses the runtime call that it describes, so the two are matched without comparing
clocks. `overlapscope.reading` reads the markers and removes them from the CPU ops.

Waits that PyTorch issues from C++ (autograd between streams, NCCL's work) have no markers and are reconstructed. Its
GPU trace hooks would show them, but cannot be switched off again and cost 3.7 us for each allocation (H200, torch 2.11:
5.2 us instead of 1.5 for an allocation and its release), more than many ops take.
"""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

from overlapscope.base.marks import EVENT_RECORD, EVENT_WAIT

_FIRST_CUDA_WITHOUT = 13
_NOT_NOTED = None, 0


class EventNotes:
    """Marks events between `start` and `stop`, each called once.

    Does nothing where the trace states what is waited for anyway.
    """

    def __init__(self, *, as_annotations: bool) -> None:
        """Prepare to mark events. `as_annotations`: with slower annotations, for a profiler without ops."""
        self._as_annotations = as_annotations
        self._originals: tuple[Any, Any] | None = None

    def start(self) -> None:
        """Wrap the two methods."""
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

        self._originals = record, wait
        event_class.record, event_class.wait = noted_record, noted_wait

    def stop(self) -> None:
        """Put the methods back."""
        import torch

        if self._originals is not None:
            event_class: Any = torch.cuda.Event
            event_class.record, event_class.wait = self._originals
            self._originals = None


def _stream_ids(cuda_version: str | None) -> Any:
    """Return a function that returns a stream's device and number as in the trace, such as `0.7`.

    None if it is not needed, or without CUPTI. The numbers are CUPTI's. (The driver's own, of cuStreamGetId, agree only
    at first: 18 for CUPTI's 17 in a process that had made and released streams.) The reader compares the waiting
    stream's number with the number that the trace states.
    """
    import torch

    major = int((cuda_version or "0").partition(".")[0])
    if major < _FIRST_CUDA_WITHOUT:
        return None
    try:
        cupti = ctypes.CDLL(f"libcupti.so.{major}")  # as torch has loaded it
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
