"""Times steps while nothing is recorded."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from overlapscope.recorder import devices
from overlapscope.recorder.schedule import settled
from overlapscope.recorder.session import profiler_running

if TYPE_CHECKING:
    from overlapscope.trace.model import TimedSteps

_NS_PER_MS = 1_000_000


class StepTimer:
    """The lengths of the latest steps, up to `most` of them, from mark to mark, once the program has settled.

    Marks are taken by the host's clock and, once CUDA is in use, by an event on the current stream. Nothing is ever
    waited for, unless `read` is asked to.
    """

    def __init__(self, most: int) -> None:
        """With `most` 0 it times nothing."""
        self._marks: deque[tuple[int, Any]] = deque(maxlen=most + 1)
        """Each with its `torch.cuda.Event`, or None."""
        self._most = most
        self._paused_ns = self._resumed_ns = self._resumed_step = 0
        """For how long the program was last held up, until when, and in which step."""

    @property
    def timed(self) -> int:
        """How many steps."""
        return max(0, len(self._marks) - 1)

    @property
    def full(self) -> bool:
        """Whether those are as many as there may be."""
        return self.timed == self._most

    def step(self, finished: int) -> None:
        """So many steps are finished. Not to be called while a CUDA graph is captured."""
        if not self._most:
            return
        if profiler_running():
            # The program's own.
            self.restart()
        elif self._marks or self._settled(finished):
            self._marks.append((time.perf_counter_ns(), _event()))

    def restart(self) -> None:
        """Forget all marks."""
        self._marks.clear()

    @contextmanager
    def pausing(self, finished: int) -> Iterator[None]:
        """What is done inside holds the program up, which settles anew then."""
        began = time.perf_counter_ns()
        yield
        self._resumed_ns, self._resumed_step = time.perf_counter_ns(), finished
        self._paused_ns = self._resumed_ns - began

    def read(self, *, wait: bool = False) -> TimedSteps:
        """What was timed. Of the device only the steps that it is known to have done: with `wait`, all."""
        from overlapscope.trace.model import TimedSteps

        if wait and self._marks:
            # A device that has failed has no times.
            with suppress(RuntimeError):
                devices.synchronize()
        host_ns = tuple(end - begin for (begin, _), (end, _) in pairwise(self._marks))
        return TimedSteps(host_ns, _device_ns([event for _, event in self._marks]))

    def _settled(self, finished: int) -> bool:
        from multiprocessing import active_children

        since_ns = time.perf_counter_ns() - self._resumed_ns
        return settled(finished - self._resumed_step, since_ns, self._paused_ns, workers=bool(active_children()))


def _event() -> Any:
    """An event, recorded; None without CUDA."""
    if not devices.cuda_is_up():
        return None
    import torch

    event = torch.cuda.Event(enable_timing=True)
    # A device that has failed takes no events, and the program will be told so soon.
    with suppress(RuntimeError):
        event.record()
        return event
    return None


def _device_ns(events: list[Any]) -> tuple[int, ...]:
    """The times between neighbours, up to the first that the device has not come to; none where one is missing."""
    lengths: list[int] = []
    # The program may have gone from one device to another between two steps.
    with suppress(RuntimeError):
        if None not in events:
            for begin, end in pairwise(events):
                if not end.query():
                    break
                lengths.append(round(begin.elapsed_time(end) * _NS_PER_MS))
            return tuple(lengths)
    return ()
