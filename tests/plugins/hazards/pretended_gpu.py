"""A GPU that isn't there: tensors in host memory that say they are on a GPU, and the events that torch reports for it.

Collectives run through a real process group. `PretendedNccl` reports what `ProcessGroupNCCL` does around them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.cuda import _gpu_trace
from torch.utils._python_dispatch import TorchDispatchMode

from overlapscope.plugins.hazards.checker import HazardChecker

NCCL_STREAM = 64
_OTHERS = ("wait", "wrap", "barrier")
"""Parts of the names of operators that run nothing on NCCL's stream."""
_EVENTS = itertools.count(1000)


class PretendedTensor(torch.Tensor):
    """A tensor that claims to be on a GPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    is_cuda = True

    def get_device(self) -> int:
        return 0


def on_gpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(PretendedTensor)


class PretendedGpu:
    """The current stream, and waits between streams."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current = 0
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: SimpleNamespace(cuda_stream=self.current))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "native")

    @contextmanager
    def stream(self, handle: int) -> Iterator[None]:
        before, self.current = self.current, handle
        try:
            yield
        finally:
            self.current = before

    def record(self, stream: int | None = None) -> int:
        event = next(_EVENTS)
        _gpu_trace.EventRecordCallbacks.fire_callbacks(event, self.current if stream is None else stream)
        return event

    def wait(self, event: int) -> None:
        _gpu_trace.EventWaitCallbacks.fire_callbacks(event, self.current)

    def stream_waits(self, stream: int, event: int) -> None:
        _gpu_trace.EventWaitCallbacks.fire_callbacks(event, stream)


class PretendedNccl(TorchDispatchMode):
    """Reports the events of `ProcessGroupNCCL`. Entered before a checker, it is inside each operator's call."""

    def __init__(self, gpu: PretendedGpu) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.gpu = gpu
        self.stream = NCCL_STREAM
        self.is_coalescing = False
        self.ends: list[int] = []
        """Events for which `Work.wait` waits, of all collectives so far."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        if name == "_c10d_functional::wait_tensor":
            self.gpu.wait(self.ends[-1])
        if not name.startswith(("c10d::", "_c10d_functional::")) or any(other in name for other in _OTHERS):
            return func(*args, **(kwargs or {}))
        asynchronous = not any(argument is False for argument in args)
        if asynchronous:
            self.gpu.stream_waits(self.stream, self.gpu.record())
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            result = on_gpu(result)
        if not self.is_coalescing:
            self.ends.append(self.gpu.record(self.stream if asynchronous else self.gpu.current))
        return result

    @contextmanager
    def coalescing(self) -> Iterator[None]:
        self.is_coalescing = True
        yield
        self.is_coalescing = False
        self.ends.append(self.gpu.record(self.stream))


@contextmanager
def checked(nccl: PretendedNccl) -> Iterator[HazardChecker]:
    """Check a program with a pretended GPU."""
    with nccl:
        checker = HazardChecker()
        checker.start()
        try:
            yield checker
        finally:
            checker.stop()
