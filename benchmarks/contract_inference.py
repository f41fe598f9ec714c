"""Programs of `contract_programs` that train nothing."""

from __future__ import annotations

import math

import torch

from benchmarks.contract_variants import DEVICE, MutationVariant, Step, gpu, host


def activations(variant: MutationVariant) -> Step:
    """A chain of layers whose activations are downloaded during the forward and uploaded ahead of the backward."""
    rows, width, depth = variant.rows(4096), variant.width(1024), 6
    weights = [torch.randn(width, width, device=DEVICE) / math.sqrt(width) for _ in range(depth)]
    pinned = not variant.has("pageable")
    kept = [host(rows, width, pinned=pinned) for _ in range(depth)]
    back = [torch.empty(rows, width, device=DEVICE) for _ in range(depth)]
    hidden = [torch.randn(rows, width, device=DEVICE) for _ in range(depth + 1)]
    compute = gpu.current_stream()
    downloads = compute if variant.has("dropped") else gpu.Stream()
    uploads = gpu.Stream()

    def step() -> None:
        for number, weight in enumerate(weights):
            torch.mm(hidden[number], weight, out=hidden[number + 1])
            downloads.wait_stream(compute)
            with gpu.stream(downloads):
                kept[number].copy_(hidden[number + 1], non_blocking=True)  # download
            if variant.has("early"):
                compute.wait_stream(downloads)  # early
        uploads.wait_stream(downloads)
        arrived = []
        for number in reversed(range(depth)):
            if variant.has("depth0"):
                uploads.wait_stream(compute)  # depth0
            with gpu.stream(uploads):
                back[number].copy_(kept[number], non_blocking=not variant.has("blocking"))  # upload again
                arrived.append(uploads.record_event())
            if variant.has("depth0"):
                compute.wait_event(arrived[-1])
                torch.mm(back[number], weights[number].t(), out=hidden[number])
        if not variant.has("depth0"):
            for number, event in zip(reversed(range(depth)), arrived, strict=True):
                compute.wait_event(event)
                torch.mm(back[number], weights[number].t(), out=hidden[number])
        uploads.wait_stream(compute)
        downloads.wait_stream(compute)

    return step


def weights(variant: MutationVariant) -> Step:
    """Layers whose weights are uploaded one layer ahead, in three buffers."""
    rows, width, depth = variant.rows(2048), variant.width(1536), 8
    sources = [host(width, width, pinned=not variant.has("pageable")) for _ in range(depth)]
    buffers = [torch.empty(width, width, device=DEVICE) for _ in range(3)]
    data = torch.randn(rows, width, device=DEVICE)
    compute = gpu.current_stream()
    uploads = compute if variant.has("dropped") else gpu.Stream()
    ready, done = [gpu.Event() for _ in buffers], [gpu.Event() for _ in buffers]

    def fetch(layer: int) -> None:
        slot = layer % len(buffers)
        uploads.wait_event(done[slot])
        with gpu.stream(uploads):
            buffers[slot].copy_(sources[layer % depth], non_blocking=True)  # upload
            ready[slot].record(uploads)

    def step() -> None:
        uploads.wait_stream(compute)
        hidden = data
        if not variant.has("depth0"):
            fetch(0)
        for layer in range(depth):
            if variant.has("depth0"):
                uploads.wait_stream(compute)  # depth0
                fetch(layer)
            elif layer + 1 < depth:
                fetch(layer + 1)
            if variant.has("early"):
                compute.wait_stream(uploads)  # early
            compute.wait_event(ready[layer % len(buffers)])
            hidden = torch.tanh(torch.mm(hidden, buffers[layer % len(buffers)]))
            done[layer % len(buffers)].record(compute)
            if variant.has("synchronize"):
                gpu.synchronize()  # synchronize

    return step


def decode(variant: MutationVariant) -> Step:
    """Decoding of a token, with a layer's cache uploaded while the layer before computes; the token is read back."""
    rows, width, depth = variant.rows(2048), variant.width(1024), 6
    cache = [host(rows, width, pinned=not variant.has("pageable")) for _ in range(depth)]
    buffers = [torch.empty(rows, width, device=DEVICE) for _ in range(depth)]
    projections = [torch.randn(width, width, device=DEVICE) / math.sqrt(width) for _ in range(depth)]
    query = torch.randn(256, width, device=DEVICE)
    compute = gpu.current_stream()
    uploads = compute if variant.has("dropped") else gpu.Stream()

    def fetch(layer: int) -> None:
        with gpu.stream(uploads):
            buffers[layer].copy_(cache[layer], non_blocking=True)  # upload

    def step() -> None:
        uploads.wait_stream(compute)
        hidden = query
        fetch(0)
        for layer in range(depth):
            compute.wait_stream(uploads)
            if layer + 1 < depth and not variant.has("depth0"):
                fetch(layer + 1)
            scores = torch.softmax(hidden @ buffers[layer].t(), dim=-1)
            hidden = torch.tanh((scores @ buffers[layer]) @ projections[layer])
            if variant.has("depth0") and layer + 1 < depth:
                uploads.wait_stream(compute)  # depth0
                fetch(layer + 1)
            if variant.has("nonzero"):
                (hidden[0] > 0.5).nonzero()  # nonzero
        if variant.has("second item"):
            hidden.sum().item()  # second item
        hidden.argmax().item()  # token

    return step


def graph(variant: MutationVariant) -> Step:
    """A captured step, with the next input uploaded to a side buffer while the graph runs."""
    rows, width = variant.rows(4096), variant.width(1024)
    chain = [torch.randn(width, width, device=DEVICE) / math.sqrt(width) for _ in range(6)]
    source = host(rows, width, pinned=not variant.has("pageable"))
    static, staged = (torch.randn(rows, width, device=DEVICE) for _ in range(2))
    results = [torch.empty(rows, width, device=DEVICE) for _ in range(2)]
    compute = gpu.current_stream()
    copies = compute if variant.has("dropped") else gpu.Stream()

    def work() -> None:
        hidden = static
        for number, weight in enumerate(chain):
            torch.mm(hidden, weight, out=results[number % 2])
            hidden = results[number % 2]

    replay: Step = work
    if DEVICE == "cuda" and not variant.has("not captured"):
        work()
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            work()
        replay = captured.replay

    def step() -> None:
        compute.wait_stream(copies)
        static.copy_(staged)
        copies.wait_stream(compute)
        with gpu.stream(copies):
            staged.copy_(source, non_blocking=not variant.has("blocking"))  # upload
        if variant.has("early"):
            compute.wait_stream(copies)  # early
        replay()
        if variant.has("synchronize"):
            gpu.synchronize()  # synchronize

    return step


def answers(variant: MutationVariant) -> Step:
    """Batches that one stream uploads two steps ahead, and whose results another stream downloads."""
    rows, width = variant.rows(4096), variant.width(1024)
    chain = [torch.randn(width, width, device=DEVICE) / math.sqrt(width) for _ in range(6)]
    source = host(rows, width, pinned=not variant.has("pageable"))
    kept = host(rows, width)
    buffers = [torch.randn(rows, width, device=DEVICE) for _ in range(3)]
    results = [torch.empty(rows, width, device=DEVICE) for _ in range(2)]
    compute, downloads = gpu.current_stream(), gpu.Stream()
    uploads = compute if variant.has("dropped") else downloads if variant.has("merged") else gpu.Stream()
    filled, free = [gpu.Event() for _ in buffers], [gpu.Event() for _ in buffers]
    read = [gpu.Event() for _ in results]
    number = 0

    def fetch(slot: int) -> None:
        uploads.wait_event(free[slot])
        with gpu.stream(uploads):
            buffers[slot].copy_(source, non_blocking=True)  # upload
            filled[slot].record(uploads)

    def step() -> None:
        nonlocal number
        slot, turn = number % len(buffers), number % len(results)
        compute.wait_event(filled[slot])
        hidden = buffers[slot]
        for weight in chain[:-1]:
            hidden = torch.mm(hidden, weight)
        free[slot].record(compute)
        compute.wait_event(read[turn])
        torch.mm(hidden, chain[-1], out=results[turn])
        downloads.wait_stream(compute)
        with gpu.stream(downloads):
            kept.copy_(results[turn], non_blocking=not variant.has("blocking"))  # download
            read[turn].record(downloads)
        fetch((slot + 2) % len(buffers))
        if variant.has("early"):
            compute.wait_stream(uploads)  # early
        number += 1

    return step
