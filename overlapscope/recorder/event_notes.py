"""Notes in the trace on which event a stream waits for, where Kineto no longer says so.

From CUDA 13 on Kineto's record of an event wait names neither the stream on which the event was recorded nor the
call that recorded it (kineto PR #1552). So while the profiler runs, `torch.cuda.Event.record` and `.wait`, through
which `Stream.wait_stream`, `wait_event` and `record_event` go too, are wrapped in markers that say it. A marker
is an op of the trace on the same thread and encloses the runtime call it speaks of, so that the two are joined
without comparing clocks. `overlapscope.reading` reads them and takes them out of the CPU ops again.

Waits that PyTorch issues from C++ (autograd between streams, NCCL's work) pass by here and stay rebuilt. Its GPU
trace hooks would show them, but cannot be switched off again and cost 3.7 us for each allocation (H200, torch 2.11:
5.2 us instead of 1.5 for an allocation and its release), more than the ops of a launch-bound program take.
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
        """`as_annotations` marks them with annotations, for a profiler that records no ops. They take longer."""
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

        # The number is kept on the event. Weak references to one are not safe: when an event goes, torch (2.11) does
        # not clear them, and whoever holds one is left with a pointer into freed memory.
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
    """A function that gives a stream's device and number as the trace has them, `0.7`; None where not needed, or
    without CUPTI.

    CUPTI is asked, whose numbers these are. (The driver's own, cuStreamGetId, agree at first but not for good: 18
    for CUPTI's 17 in a process that had made and released streams.) The reader checks the waiting stream's number
    against the one that the trace states.
    """
    import torch

    major = int((cuda_version or "0").partition(".")[0])
    if major < _FIRST_CUDA_WITHOUT:
        return None
    try:
        cupti = ctypes.CDLL(f"libcupti.so.{major}")  # the one that torch has loaded
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    known: dict[tuple[int, int], str] = {}

    def stream_id(stream: Any) -> str:
        device, handle = stream.device_index, stream.cuda_stream
        named = known.get((device, handle))
        if named is None:
            number, context = ctypes.c_uint32(), ctypes.c_void_p()
            with torch.cuda.device(device):  # The default stream's handle is the same on every device.
                failed = driver.cuCtxGetCurrent(ctypes.byref(context)) or cupti.cuptiGetStreamIdEx(
                    context, ctypes.c_void_p(handle), ctypes.c_uint8(0), ctypes.byref(number)
                )
            named = known[device, handle] = f"{device}.{-1 if failed else number.value}"
        return named

    return stream_id
