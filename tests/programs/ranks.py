"""Jobs of several ranks in which it is known who makes whom wait: `python ranks.py OUT [--ranks 4] [--only NAME]`.

Each is a small data-parallel training loop over NCCL, recorded by torch.profiler alone on every rank:

- `even`: all ranks do the same.
- `slow_gpu`: rank 2 computes more in each step, so the others wait for it in the gradients' all-reduces.
- `slow_host`: rank 1 sleeps on the host at the start of each step.
- `one_step`: rank 3 sleeps once, in the fifth recorded step.
- `groups`: the ranks also reduce in pairs, (0, 1) and (2, 3), and rank 3 is slow before its pair does: rank 2 waits for
  it there, and the others in the all-reduces of all.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WARM_UP, STEPS = 4, 8
WIDTH, DEPTH, BATCH = 2048, 6, 512
LATE_STEP = 4
VARIANTS = ("even", "slow_gpu", "slow_host", "one_step", "groups")


def extra_compute(device: torch.device, rounds: int) -> None:
    a = torch.ones(2048, 2048, device=device)
    for _ in range(rounds):
        a = a @ a * 1e-4


def step(variant: str, rank: int, number: int, model: nn.Module, batch: torch.Tensor, pair: dist.ProcessGroup) -> None:
    if variant == "slow_host" and rank == 1:
        time.sleep(0.004)
    if variant == "one_step" and rank == 3 and number == LATE_STEP:
        time.sleep(0.02)
    if variant == "slow_gpu" and rank == 2:
        extra_compute(batch.device, 6)
    out = model(batch)
    if variant == "groups":
        if rank == 3:
            extra_compute(batch.device, 6)
        shared = out.detach().sum(0)
        dist.all_reduce(shared, group=pair)
    out.square().mean().backward()


def train(rank: int, ranks: int, variant: str, out: str) -> None:
    """One rank's process."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29533", RANK=str(rank), WORLD_SIZE=str(ranks))
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo", rank=rank, world_size=ranks)
    pairs = [dist.new_group([number, number + 1]) for number in range(0, ranks, 2)]
    torch.manual_seed(0)
    layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    wrap: Callable[..., nn.Module] = DistributedDataParallel
    model = wrap(nn.Sequential(*layers).to(device), device_ids=[rank] if cuda else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    batch = torch.randn(BATCH, WIDTH, device=device)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if cuda:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    # The profiler's own start takes a while; all begin the steps that are recorded together.
    with torch.profiler.profile(
        activities=activities,
        schedule=torch.profiler.schedule(wait=WARM_UP, warmup=1, active=STEPS, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(str(Path(out, variant, f"rank{rank}.json.gz"))),
    ) as profiler:
        for number in range(-WARM_UP - 1, STEPS):
            step(variant, rank, number, model, batch, pairs[rank // 2])
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if number == -1 and cuda:
                torch.cuda.synchronize()
                dist.barrier()
            profiler.step()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--only", choices=VARIANTS)
    options = parser.parse_args()
    for variant in [options.only] if options.only else VARIANTS:
        (options.out / variant).mkdir(parents=True, exist_ok=True)
        spawn = multiprocessing.get_context("spawn")
        ranks = [
            spawn.Process(target=train, args=(rank, options.ranks, variant, str(options.out)))
            for rank in range(options.ranks)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
            if rank.exitcode:
                raise SystemExit(f"a rank of {variant} failed")


if __name__ == "__main__":
    main()
