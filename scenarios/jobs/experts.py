"""Expert-parallel training: each rank has one expert, and tokens travel to their expert and back.

`--skew-pct` is the share of tokens that all go to the expert of rank 0; the others are spread evenly.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import job
import torch
import torch.distributed as dist


class Exchange(torch.autograd.Function):
    """Rows sent to other ranks, and in the backward pass their gradients sent back."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
        ctx.counts = sent, received
        return exchanged(rows, sent, received)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        sent, received = ctx.counts
        return exchanged(gradients[0], received, sent), None, None


def exchanged(rows: torch.Tensor, sent: list[int], received: list[int]) -> torch.Tensor:
    """Return the rows that the other ranks send here. The lists have the number of rows for and from each rank."""
    result = rows.new_empty(sum(received), rows.shape[1])
    dist.all_to_all_single(result, rows.contiguous(), received, sent)
    return result


def options() -> argparse.ArgumentParser:
    parser = job.parser(__doc__, blocks=4, width=4096, tokens=8192)
    parser.add_argument("--skew-pct", type=int, default=0)
    return parser


def prepare(options: argparse.Namespace, device: torch.device) -> job.Step:
    world = dist.get_world_size()
    torch.manual_seed(dist.get_rank())  # Each rank has its own expert and tokens.
    with device:
        experts = torch.nn.ModuleList([job.FeedForward(options.width) for _ in range(options.blocks)])
        tokens = torch.randn(options.tokens, options.width)
        even = torch.arange(options.tokens) % world
        skewed = torch.where(torch.arange(options.tokens) * 100 < options.skew_pct * options.tokens, 0, even)
        counts = torch.bincount(skewed, minlength=world)
    exchange: Callable[..., torch.Tensor] = Exchange.apply
    optimizer = torch.optim.SGD(experts.parameters(), lr=1e-3)

    def step() -> None:
        job.sleep(options)
        value = tokens
        for expert in experts:
            incoming = torch.empty_like(counts)
            dist.all_to_all_single(incoming, counts)
            sent, received = counts.tolist(), incoming.tolist()  # Waits for the counts, as the sizes are needed here.
            arrived = exchange(value, sent, received)
            value = exchange(expert(arrived), received, sent)
        value.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    job.main(options, prepare)
