"""Times steps while nothing is recorded."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from overlapscope.recorder import devices

if TYPE_CHECKING:
    from overlapscope.trace import TimedSteps

_NS_PER_MS = 1_000_000


class StepTimer:
    """The lengths of the latest steps, up to `most` of them, from mark to mark.

    Marks are taken by the host's clock and, once CUDA is in use, by an event on the current stream. Nothing is ever
    waited for.
    """

    def __init__(self, most: int) -> None:
        self._marks: deque[tuple[int, Any]] = deque(maxlen=most + 1)
        """Each with its `torch.cuda.Event`, or None."""
        self._most = most

    @property
    def timed(self) -> int:
        """How many steps."""
        return max(0, len(self._marks) - 1)

    @property
    def started(self) -> bool:
        """Whether a step that is under way is being timed."""
        return bool(self._marks)

    @property
    def full(self) -> bool:
        """Whether those are as many as there may be."""
        return self.timed == self._most

    def mark(self) -> None:
        """One step ends here, and the next begins. Not to be called while a CUDA graph is captured."""
        self._marks.append((time.perf_counter_ns(), _event()))

    def restart(self) -> None:
        """Forget all marks."""
        self._marks.clear()

    def read(self) -> TimedSteps:
        """What was timed. Of the device only the steps that it is known to have done."""
        from overlapscope.trace import TimedSteps

        host_ns = tuple(end - begin for (begin, _), (end, _) in pairwise(self._marks))
        return TimedSteps(host_ns, _device_ns([event for _, event in self._marks]))


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
