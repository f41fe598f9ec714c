"""Pipeline-parallel training: each rank has some of the blocks, and passes activations and gradients on.

With `--schedule 1f1b` and `gpipe`, each rank has one stage and waits while the pipeline fills and drains. With
`interleaved` and `zero-bubble` it has two; with `zero-bubble` it computes the gradients of weights while it would wait.
"""

from __future__ import annotations

import argparse

import job
import torch
import torch.distributed as dist
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleZBVZeroBubble,
)

SINGLE = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
DOUBLE = {"interleaved": ScheduleInterleaved1F1B, "zero-bubble": ScheduleZBVZeroBubble}


def options() -> argparse.ArgumentParser:
    parser = job.parser(__doc__, blocks=8, width=4096, batch=8192, microbatches=8)
    parser.add_argument("--schedule", choices=[*SINGLE, *DOUBLE], default="1f1b")
    return parser


def prepare(options: argparse.Namespace, device: torch.device) -> job.Step:
    rank, world = dist.get_rank(), dist.get_world_size()
    second = 2 * world - 1 - rank if options.schedule == "zero-bubble" else world + rank
    places, stages = ([rank], world) if options.schedule in SINGLE else ([rank, second], 2 * world)
    with device:
        models = [
            torch.nn.Sequential(*[job.FeedForward(options.width) for _ in range(options.blocks // stages)])
            for _ in places
        ]
        samples = torch.randn(options.batch, options.width)
    parts = [PipelineStage(model, at, stages, device) for model, at in zip(models, places, strict=True)]
    schedule = (
        SINGLE[options.schedule](parts[0], options.microbatches, loss_fn=loss)
        if options.schedule in SINGLE
        else DOUBLE[options.schedule]([*parts], options.microbatches, loss_fn=loss)
    )
    optimizer = torch.optim.SGD([weight for model in models for weight in model.parameters()], lr=1e-3)

    def step() -> None:
        job.sleep(options)
        inputs = (samples,) if 0 in places else ()
        target = samples if stages - 1 in places else None
        schedule.step(*inputs, target=target)
        optimizer.step()
        optimizer.zero_grad()

    return step


def loss(result: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(result, target)


if __name__ == "__main__":
    job.main(options, prepare)
