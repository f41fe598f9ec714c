"""Programs of `contract_programs` that `torch.compile` compiles."""

from __future__ import annotations

import torch

from benchmarks.contract_variants import DEVICE, MutationVariant, Step, gpu, host


def compiled(variant: MutationVariant, mode: str = "default") -> Step:
    """Training of a compiled model on batches that a side stream uploads one step ahead."""
    torch.compiler.reset()  # Each recording compiles for its own shapes.
    rows, width = variant.rows(4096), variant.width(1024)
    parts = [part for _ in range(4) for part in (torch.nn.Linear(width, width), torch.nn.LayerNorm(width))]
    model = torch.nn.Sequential(*parts, torch.nn.GELU()).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    source = host(rows, width, pinned=not variant.has("pageable"))
    buffers = [torch.randn(rows, width, device=DEVICE) for _ in range(2)]
    compute = gpu.current_stream()
    copies = compute if variant.has("dropped") else gpu.Stream()
    filled, free = [gpu.Event() for _ in buffers], [gpu.Event() for _ in buffers]
    slot = 1

    @torch.compile(mode="default" if variant.has("not captured") else mode, dynamic=False)
    def mean_square(batch: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = model(batch)
        return result.square().mean()

    def fill(number: int) -> None:
        copies.wait_event(free[number])
        with gpu.stream(copies):
            buffers[number].copy_(source, non_blocking=not variant.has("blocking"))  # upload
            filled[number].record(copies)

    def step() -> None:
        nonlocal slot
        slot = 1 - slot
        fill(1 - slot)
        if variant.has("early"):
            compute.wait_stream(copies)  # early
        compute.wait_event(filled[slot])
        optimizer.zero_grad()
        loss = mean_square(buffers[slot])
        if variant.has("item"):
            loss.item()  # item
        loss.backward()
        optimizer.step()
        free[slot].record(compute)
        if variant.has("synchronize"):
            gpu.synchronize()  # synchronize

    fill(0)
    return step
