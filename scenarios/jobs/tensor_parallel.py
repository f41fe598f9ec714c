"""Tensor-parallel training: the weights of each block are split, and the ranks' partial results summed up.

Each block waits for its sum, so all communication is exposed. `--item` reads a value before the first one.
"""

from __future__ import annotations

import argparse

import job
import torch
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def options() -> argparse.ArgumentParser:
    parser = job.parser(__doc__, blocks=6, width=4096, batch=8192)
    parser.add_argument("--item", action="store_true")
    return parser


def prepare(options: argparse.Namespace, device: torch.device) -> job.Step:
    with device:
        model = torch.nn.Sequential(*[job.FeedForward(options.width) for _ in range(options.blocks)])
        samples = torch.randn(options.batch, options.width)
    mesh = job.mesh(device)
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        job.sleep(options)
        if options.item:
            samples.mean().item()  # Waits for the step before.
        model(samples).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    job.main(options, prepare)
