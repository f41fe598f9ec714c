"""Two independent collectives: a small one that is needed at once begins beside a large one that isn't.

With `--one-communicator`, both belong to one group, so the small one begins when the large one has ended.
With `--race`, the result of the large one is read before it has ended.
"""

from __future__ import annotations

import argparse

import job
import torch
import torch.distributed as dist


def options() -> argparse.ArgumentParser:
    parser = job.parser(__doc__, width=4096, batch=4096, products=4, large_mb=256)
    parser.add_argument("--one-communicator", action="store_true")
    parser.add_argument("--race", action="store_true")
    return parser


def prepare(options: argparse.Namespace, device: torch.device) -> job.Step:
    ranks = list(range(dist.get_world_size()))
    small_group = None if options.one_communicator else dist.new_group(ranks, group_desc="small")
    with device:
        large = torch.zeros(options.large_mb << 20, dtype=torch.uint8).view(torch.float32)
        weight = torch.randn(options.width, options.width) / options.width**0.5
        samples = torch.randn(options.batch, options.width)

    @torch.no_grad()
    def step() -> None:
        job.sleep(options)
        reduced = dist.all_reduce(large, async_op=True)
        value = samples @ weight
        dist.all_reduce(value[:1], group=small_group)
        for _ in range(options.products):
            value = value @ weight
        if options.race:
            large.sum()
        reduced.wait()

    return step


if __name__ == "__main__":
    job.main(options, prepare)
