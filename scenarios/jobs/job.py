"""Options, process group and steps shared by the programs of this directory.

Each program is one way to train on several GPUs, and plants a cause of lost time where an option asks for it:

    torchrun --nproc-per-node 2 scenarios/jobs/ddp.py --sleep-rank 1 --sleep-ms 20
    torchrun --nproc-per-node 2 -m overlapscope run scenarios/jobs/ddp.py --sleep-rank 1 --sleep-ms 20

It has `options`, which returns its options, and `prepare`, which returns a function that takes one step. Without a GPU,
the processes communicate through gloo.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import overlapscope

Step = Callable[[], object]


class FeedForward(torch.nn.Module):
    """The feed-forward half of a transformer layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(width, 4 * width, bias=False)
        self.down = torch.nn.Linear(4 * width, width, bias=False)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        change: torch.Tensor = self.down(torch.nn.functional.gelu(self.up(value)))
        return value + change


def parser(description: str | None, **sizes: int) -> argparse.ArgumentParser:
    """Return a parser of the options of all programs, and of a program's sizes with their defaults."""
    described = argparse.ArgumentParser(description=description, formatter_class=argparse.RawTextHelpFormatter)
    described.add_argument("--steps", type=int, default=50)
    described.add_argument("--sleep-rank", type=int, metavar="R", help="rank whose host sleeps in each step")
    described.add_argument("--sleep-ms", type=float, default=20, metavar="N", help="for this long")
    for name, size in sizes.items():
        described.add_argument(f"--{name.replace('_', '-')}", type=int, default=size)
    return described


def begin() -> torch.device:
    """Join the process group of this process, and return its device."""
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
        torch.set_default_dtype(torch.bfloat16)
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    torch.manual_seed(0)  # Every rank begins with the same weights.
    return device


def mesh(device: torch.device) -> DeviceMesh:
    """Return the mesh of all ranks, in one dimension."""
    return init_device_mesh(device.type, (dist.get_world_size(),))


def sleep(options: argparse.Namespace) -> None:
    """Sleep if this is the rank that comes late."""
    if dist.get_rank() == options.sleep_rank:
        time.sleep(options.sleep_ms / 1000)


def main(
    options: Callable[[], argparse.ArgumentParser],
    prepare: Callable[[argparse.Namespace, torch.device], Step],
) -> None:
    """Run a program as a script."""
    given = options().parse_args()
    device = begin()
    step = prepare(given, device)
    for _ in range(given.steps):
        step()
        overlapscope.step()
    del step  # A model that outlives the process group can wait for it forever.
    dist.destroy_process_group()
