"""Fully sharded training (FSDP2): each block's weights are gathered for its two passes, and its gradients scattered.

`--no-prefetch` gathers weights only when their block is reached, so the GPU waits for each of them.
"""

from __future__ import annotations

import argparse

import job
import torch
from torch.distributed.fsdp import fully_shard


def options() -> argparse.ArgumentParser:
    parser = job.parser(__doc__, blocks=6, width=4096, batch=2048)
    parser.add_argument("--no-prefetch", action="store_true")
    return parser


def prepare(options: argparse.Namespace, device: torch.device) -> job.Step:
    with device:
        blocks = [job.FeedForward(options.width) for _ in range(options.blocks)]
        samples = torch.randn(options.batch, options.width)
    mesh = job.mesh(device)
    model = torch.nn.Sequential(*blocks)
    sharded = [fully_shard(block, mesh=mesh) for block in blocks]
    fully_shard(model, mesh=mesh)
    if options.no_prefetch:
        for block in sharded:
            block._set_unshard_async_op(True)  # The forward pass gathers on the stream that computes.
            block.set_modules_to_backward_prefetch([block])  # The backward pass gathers nothing for other blocks.
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        job.sleep(options)
        model(samples).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    job.main(options, prepare)
