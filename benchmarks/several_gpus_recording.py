"""Steps timed without the profiler, and recorded."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

import overlapscope

TIMED_STEPS = 20
RECORDED_STEPS = 48
"""Number of steps that a recording with plain steps before and after it needs, and some."""


def synchronize(device: torch.device) -> None:
    """Wait for all ranks, and for the GPU."""
    if dist.is_initialized():
        dist.barrier()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def mean_ns(step: Callable[[], object], device: torch.device) -> int:
    """Return the mean of many steps."""
    synchronize(device)
    begin = time.perf_counter_ns()
    for _ in range(TIMED_STEPS):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter_ns() - begin) // TIMED_STEPS


def launch_ns(step: Callable[[], object], device: torch.device) -> int:
    """Return the time in which the host launches a step on an idle GPU: the median of five."""
    times = []
    for _ in range(5):
        synchronize(device)
        begin = time.perf_counter_ns()
        step()
        times.append(time.perf_counter_ns() - begin)
    synchronize(device)
    return sorted(times)[2]


def record(trace: Path, step: Callable[[], object], *, stacks: bool = False) -> str:
    """Record three steps, or two with stacks, which take many times the space.

    Returns:
        The trace, or the folder of those of all ranks, relative to the folder above.
    """
    trace.parent.mkdir(exist_ok=True)
    active, plain_steps, steps = (2, 0, 12) if stacks else (3, 10, RECORDED_STEPS)
    recorder = overlapscope.record(
        trace, wait=3, warmup=2, active=active, plain_steps=plain_steps, steps_by="marks", stacks=stacks
    )
    with recorder as rec:
        for _ in range(steps):
            step()
            rec.step()
    name = trace.name if not dist.is_initialized() else f"{trace.name.removesuffix('.trace.json.gz')}.traces"
    return f"{trace.parent.name}/{name}"
