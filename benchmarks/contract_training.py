"""Programs of `contract_programs` that train."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks.contract_variants import DEVICE, MutationVariant, Step, gpu, host, layers


def prefetch(variant: MutationVariant) -> Step:
    """Training on batches that a side stream uploads one step ahead, in two buffers that take turns."""
    rows, width = variant.rows(4096), variant.width(1024)
    model = torch.nn.Sequential(*layers(6, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    source = host(rows, width, pinned=not variant.has("pageable"))
    buffers = [torch.empty(rows, width, device=DEVICE) for _ in range(2)]
    compute = gpu.current_stream()
    copies = compute if variant.has("dropped") else gpu.Stream()
    filled, free = [gpu.Event() for _ in buffers], [gpu.Event() for _ in buffers]
    slot = 1

    def fill(number: int) -> None:
        copies.wait_event(free[number])
        with gpu.stream(copies):
            buffers[number].copy_(source, non_blocking=not variant.has("blocking"))  # upload
            filled[number].record(copies)

    def step() -> None:
        nonlocal slot
        slot = 0 if variant.has("depth0") else 1 - slot
        if variant.has("depth0"):
            fill(slot)
        elif variant.has("early"):
            fill(1 - slot)
            compute.wait_stream(copies)  # early
        else:
            fill(1 - slot)
        compute.wait_event(filled[slot])
        loss = model(buffers[slot]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        free[slot].record(compute)
        if variant.has("item"):
            loss.item()  # item
        if variant.has("print"):
            str(loss)  # print
        if variant.has("synchronize"):
            gpu.synchronize()  # synchronize

    fill(0)
    return step


def gradients(variant: MutationVariant) -> Step:
    """Training whose gradients go to the host in a bucket for each layer, while the backward goes on."""
    rows, width, depth = variant.rows(4096), variant.width(1024), 6
    linears = layers(depth, width)
    model = torch.nn.Sequential(*linears)
    data = torch.randn(rows, width, device=DEVICE)
    pinned = not variant.has("pageable")
    parts = [host(width, width, pinned=pinned) for _ in range(depth)]
    whole = host(depth * width, width, pinned=pinned)
    compute = gpu.current_stream()
    downloads = compute if variant.has("dropped") else gpu.Stream()

    def send(number: int) -> Callable[[Tensor], None]:
        def hook(parameter: Tensor) -> None:
            assert parameter.grad is not None
            downloads.wait_stream(gpu.current_stream())
            with gpu.stream(downloads):
                parts[number].copy_(parameter.grad, non_blocking=not variant.has("blocking"))  # bucket
            if variant.has("early"):
                gpu.current_stream().wait_stream(downloads)  # early

        return hook

    if not variant.has("merged bucket"):
        for number, layer in enumerate(linears):
            layer.weight.register_post_accumulate_grad_hook(send(number))

    def step() -> None:
        compute.wait_stream(downloads)
        model.zero_grad()
        model(data).square().mean().backward()
        if variant.has("merged bucket"):
            together = torch.cat([layer.weight.grad for layer in linears if layer.weight.grad is not None])
            downloads.wait_stream(compute)
            with gpu.stream(downloads):
                whole.copy_(together, non_blocking=True)  # merged bucket
        elif variant.has("item"):
            linears[0].weight.sum().item()  # item

    return step


def predictions(variant: MutationVariant) -> Step:
    """Training that downloads its predictions beside the backward, and looks at them in the next step."""
    rows, width = variant.rows(8192), variant.width(1024)
    model = torch.nn.Sequential(*layers(4, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    data = torch.randn(rows, width, device=DEVICE)
    kept = host(rows, width, pinned=not variant.has("pageable"))
    compute = gpu.current_stream()
    downloads = compute if variant.has("dropped") else gpu.Stream()

    def step() -> None:
        predicted = model(data)
        downloads.wait_stream(compute)
        if variant.has("before the backward"):
            predicted.detach().cpu()  # before the backward
        else:
            with gpu.stream(downloads):
                kept.copy_(predicted.detach(), non_blocking=True)  # download
        if variant.has("early"):
            compute.wait_stream(downloads)  # early
        loss = predicted.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if variant.has("list"):
            loss.detach().reshape(1).tolist()  # list
        compute.wait_stream(downloads)

    return step


class Samples(torch.utils.data.Dataset[Tensor]):
    """Samples that cost nothing to make."""

    def __init__(self, width: int) -> None:
        self._sample = torch.randn(width)

    def __len__(self) -> int:
        return 10**7

    def __getitem__(self, number: int) -> Tensor:
        return self._sample


def loader(variant: MutationVariant) -> Step:
    """Training on batches of a DataLoader with a worker and pinned memory, uploaded one step ahead."""
    rows, width = variant.rows(1024), variant.width(4096)
    model = torch.nn.Sequential(*layers(3, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    batches: Iterator[Tensor] = iter(
        torch.utils.data.DataLoader(
            Samples(width),
            batch_size=rows,
            num_workers=0 if variant.has("no workers") else 1,
            pin_memory=DEVICE == "cuda" and not variant.has("not pinned"),
        )
    )
    compute, copies = gpu.current_stream(), gpu.Stream()
    following: Tensor | None = None
    history: list[Tensor] = []

    def fetch() -> Tensor:
        batch = next(batches)
        if variant.has("pin in loop"):
            batch = batch.clone().pin_memory() if DEVICE == "cuda" else batch  # pin in loop
        with gpu.stream(copies):
            return batch.to(DEVICE, non_blocking=not variant.has("blocking"))  # upload

    def step() -> None:
        nonlocal following
        compute.wait_stream(copies)
        batch = fetch() if following is None else following
        following = fetch()
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if DEVICE == "cuda":
            batch.record_stream(compute)
        if variant.has("growing"):
            history.append(torch.empty_like(batch))  # growing
        if variant.has("empty cache") and DEVICE == "cuda":
            torch.cuda.empty_cache()  # empty cache

    return step
