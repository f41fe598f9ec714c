"""Programs of `contract_programs` on several GPUs, whose collectives overlap; without GPUs, processes with gloo."""

import functools

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from benchmarks.contract_variants import DEVICE, MutationVariant, Step, layers


@functools.cache
def group(name: str) -> dist.ProcessGroup:
    """Return a communicator of all ranks besides the default one."""
    made: dist.ProcessGroup = dist.new_group(list(range(dist.get_world_size())), group_desc=name)
    return made


def replicas(variant: MutationVariant) -> Step:
    """Training with DistributedDataParallel, whose buckets of two layers are reduced beside the backward."""
    rows, width = variant.rows(4096), variant.width(1024)
    merged = variant.has("merged bucket")
    model = DistributedDataParallel(torch.nn.Sequential(*layers(8, width)), bucket_cap_mb=1000 if merged else 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    data = torch.randn(rows, width, device=DEVICE)

    def hook(_: object, bucket: GradBucket) -> Future[Tensor]:
        dist.all_reduce(bucket.buffer())  # blocking hook
        future: Future[Tensor] = Future()
        future.set_result(bucket.buffer())
        return future

    if variant.has("blocking hook"):
        model.register_comm_hook(None, hook)

    def step() -> None:
        loss = model(data).square().mean()
        optimizer.zero_grad()
        if variant.has("item"):
            loss.item()  # item
        loss.backward()  # merged bucket
        optimizer.step()

    return step


def buckets(variant: MutationVariant) -> Step:
    """Training that reduces each layer's gradient by an all-reduce of its own beside the backward."""
    rows, width = variant.rows(4096), variant.width(1024)
    linears = layers(6, width)
    model = torch.nn.Sequential(*linears)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    data = torch.randn(rows, width, device=DEVICE)
    pending: list[dist.Work] = []

    def send(parameter: Tensor) -> None:
        assert parameter.grad is not None
        if variant.has("item"):
            parameter.grad.sum().item()  # item
        work = dist.all_reduce(parameter.grad, async_op=True)  # bucket
        assert work is not None
        if variant.has("wait at once"):
            work.wait()  # wait at once
        else:
            pending.append(work)

    if not variant.has("merged bucket"):
        for layer in linears:
            layer.weight.register_post_accumulate_grad_hook(send)

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        if variant.has("merged bucket"):
            together = torch.cat([layer.weight.grad for layer in linears if layer.weight.grad is not None])
            dist.all_reduce(together)  # merged bucket
        for work in pending:
            work.wait()
        pending.clear()
        optimizer.step()

    return step


def two_collectives(variant: MutationVariant) -> Step:
    """A large all-reduce that is needed late, beside products and a small one that is needed at once."""
    rows, width = variant.rows(4096), variant.width(1024)
    small = None if variant.has("one communicator") else group("small")
    large = torch.zeros(variant.width(8192), 1024, device=DEVICE)
    weight = torch.randn(width, width, device=DEVICE) / width**0.5
    data = torch.randn(rows, width, device=DEVICE)

    def step() -> None:
        work = dist.all_reduce(large, async_op=True)
        assert work is not None
        if variant.has("wait at once"):
            work.wait()  # wait at once
        value = data @ weight
        if variant.has("item"):
            value.sum().item()  # item
        dist.all_reduce(value[:256], group=small)  # one communicator
        for _ in range(4):
            value = value @ weight
        if not variant.has("wait at once"):
            work.wait()

    return step
