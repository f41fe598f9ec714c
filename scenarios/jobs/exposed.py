"""One large collective, exposed for one cause that `--cause` plants; without the option, products hide all of it.

Each step begins with idle GPUs, so that the host's launches count.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import job
import torch
import torch.distributed as dist

CAUSES = (
    "same-stream",
    "host-sync",
    "late-compute",
    "late-issue",
    "waiting-for-input",
    "straggler",
    "transfer",
    "no-compute",
)


def options() -> argparse.ArgumentParser:
    parser = job.parser(__doc__, width=4096, batch=4096, products=10, large_mb=256)
    parser.add_argument("--cause", choices=CAUSES)
    parser.add_argument("--late-ms", type=float, default=1.6)
    return parser


class ExposedCollective:
    """The tensors and streams of the steps."""

    def __init__(self, options: argparse.Namespace, device: torch.device) -> None:
        self.products, self.late_s = options.products, options.late_ms / 1000
        self.on_gpu = device.type == "cuda"
        with device:
            self.large = torch.zeros(options.large_mb << 20, dtype=torch.uint8).view(torch.float32)
            self.weight = torch.randn(options.width, options.width) / options.width**0.5
            self.samples = torch.randn(options.batch, options.width)
        self.on_host = torch.zeros_like(self.large, device="cpu", pin_memory=self.on_gpu)
        self.stream = torch.cuda.Stream() if self.on_gpu else None
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())

    def aside(self) -> AbstractContextManager[object]:
        """Issue collectives from a stream of their own, which doesn't wait for the products."""
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def reduce_aside(self) -> dist.Work | None:
        with self.aside():
            reduced: dist.Work | None = dist.all_reduce(self.large, async_op=True)
            return reduced

    def multiply(self, times: int) -> None:
        for _ in range(times):
            self.samples @ self.weight

    def hidden(self) -> None:
        reduced = self.reduce_aside()
        self.multiply(self.products)
        wait(reduced)
        self.multiply(1)

    def same_stream(self) -> None:
        self.multiply(self.products // 2)
        dist.all_reduce(self.large)
        self.multiply(self.products - self.products // 2 + 1)

    def host_sync(self) -> None:
        before = self.products * 4 // 5
        self.multiply(before)
        reached = torch.cuda.Event() if self.on_gpu else None
        if reached is not None:
            reached.record()
        self.multiply(self.products - before)
        if reached is not None:
            reached.synchronize()
        wait(self.reduce_aside())
        self.multiply(1)

    def late_compute(self) -> None:
        reduced = self.reduce_aside()
        time.sleep(self.late_s)
        self.multiply(self.products)
        wait(reduced)
        self.multiply(1)

    def late_issue(self) -> None:
        self.multiply(self.products)
        time.sleep(self.late_s)
        wait(self.reduce_aside())
        self.multiply(1)

    def waiting_for_input(self) -> None:
        with self.aside():
            part = self.large[: len(self.large) * 3 // 8]
            part.copy_(self.on_host[: len(part)], non_blocking=True)
        reduced = self.reduce_aside()
        self.multiply(self.products)
        wait(reduced)
        self.multiply(1)

    def straggler(self) -> None:
        if dist.get_rank() == 1:
            time.sleep(self.late_s)
        self.no_compute()

    def transfer(self) -> None:
        self.multiply(self.products - 1)
        reduced = dist.all_reduce(self.large, async_op=True)
        self.multiply(1)
        wait(reduced)
        self.multiply(1)

    def no_compute(self) -> None:
        self.multiply(self.products)
        wait(dist.all_reduce(self.large, async_op=True))
        self.multiply(1)


def wait(work: dist.Work | None) -> None:
    """Let the current stream wait for a collective."""
    if work is not None:
        work.wait()


def prepare(options: argparse.Namespace, device: torch.device) -> job.Step:
    program = ExposedCollective(options, device)
    part: Callable[[], None] = getattr(program, (options.cause or "hidden").replace("-", "_"))

    @torch.no_grad()
    def step() -> None:
        job.sleep(options)
        part()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return step


if __name__ == "__main__":
    job.main(options, prepare)
