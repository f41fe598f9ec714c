"""Programs with collectives for the hazard checker, on two or more GPUs: `torchrun --nproc-per-node 2 races.py`.

Rank 0 prints the races of each program as JSON: the names at the ends of both lines. Programs of `WRONG`
have one race, from `# first` to `# then`, and those of `RIGHT` have none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.plugins.hazards.programs import functional_calls, name_of, watched, world

N = 1 << 20


def ones(count: int = N) -> torch.Tensor:
    return torch.ones(count, device="cuda")


def read_before_wait() -> None:
    x = ones()
    work = dist.all_reduce(x, async_op=True)  # first
    x.sum()  # then
    _wait(work)


def written_before_wait() -> None:
    x, y = ones(), ones(N * dist.get_world_size())
    work = dist.all_gather_into_tensor(y, x, async_op=True)  # first
    x.zero_()  # then
    _wait(work)


def read_on_a_side_stream_after_wait() -> None:
    x, side = ones(), torch.cuda.Stream()
    _wait(dist.all_reduce(x, async_op=True))  # first
    with torch.cuda.stream(side):
        x.sum()  # then


def synchronous_and_read_on_a_side_stream() -> None:
    x, side = ones(), torch.cuda.Stream()
    dist.all_reduce(x)  # first
    with torch.cuda.stream(side):
        x.sum()  # then


def part_of_a_list_read_before_wait() -> None:
    x, parts = ones(), [ones() for _ in range(dist.get_world_size())]
    work = dist.all_gather(parts, x, async_op=True)  # first
    parts[-1].sum()  # then
    _wait(work)


def reduced_together_read_before_wait() -> None:
    x, y = ones(), ones()
    with _coalescing_manager(async_ops=True) as works:  # first
        dist.all_reduce(x)
        dist.all_reduce(y)
    y.sum()  # then
    works.wait()


def received_read_before_wait() -> None:
    x, y = ones(), ones()
    peer = dist.get_rank() ^ 1
    receive, send = dist.P2POp(dist.irecv, x, peer), dist.P2POp(dist.isend, y, peer)
    works = dist.batch_isend_irecv([receive, send])  # first
    x.sum()  # then
    for work in works:
        work.wait()


def functional_result_read_before_wait() -> None:
    x = ones()
    torch.ops._c10d_functional.all_reduce_.default(x, "sum", world().group_name)  # first
    x.sum()  # then
    torch.ops._c10d_functional.wait_tensor.default(x)


def bucket_read_before_wait() -> None:
    def hook(state: object, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        work = dist.all_reduce(bucket.buffer(), async_op=True)  # first
        bucket.buffer().sum()  # then
        assert work is not None
        return work.get_future().then(lambda future: future.value()[0])  # type: ignore[no-any-return]

    # DDP refuses other annotations than its own types, and so texts, which `from __future__ import annotations` makes.
    hook.__annotations__.clear()
    model = DistributedDataParallel(torch.nn.Linear(64, 64).cuda())
    model.register_comm_hook(None, hook)
    model(ones(64)[None]).sum().backward()


def every_collective_and_wait() -> None:
    _every_collective(asynchronous=True)
    _every_collective(asynchronous=False)
    dist.barrier()


def _every_collective(*, asynchronous: bool) -> None:
    size = dist.get_world_size()
    x, wide, parts = ones(), ones(N * size), [ones() for _ in range(size)]
    calls: list[Callable[[], dist.Work | None]] = [
        lambda: dist.all_reduce(x, async_op=asynchronous),
        lambda: dist.reduce(x, 0, async_op=asynchronous),
        lambda: dist.broadcast(x, 0, async_op=asynchronous),
        lambda: dist.all_gather(parts, x, async_op=asynchronous),
        lambda: dist.all_gather_into_tensor(wide, x, async_op=asynchronous),
        lambda: dist.reduce_scatter(x, parts, async_op=asynchronous),
        lambda: dist.reduce_scatter_tensor(x, wide, async_op=asynchronous),
        lambda: dist.all_to_all_single(wide, wide.clone(), async_op=asynchronous),
    ]
    for call in calls:
        torch._foreach_zero_([x, wide, *parts])
        work = call()
        if asynchronous:
            _wait(work)
        torch._foreach_norm([x, wide, *parts])


def two_collectives_at_once() -> None:
    group = dist.new_group(list(range(dist.get_world_size())))
    large, small = ones(16 * N), ones()
    work = dist.all_reduce(large, async_op=True)
    dist.all_reduce(small, group=group)
    small.sum()
    _wait(work)
    large.sum()


def messages() -> None:
    x, y = ones(), ones()
    peer = dist.get_rank() ^ 1
    for _ in range(3):
        receive, send = dist.P2POp(dist.irecv, x, peer), dist.P2POp(dist.isend, y, peer)
        for work in dist.batch_isend_irecv([receive, send]):
            work.wait()
        x.sum(), y.mul_(2)
        if dist.get_rank() % 2:
            dist.send(y, peer)
        else:
            dist.recv(x, peer)
        x.sum(), y.mul_(2)


def functional_collectives() -> None:
    x = ones()
    for call in functional_calls(x):
        y = call()
        x.sum()
        (y + 1).sum()
        x.zero_()


def polled() -> None:
    x, side = ones(), torch.cuda.Stream()
    work = dist.all_reduce(x, async_op=True)
    assert work is not None
    while not work.is_completed():
        pass
    with torch.cuda.stream(side):
        x.sum()


def data_parallel() -> None:
    _train(DistributedDataParallel(_model(), bucket_cap_mb=1))
    _train(DistributedDataParallel(_model(), bucket_cap_mb=1, gradient_as_bucket_view=True))


def sharded() -> None:
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    model = _model()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    _train(fully_shard(model, mesh=mesh))


def _model() -> torch.nn.Sequential:
    return torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda()


def _train(model: Any) -> None:
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(4):
        loss = model(torch.ones(64, 512, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    loss.item()


def _wait(work: dist.Work | None) -> None:
    assert work is not None
    work.wait()


WRONG: list[Callable[[], None]] = [
    read_before_wait,
    written_before_wait,
    read_on_a_side_stream_after_wait,
    synchronous_and_read_on_a_side_stream,
    part_of_a_list_read_before_wait,
    reduced_together_read_before_wait,
    received_read_before_wait,
    functional_result_read_before_wait,
    bucket_read_before_wait,
]
RIGHT: list[Callable[[], None]] = [
    every_collective_and_wait,
    two_collectives_at_once,
    messages,
    functional_collectives,
    polled,
    data_parallel,
    sharded,
]


def accused(program: Callable[[], None]) -> list[Any]:
    """Return both lines of each race by their names, and the checker's notes."""
    checker = watched(program)
    races = [[name_of(place.code) for place in (h.first, h.second)] for h in checker.hazards]
    return [*races, *checker.notes]


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    found = {program.__name__: accused(program) for program in (*WRONG, *RIGHT)}
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
