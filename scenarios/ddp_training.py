"""Training on two GPUs: gradients are reduced during the backward pass, or after it.

Beyond the published experiments. `ddp` is a plain `DistributedDataParallel` run: as soon as a bucket of gradients is
there, NCCL reduces it on a stream of its own, beside the rest of the backward pass. `no_overlap` is the same by hand:
each gradient is reduced when the backward pass is over, so all of the communication is exposed
(`exposed-comm`).

Look for: how much of the communication runs beside compute (`comm_compute_pct`), on both ranks. The last bucket has
nothing left to hide under. A rank that comes late looks like slow communication on the other one.
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from overlapscope.plugins.laboratory.experiment import Experiment, Program, Truth, Variant


class ResidualLinear(torch.nn.Module):
    """A residual layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value + torch.relu(self.linear(value))


def prepare(layers: int, width: int, batch: int, overlap: bool) -> Program:
    device = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    torch.manual_seed(0)  # Every rank begins with the same weights.
    model: torch.nn.Module = torch.nn.Sequential(*[ResidualLinear(width) for _ in range(layers)]).cuda()
    if overlap:
        model = DistributedDataParallel(model, device_ids=[device])
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    torch.manual_seed(dist.get_rank())  # Each rank has its own samples.
    samples = torch.randn(batch, width, device="cuda")

    def step() -> None:
        model(samples).square().mean().backward()
        if not overlap:
            for weight in model.parameters():
                dist.all_reduce(weight.grad, op=dist.ReduceOp.AVG)
        optimizer.step()
        optimizer.zero_grad()

    return Program(step, close=dist.destroy_process_group)


EXPERIMENT = Experiment(
    name="ddp_training",
    title="Data-parallel training on two GPUs",
    shows="Gradients that are reduced during the backward pass cost less than those reduced after it.",
    sizes={
        "small": {"layers": 8, "width": 2048, "batch": 1024},
        "paper": {"layers": 8, "width": 4096, "batch": 1024},
    },
    prepare=prepare,
    variants=(
        Variant(
            "ddp",
            {"overlap": True},
            shows="Each bucket is reduced beside the rest of the backward pass.",
        ),
        Variant(
            "no_overlap",
            {"overlap": False},
            shows="All gradients are reduced when the backward pass is over.",
            # Four bytes are sent for each weight, and six operations are done for each weight and sample. With a
            # thousand samples that is some percent of the step over the fastest link, and more over others.
            truth=Truth(findings=("exposed-comm",)),
        ),
    ),
    gpus=2,
)

if __name__ == "__main__":
    from overlapscope.plugins.laboratory.experiment import main

    main(EXPERIMENT)
