"""Tensor-parallel training: the weights of each block are split, and the ranks' partial results summed up.

Each block waits for its sum, so all communication is exposed. `--means` computes the mean of each block's input. `read`
reads it by `.item()`, so the host launches the block late; `keep` leaves it on the GPU.
"""

from __future__ import annotations

import argparse

import job
import torch
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def options() -> argparse.ArgumentParser:
    parser = job.parser(__doc__, blocks=6, width=4096, batch=8192)
    parser.add_argument("--means", choices=["keep", "read"])
    return parser


def prepare(options: argparse.Namespace, device: torch.device) -> job.Step:
    with device:
        model = torch.nn.Sequential(*[job.FeedForward(options.width) for _ in range(options.blocks)])
        samples = torch.randn(options.batch, options.width)
    mesh = job.mesh(device)
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
        if options.means:
            block.register_forward_pre_hook(mean_kept if options.means == "keep" else mean_read)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        job.sleep(options)
        model(samples).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def mean_kept(_block: torch.nn.Module, values: tuple[torch.Tensor]) -> None:
    values[0].detach().mean()


def mean_read(_block: torch.nn.Module, values: tuple[torch.Tensor]) -> None:
    values[0].detach().mean().item()


if __name__ == "__main__":
    job.main(options, prepare)
