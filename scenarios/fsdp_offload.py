"""Fully sharded training on two GPUs, with the shards on the GPU or in host memory.

Beyond the published experiments: FSDP2 (`fully_shard`) keeps half of every block's weights on each GPU (`resident`), or
in the host memory of each rank (`CPUOffloadPolicy`), from which a block's half is copied before it is gathered, in both
passes. Gradients go the other way, and the optimizer runs on the CPU. With pinned memory (`offload`) the copies have a
separate stream and do not block; with pageable memory (`offload_pageable`) they do.

Look for: the main cost of offloading isn't the copies but the optimizer on the CPU, during which the GPU is idle
(`cpu-ops`). Without pinned memory the copies add to it (`pageable-memory`). The benefit is in `peak_gpu_mib`.
"""

import os
from typing import Literal

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from overlapscope.plugins.laboratory.experiment import Experiment, Program, Truth, Variant

try:
    from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard
except ImportError:  # torch 2.5
    from torch.distributed._composable.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard  # type: ignore[attr-defined]


class ShardedFeedForward(torch.nn.Module):
    """The feed-forward half of a transformer layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(width, 4 * width, bias=False)
        self.down = torch.nn.Linear(4 * width, width, bias=False)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        change: torch.Tensor = self.down(torch.nn.functional.gelu(self.up(value)))
        return value + change


def prepare(blocks: int, width: int, batch: int, shards: Literal["gpu", "pinned", "pageable"]) -> Program:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl")
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    policy = OffloadPolicy() if shards == "gpu" else CPUOffloadPolicy(pin_memory=shards == "pinned")
    torch.manual_seed(0)  # Every rank begins with the same weights.
    model = torch.nn.Sequential(*[ShardedFeedForward(width) for _ in range(blocks)])
    for block in model:
        fully_shard(block, mesh=mesh, offload_policy=policy)
    fully_shard(model, mesh=mesh, offload_policy=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    torch.manual_seed(dist.get_rank())  # Each rank has its own samples.
    samples = torch.randn(batch, width, device="cuda")

    def step() -> None:
        model(samples).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def figures() -> dict[str, float]:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return {"peak_gpu_mib": torch.cuda.max_memory_allocated() / 2**20}

    return Program(step, figures=figures, close=dist.destroy_process_group)


# The optimizer reads a weight and its gradient and writes the weight at the CPU's speed, for hundreds of milliseconds.
ON_THE_CPU = Truth(idle="cpu-ops", findings=("cpu-ops",), no_findings=("pageable-memory",))

EXPERIMENT = Experiment(
    name="fsdp_offload",
    title="Sharded training with weights in host memory",
    shows="Offloaded shards save GPU memory and cost the copies, and above all an optimizer on the CPU.",
    sizes={
        "small": {"blocks": 4, "width": 1024, "batch": 4096},
        "paper": {"blocks": 6, "width": 2048, "batch": 8192},
    },
    prepare=prepare,
    variants=(
        Variant(
            "resident",
            {"shards": "gpu"},
            shows="Shards stay on the GPUs: nothing is copied.",
            truth=Truth(no_findings=("pageable-memory", "same-stream")),
        ),
        Variant(
            "offload",
            {"shards": "pinned"},
            shows="Copies do not block, the GPU waits for the optimizer.",
            truth=ON_THE_CPU,
        ),
        Variant(
            "offload_pageable",
            {"shards": "pageable"},
            shows="Every copy blocks the host as well.",
            truth=Truth(exposed_copy="pageable-memory", findings=("pageable-memory", "cpu-ops"), least_share=0.95),
        ),
    ),
    faster=(("resident", "offload"), ("offload", "offload_pageable")),
    gpus=2,
    warmup_steps=1,
    recorded_steps=2,
)

if __name__ == "__main__":
    from overlapscope.plugins.laboratory.experiment import main

    main(EXPERIMENT)
