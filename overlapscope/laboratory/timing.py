"""Times a program's iterations outside the profiler, with the clock and the statistics of `torch.utils.benchmark`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch.utils import benchmark

from overlapscope.laboratory.results import Spread

BUDGET_S = 3.0
"""Time for a variant's iterations; more only where fewer than `LEAST` fit into it."""
LEAST, MOST = 5, 1000
_WARM_UP = 2


def measure(step: Callable[[], object], *, repeat: int) -> tuple[Spread, Spread]:
    """Time at least `repeat` iterations: until the device has finished each, and until the call returns.

    Every iteration begins on an idle device and is timed by itself.
    """
    for _ in range(_WARM_UP):
        estimate, _returned = _once(step)
    count = _agreed(max(LEAST, repeat, min(MOST, int(BUDGET_S / max(estimate, 1e-9)))))
    times = [_once(step) for _ in range(count)]
    wall, host = zip(*times, strict=True)
    return _spread(wall), _spread(host)


def _once(step: Callable[[], object]) -> tuple[float, float]:
    begin = benchmark.timer()  # Waits for the device, where there is one.
    step()
    returned = time.perf_counter()
    return benchmark.timer() - begin, returned - begin


def _spread(seconds: Sequence[float]) -> Spread:
    measurement = benchmark.Measurement(1, list(seconds), benchmark.TaskSpec("step()", setup=""))
    return Spread(median=1e3 * measurement.median, iqr=1e3 * measurement.iqr, n=len(seconds))


def _agreed(count: int) -> int:
    """The first rank's count on every rank: iterations of one job wait for one another."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return count
    shared: list[int] = [count]
    torch.distributed.broadcast_object_list(shared, src=0)
    return shared[0]
