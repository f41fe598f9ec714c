"""Bandwidth of collectives, by the arithmetic of nccl-tests, and of copies between GPUs of one process."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TypeAlias

import torch
import torch.distributed as dist

from benchmarks.several_gpus_plan import ProgramResult
from benchmarks.several_gpus_recording import record, synchronize

COLLECTIVES = ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")
IN_A_ROW = 5
"""Number of recorded calls of each size, one after the other."""
CALLS, WARM_UP = 20, 5
Figures: TypeAlias = list[dict[str, float | str]]


class SweptBuffers:
    """Buffers of the largest size, of which calls use a part."""

    def __init__(self, device: torch.device, largest: int) -> None:
        self.device, self.world = device, dist.get_world_size()
        self.sizes = [1 << power for power in range(20, largest.bit_length())]
        with device:
            self.source, self.target = torch.ones(largest // 4), torch.empty(largest // 4)

    def call(self, collective: str, size: int) -> None:
        """Make one call. The size is that of the whole buffer, in bytes."""
        whole, part = size // 4, size // 4 // self.world
        shared = part * self.world
        match collective:
            case "all_reduce":
                dist.all_reduce(self.source[:whole])
            case "all_gather_into_tensor":
                dist.all_gather_into_tensor(self.target[:shared], self.source[:part])
            case "reduce_scatter_tensor":
                dist.reduce_scatter_tensor(self.target[:part], self.source[:shared])
            case "all_to_all_single":
                dist.all_to_all_single(self.target[:shared], self.source[:shared])

    def step(self) -> None:
        """Make the calls that are recorded."""
        for collective in COLLECTIVES:
            for size in self.sizes:
                for _ in range(IN_A_ROW):
                    self.call(collective, size)
                self.source.fill_(1)

    def figures(self) -> Figures:
        """Time all sizes."""
        return [self._timed(collective, size) for collective in COLLECTIVES for size in self.sizes]

    def _timed(self, collective: str, size: int) -> dict[str, float | str]:
        before = _collections()
        total, single, longest = seconds(partial(self.call, collective, size), self.device)
        collections = _collections() - before
        of_ranks: list[float] = [0.0] * self.world
        dist.all_gather_object(of_ranks, total)
        factor = (2 if collective == "all_reduce" else 1) * (self.world - 1) / self.world
        self.source.fill_(1)
        # nccl-tests takes the mean of the ranks.
        mean = sum(of_ranks) / self.world
        return {
            "collective": collective,
            "bytes": size,
            "us": mean * 1e6,
            "slowest_us": max(of_ranks) * 1e6,
            "fastest_us": min(of_ranks) * 1e6,
            "median_call_us": single * 1e6,
            "longest_call_us": longest * 1e6,
            "garbage_collections": collections,
            "algbw_gb_s": size / mean / 1e9,
            "busbw_gb_s": size / mean / 1e9 * factor,
        }


def _collections() -> int:
    """Return how many times Python has collected garbage of more than the youngest objects."""
    return sum(generation["collections"] for generation in gc.get_stats()[1:])


def bandwidth(out: Path, name: str, program: str) -> Iterator[ProgramResult]:
    """Time collectives, record them, and time them again without pauses of Python's garbage collector."""
    import job

    device = job.begin()
    torch.set_default_dtype(torch.float32)
    buffers = SweptBuffers(device, 1 << (29 if device.type == "cuda" else 21))
    before = buffers.figures()
    trace = record(out / name / "bandwidth.trace.json.gz", buffers.step)
    gc.collect()
    gc.disable()
    after: Figures = [{**figure, "again": 1.0} for figure in buffers.figures()]
    gc.enable()
    yield ProgramResult(name, dist.get_world_size(), program, trace=trace, figures=before + after)


def seconds(call: Callable[[], object], device: torch.device) -> tuple[float, float, float]:
    """Return the mean time of calls in a row, and the median and maximum time between two ends."""
    for _ in range(WARM_UP):
        call()
    synchronize(device)
    if device.type == "cpu":
        ends = [time.perf_counter()]
        for _ in range(CALLS):
            call()
            ends.append(time.perf_counter())
        times = [end - begin for begin, end in pairwise(ends)]
        return sum(times) / CALLS, median(times), max(times)
    # Events between the calls could keep them apart, so the two times are of different calls.
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(CALLS):
        call()
    end.record()
    end.synchronize()
    mean = float(start.elapsed_time(end)) / 1000 / CALLS
    events = [torch.cuda.Event(enable_timing=True) for _ in range(CALLS + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    events[-1].synchronize()
    times = [float(begin.elapsed_time(end)) / 1000 for begin, end in pairwise(events)]
    return mean, median(times), max(times)


def peer(out: Path, name: str, program: str) -> Iterator[ProgramResult]:
    """Copy from one GPU to another, alone and beside products, on the default and on another stream."""
    here, there = torch.device("cuda:0"), torch.device("cuda:1")
    sizes = [1 << power for power in (20, 24, 28)]
    sources = [torch.ones(size, dtype=torch.uint8, device=here) for size in sizes]
    targets = [torch.empty_like(source, device=there) for source in sources]
    weight = torch.randn(4096, 4096, device=here, dtype=torch.bfloat16)
    side = torch.cuda.Stream(here)
    figures: Figures = [{"can_access_peer": float(torch.cuda.can_device_access_peer(0, 1))}]
    for source, target in zip(sources, targets, strict=True):
        ways: dict[str, Callable[[], object]] = {
            "to": partial(source.to, there),
            "copy": partial(target.copy_, source, non_blocking=True),
            "back": partial(source.copy_, target, non_blocking=True),
        }
        for way, call in ways.items():
            mean, single, _ = seconds(call, here)
            rate = source.nbytes / mean / 1e9
            figure = {"bytes": source.nbytes, "us": mean * 1e6, "median_call_us": single * 1e6, "gb_s": rate}
            figures.append({"way": way, **figure})

    def step() -> None:
        for source in sources:
            source.to(there)
        for source, target in zip(sources, targets, strict=True):
            source.copy_(target, non_blocking=True)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            targets[-1].copy_(sources[-1], non_blocking=True)
        for _ in range(5):
            weight @ weight
        torch.cuda.current_stream().wait_stream(side)
        for device in (here, there):
            torch.cuda.synchronize(device)  # An error is reported at its step, and no copy outlives its memory.

    trace = record(out / name / "peer.trace.json.gz", step)
    yield ProgramResult(name, 1, program, figures=figures, trace=trace)
