"""Four programs to record again and again, what can be changed about them, and what can be planted in them.

Each function prepares its tensors and returns a step. `plant` is called once in it, near the end of the step on the
device, where no copy or other kernel runs: its work lengthens the step by itself.
They are kept to a few kernels a step, so that many recordings can be stored.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

import torch
from msgspec import Struct

Step = Callable[[], object]
Plant = Callable[[], None]

SETTLING_S = 0.3
"""Warm-up of a program before it is timed or recorded: kernels are chosen, memory is allocated, clocks are up."""
MIB = 1 << 20


class Changes(Struct, frozen=True):
    """Settings that a regression changes, each from right to wrong."""

    pinned: bool = True
    side_stream: bool = True
    synchronize: bool = False
    """Once more in every step than needed."""


Make = Callable[[Changes, Plant], Step]


def host_tensor(rows: int, width: int, dtype: torch.dtype, changes: Changes) -> torch.Tensor:
    tensor = torch.empty(rows, width, dtype=dtype, pin_memory=changes.pinned)
    # Made on the device, as the host would need seconds.
    return tensor.copy_(torch.randn(rows, width, dtype=dtype, device="cuda"))


def square_weight(width: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a matrix that keeps the size of its products."""
    return torch.randn(width, width, dtype=dtype, device="cuda") / math.sqrt(width)


class Prefetched:
    """The same host batch again and again, on the device one step ahead, in two buffers that take turns."""

    def __init__(self, rows: int, width: int, changes: Changes) -> None:
        self._source = host_tensor(rows, width, torch.float32, changes)
        self._buffers = [torch.empty(rows, width, device="cuda") for _ in range(2)]
        self._filled, self._free = ([torch.cuda.Event() for _ in self._buffers] for _ in range(2))
        self._compute = torch.cuda.current_stream()
        self._copies = torch.cuda.Stream() if changes.side_stream else self._compute
        self._this = 1
        self._fill(0)

    def take(self) -> torch.Tensor:
        """Return this step's batch, and begin to copy the next one. `give_back` must follow."""
        self._this, following = 1 - self._this, self._this
        self._fill(following)
        self._compute.wait_event(self._filled[self._this])
        return self._buffers[self._this]

    def give_back(self) -> None:
        """All that works on the batch has been launched."""
        self._free[self._this].record()

    def _fill(self, slot: int) -> None:
        self._copies.wait_event(self._free[slot])
        with torch.cuda.stream(self._copies):
            self._buffers[slot].copy_(self._source, non_blocking=True)
            self._filled[slot].record()


def prefetch(changes: Changes, plant: Plant) -> Step:
    """A chain of matrix products, and the next batch on its way beside them: bound by the GPU, every copy hidden."""
    rows, width = 8192, 2048
    batches = Prefetched(rows, width, changes)
    weights = [square_weight(width) for _ in range(4)]
    results = [torch.empty(rows, width, device="cuda") for _ in range(2)]

    def step() -> None:
        hidden = batches.take()
        for number, weight in enumerate(weights):
            hidden = torch.mm(hidden, weight, out=results[number % 2])
        batches.give_back()
        plant()
        if changes.synchronize:
            torch.cuda.synchronize()

    return step


def offload(changes: Changes, plant: Plant) -> Step:
    """Layers are uploaded, computed on and downloaded, on a stream each; copies outlast compute.

    A step uploads nothing before the last one's end, as if that changed the layers.
    """
    rows, width, layers = 24576, 1536, 4
    sources, results = ([host_tensor(rows, width, torch.float16, changes) for _ in range(layers)] for _ in range(2))
    buffers = [torch.empty(rows, width, dtype=torch.float16, device="cuda") for _ in range(3)]
    hidden, weight = torch.empty_like(buffers[0]), square_weight(width, torch.float16)
    uploaded, computed, downloaded = ([torch.cuda.Event() for _ in buffers] for _ in range(3))
    compute = torch.cuda.current_stream()
    uploads, downloads = (torch.cuda.Stream() if changes.side_stream else compute for _ in range(2))

    def step() -> None:
        uploads.wait_stream(compute)
        for number, (source, result) in enumerate(zip(sources, results, strict=True)):
            slot = number % len(buffers)
            uploads.wait_event(downloaded[slot])  # The buffer is free again.
            with torch.cuda.stream(uploads):
                buffers[slot].copy_(source, non_blocking=True)
                uploaded[slot].record()
            compute.wait_event(uploaded[slot])
            torch.mm(buffers[slot], weight, out=hidden)
            torch.mm(hidden, weight, out=buffers[slot])
            computed[slot].record()
            downloads.wait_event(computed[slot])
            with torch.cuda.stream(downloads):
                result.copy_(buffers[slot], non_blocking=True)
                downloaded[slot].record()
        compute.wait_stream(downloads)
        plant()
        if changes.synchronize:
            torch.cuda.synchronize()

    return step


def decode(changes: Changes, plant: Plant) -> Step:
    """One token after the other: kernels shorter than their launch, the token read back, and work on its text.

    The host bounds it, so disturbances of the host lengthen the step. Takes no batches: only `synchronize` applies.
    """
    width, layers, vocabulary = 1024, 12, 32768
    embedding = torch.randn(vocabulary, width, device="cuda")
    weights = [square_weight(width) for _ in range(layers)]
    head = torch.randn(width, vocabulary, device="cuda")
    token, text = 0, ""

    def step() -> None:
        nonlocal token, text
        hidden = embedding[token : token + 1]
        for number, weight in enumerate(weights):
            hidden = torch.tanh(torch.mm(hidden, weight)) + hidden
            if changes.synchronize and number == layers // 2:
                torch.cuda.synchronize()
        chosen = torch.mm(hidden, head).argmax()
        plant()
        token = int(chosen.item())
        text = ""
        for position in range(6000):
            text = f"{text[-8:]}{(token * position) % 97}"

    return step


def training(changes: Changes, plant: Plant) -> Step:
    """A perceptron on prefetched batches. The loss is read before the optimizer's turn, in case it is not finite.

    The device has run dry by then, so the optimizer and the next forward pass begin as fast as they are launched;
    from the first large product on, the device is the slower one.
    """
    rows, width, inner = 2048, 2048, 4096
    batches = Prefetched(rows, width, changes)
    layers = torch.nn.Linear(width, inner, bias=False), torch.nn.GELU(), torch.nn.Linear(inner, width, bias=False)
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step() -> None:
        batch = batches.take()
        loss = torch.nn.functional.mse_loss(model(batch), batch)
        loss.backward()
        batches.give_back()
        plant()
        if not math.isfinite(loss.item()):
            raise RuntimeError("the loss is not finite")
        optimizer.step()
        optimizer.zero_grad()
        if changes.synchronize:
            torch.cuda.synchronize()

    return step


PROGRAMS: dict[str, Make] = {function.__name__: function for function in (prefetch, offload, decode, training)}


# -- Planted slowdowns ------------------------------------------------------------------------------


def nothing() -> None:
    """Plant nothing."""


def compute_of(cycles: int) -> Plant:
    """A kernel that does nothing for so many of the GPU's cycles."""
    return lambda: torch.cuda._sleep(cycles)


def copy_of(size_bytes: int) -> Plant:
    """A copy from pinned memory, on the stream of the compute."""
    source = torch.zeros(size_bytes, dtype=torch.uint8, pin_memory=True)
    target = torch.zeros(size_bytes, dtype=torch.uint8, device="cuda")

    def plant() -> None:
        target.copy_(source, non_blocking=True)

    return plant


def host_work_of(seconds: float) -> Plant:
    """Keep the host busy with other work."""

    def plant() -> None:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass

    return plant


# -- running and timing ------------------------------------------------------------------------------


def settle(step: Step) -> None:
    """Run a program until nothing about it is new; it never runs ahead."""
    until = time.perf_counter() + SETTLING_S
    while time.perf_counter() < until:
        step()
        torch.cuda.synchronize()


def gpu_ms(launch: Plant) -> float:
    """Return the median of nine timings of an action on the current stream."""
    times: list[float] = []
    for _ in range(9):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        launch()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def sleep_cycles_per_ms() -> float:
    """Measure the GPU's cycles in a millisecond. Two lengths are timed, so that the cost of the launch cancels out."""
    shorter, longer = 1_000_000, 3_000_000
    return (longer - shorter) / (gpu_ms(compute_of(longer)) - gpu_ms(compute_of(shorter)))


def copied_bytes_per_ms() -> float:
    """Of `copy_of`, likewise."""
    shorter, longer = 8 * MIB, 24 * MIB
    return (longer - shorter) / (gpu_ms(copy_of(longer)) - gpu_ms(copy_of(shorter)))
