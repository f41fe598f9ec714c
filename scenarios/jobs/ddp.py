"""Data-parallel training: buckets of gradients are reduced beside the backward pass.

`--bucket-mb` 1 reduces every weight by itself, 10000 all of them at the end. `--slow-loader-rank` has a rank whose
data loader computes for `--loader-ms` in each step. `--norms` computes the norm of each gradient before it is reduced.
`read` reads each by `.item()`, so the collectives are issued late; `keep` leaves them on the GPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import job
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Batches(torch.utils.data.IterableDataset[torch.Tensor]):
    """The same batch again and again, each after some milliseconds of work on the host."""

    def __init__(self, batch: torch.Tensor, work_ms: float) -> None:
        self.batch = batch
        self.work_ms = work_ms

    def __iter__(self) -> Iterator[torch.Tensor]:
        while True:
            end = time.perf_counter() + self.work_ms / 1000
            while time.perf_counter() < end:
                pass
            yield self.batch


def options() -> argparse.ArgumentParser:
    parser = job.parser(__doc__, layers=12, width=4096, batch=2048)
    parser.add_argument("--bucket-mb", type=float, default=25)
    parser.add_argument("--slow-loader-rank", type=int, metavar="R")
    parser.add_argument("--loader-ms", type=float, default=20)
    parser.add_argument("--norms", choices=["keep", "read"])
    return parser


def prepare(options: argparse.Namespace, device: torch.device) -> job.Step:
    width, layers = options.width, options.layers
    weights = [torch.nn.Linear(width, width, bias=False, device=device) for _ in range(layers)]
    if options.norms:
        for weight in weights:
            weight.weight.register_hook(norm_kept if options.norms == "keep" else norm_read)
    model = DistributedDataParallel(
        torch.nn.Sequential(*[part for weight in weights for part in (weight, torch.nn.ReLU())]),
        bucket_cap_mb=options.bucket_mb,
    )
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    work_ms = options.loader_ms if dist.get_rank() == options.slow_loader_rank else 0
    samples = torch.randn(options.batch, width, pin_memory=device.type == "cuda")
    batches = iter(torch.utils.data.DataLoader(Batches(samples, work_ms), batch_size=None))

    def step() -> None:
        job.sleep(options)
        batch = next(batches).to(device, non_blocking=True)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def norm_kept(gradient: torch.Tensor) -> None:
    gradient.norm()


def norm_read(gradient: torch.Tensor) -> None:
    gradient.norm().item()


if __name__ == "__main__":
    job.main(options, prepare)
