"""Matrix products on side streams: measurements by the host's clock, and the benefit of two streams.

From a question in the PyTorch forum, why `with torch.cuda.stream()` seems to block: 100 products of 10000 x 10000
float32 on a side stream, timed with the host's clock. The call is asynchronous: without a synchronize the clock
measures only launches (compare `host_ms` with the wall time), with a synchronize it measures the products. Launches
wait in a queue of about a thousand entries, though, and a loop that fills it blocks, which looks as if the stream did.
`launches_until_blocked` counts them while a product keeps the GPU busy.

A second stream does not help big products, each of which fills every multiprocessor (`streams-without-overlap`).
Products of 256 x 256 leave room and do run side by side: `small_products_ms` is their time alone. They are queued after
a long product, so that both streams are full when they begin, and the host doesn't limit them.
"""

import time
from typing import Literal

import torch

from overlapscope.plugins.laboratory.experiment import Experiment, Program, Truth, Variant

BLOCKED_S = 1e-3
"""A launch takes microseconds. A launch of this many seconds waits for room in the queue."""
AT_MOST = 10_000
BUSY_S = 0.1
"""Time for which the GPU is kept busy, several times as long as filling the queue takes."""


class Products:
    """Square matrices to be multiplied, and their result."""

    def __init__(self, size: int) -> None:
        self.left, self.right = (torch.randn(size, size, device="cuda") for _ in range(2))
        self.out = torch.empty_like(self.left)

    def multiply(self) -> None:
        torch.mm(self.left, self.right, out=self.out)


def launches_until_blocked(products: Products) -> float:
    """Return the number of launches that the queue takes while the GPU is busy."""
    value = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    begin = time.perf_counter()
    products.multiply()
    torch.cuda.synchronize()
    launched = 1 + int(BUSY_S / (time.perf_counter() - begin))
    for _ in range(launched):
        products.multiply()
    blocked = False
    while not blocked and launched < AT_MOST:
        begin = time.perf_counter()
        value.add_(1.0)
        launched += 1
        blocked = time.perf_counter() - begin > BLOCKED_S
    torch.cuda.synchronize()
    return float(launched)


def big(size: int, count: int, recorded: int, streams: int, synchronize: bool) -> Program:
    """Multiply on side streams in turn, with nothing on the current one."""
    sides = [torch.cuda.Stream() for _ in range(streams)]
    products = [Products(size) for _ in sides]
    products[0].multiply()
    torch.cuda.synchronize()

    def multiply(times: int) -> None:
        for number in range(times):
            with torch.cuda.stream(sides[number % streams]):
                products[number % streams].multiply()
        if synchronize:
            for side in sides:
                side.synchronize()

    def figures() -> dict[str, float]:
        return {"launches_until_blocked": launches_until_blocked(products[0])}

    return Program(
        step=lambda: multiply(count),
        recorded_step=lambda: multiply(recorded),
        figures=None if synchronize or streams > 1 else figures,
    )


def small(size: int, count: int, ahead: int, streams: int) -> Program:
    """Multiply on the current stream and side streams, all queued behind one long product."""
    sides = [torch.cuda.Stream() for _ in range(streams - 1)]
    products, long = [Products(size) for _ in range(streams)], Products(ahead)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def step() -> None:
        current = torch.cuda.current_stream()
        turns = [current, *sides]
        long.multiply()
        begin.record()
        for side in sides:
            side.wait_stream(current)
        for number in range(count):
            with torch.cuda.stream(turns[number % streams]):
                products[number % streams].multiply()
        for side in sides:
            current.wait_stream(side)
        end.record()

    def figures() -> dict[str, float]:
        step()
        torch.cuda.synchronize()
        return {"small_products_ms": begin.elapsed_time(end)}

    return Program(step, figures=figures)


def prepare(
    size: int,
    count: int,
    recorded: int,
    small_size: int,
    small_count: int,
    ahead: int,
    products: Literal["big", "small"],
    streams: int,
    synchronize: bool = False,
) -> Program:
    if products == "big":
        return big(size, count, recorded, streams, synchronize)
    return small(small_size, small_count, ahead, streams)


SMALL_PRODUCTS = {"small_size": 256, "small_count": 400}

EXPERIMENT = Experiment(
    name="stream_matmul",
    title="Matrix products on side streams",
    shows="The call returns long before the work is done, and a second stream helps only kernels that leave room.",
    sizes={
        "small": {"size": 4000, "count": 20, "recorded": 6, "ahead": 5000, **SMALL_PRODUCTS},
        "paper": {"size": 10000, "count": 100, "recorded": 6, "ahead": 8000, **SMALL_PRODUCTS},
    },
    prepare=prepare,
    variants=(
        Variant(
            "big_host_clock",
            {"products": "big", "streams": 1},
            shows="The host's clock measures launches: the call returns at once, the products take all the wall time.",
            truth=Truth(no_findings=("streams-without-overlap", "dispatch")),
        ),
        Variant(
            "big_synchronized",
            {"products": "big", "streams": 1, "synchronize": True},
            shows="With a synchronize the host's clock measures the products.",
            truth=Truth(no_findings=("streams-without-overlap", "dispatch")),
        ),
        Variant(
            "big_two_streams",
            {"products": "big", "streams": 2},
            shows="Shared between two streams the products take turns: each fills the GPU.",
            truth=Truth(findings=("streams-without-overlap",)),
        ),
        Variant(
            "small_one_stream",
            {"products": "small", "streams": 1},
            shows="Small products one after another, on a GPU that has room for several.",
        ),
        Variant(
            "small_two_streams",
            {"products": "small", "streams": 2},
            shows="On two streams small products run side by side.",
            truth=Truth(no_findings=("streams-without-overlap",)),
        ),
    ),
    warmup_steps=1,
    recorded="a recorded iteration has 6 big products instead of all",
)

if __name__ == "__main__":
    from overlapscope.plugins.laboratory.experiment import main

    main(EXPERIMENT)
