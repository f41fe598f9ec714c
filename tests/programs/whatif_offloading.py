"""Programs of `whatif_pairs` that move weights, caches and states between the host and the GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.nn import functional

MIB = 1 << 20
Step = Callable[[], object]


def pipeline(way: str) -> Step:
    """Layers that live on the host go through the GPU and back: 8 of 24 MiB, 16 multiplications each."""
    pinned = way != "pageable"
    sources = [torch.full((12 * MIB,), 1.0, dtype=torch.float16, pin_memory=pinned) for _ in range(8)]
    results = [torch.empty(12 * MIB, dtype=torch.float16, pin_memory=pinned) for _ in sources]
    buffers = [torch.empty(12 * MIB, dtype=torch.float16, device="cuda") for _ in range(3)]

    def compute(buffer: torch.Tensor) -> None:
        for _ in range(16):
            buffer.mul_(1.0009765625)

    if way != "three_streams":

        def step() -> None:
            for number, (source, result) in enumerate(zip(sources, results, strict=True)):
                buffer = buffers[number % 3]
                buffer.copy_(source, non_blocking=True)
                compute(buffer)
                result.copy_(buffer, non_blocking=True)

        return step
    return in_and_out(sources, results, buffers, compute, torch.cuda.Stream(), torch.cuda.Stream())


def state_offload(way: str) -> Step:
    """An optimizer's state visits the GPU in 6 blocks of 40 MiB; both directions share a stream, or have one each."""
    sources = [torch.full((10 * MIB,), 1.0, pin_memory=True) for _ in range(6)]
    buffers = [torch.empty(10 * MIB, device="cuda") for _ in range(3)]
    gradient, scratch = torch.full((10 * MIB,), 1e-3, device="cuda"), torch.empty(10 * MIB, device="cuda")

    def update(state: torch.Tensor) -> None:
        for _ in range(3):
            torch.mul(gradient, gradient, out=scratch)
            state.mul_(0.999).add_(scratch, alpha=0.001)

    uploads = torch.cuda.Stream()
    downloads = torch.cuda.Stream() if way == "two_copy_streams" else uploads
    return in_and_out(sources, sources, buffers, update, uploads, downloads)


def in_and_out(
    sources: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
    buffers: Sequence[torch.Tensor],
    compute: Callable[[torch.Tensor], None],
    uploads: torch.cuda.Stream,
    downloads: torch.cuda.Stream,
) -> Step:
    """Each block is uploaded while the one before it is computed on, and downloaded while the next one is."""
    uploaded, computed, free = ([torch.cuda.Event() for _ in buffers] for _ in range(3))

    def upload(number: int) -> None:
        slot = number % len(buffers)
        uploads.wait_event(free[slot])
        with torch.cuda.stream(uploads):
            buffers[slot].copy_(sources[number % len(sources)], non_blocking=True)
            uploaded[slot].record()

    def step() -> None:
        current = torch.cuda.current_stream()
        upload(0)
        for number, result in enumerate(results):
            slot = number % len(buffers)
            if number + 1 < len(sources):
                upload(number + 1)
            current.wait_event(uploaded[slot])
            compute(buffers[slot])
            computed[slot].record()
            downloads.wait_event(computed[slot])
            with torch.cuda.stream(downloads):
                result.copy_(buffers[slot], non_blocking=True)
                free[slot].record()

    return step


class Attention(nn.Module):
    """A decoder's layer with its keys and values given."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

    def decode(self, hidden: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """One token for each sequence, and its own keys and values."""
        query, new = self.qkv(self.before(hidden)).split([hidden.shape[1], 2 * hidden.shape[1]], dim=1)
        query = query.view(len(hidden), self.heads, 1, -1)
        attention = functional.scaled_dot_product_attention(query, cache[0], cache[1])
        hidden = hidden + self.out(attention.reshape(hidden.shape))
        return hidden + self.down(functional.silu(self.up(self.between(hidden)))), new


def kv_decode(way: str) -> Step:
    """Decoding with the key/value cache on the host: 8 layers, 32 MiB each; new keys and values go back to the host."""
    batch, heads, width, context = 8, 16, 2048, 512
    layers = [Attention(width, heads).half().cuda() for _ in range(8)]
    shape = (2, batch, heads, context, width // heads)
    caches = [torch.randn(shape, dtype=torch.float16).pin_memory() for _ in layers]
    stored = [torch.empty(batch, 2 * width, dtype=torch.float16, pin_memory=True) for _ in layers]
    buffers = [torch.empty(shape, dtype=torch.float16, device="cuda") for _ in range(2)]
    embedding = torch.randn(1000, width, dtype=torch.float16, device="cuda")
    token = torch.zeros(batch, dtype=torch.int64, device="cuda")

    @torch.no_grad()
    def on_demand() -> None:
        hidden = embedding[token]
        for layer, cache, store in zip(layers, caches, stored, strict=True):
            buffers[0].copy_(cache, non_blocking=True)
            hidden, new = layer.decode(hidden, buffers[0])
            store.copy_(new.contiguous(), non_blocking=True)
        torch.argmax(hidden @ embedding.t(), dim=1, out=token)

    loads, stores = torch.cuda.Stream(), torch.cuda.Stream()
    loaded, used = ([torch.cuda.Event() for _ in buffers] for _ in range(2))
    turn = 0

    def fetch(number: int, slot: int) -> None:
        loads.wait_event(used[slot])
        with torch.cuda.stream(loads):
            buffers[slot].copy_(caches[number % len(caches)], non_blocking=True)
            loaded[slot].record()

    @torch.no_grad()
    def prefetch() -> None:
        nonlocal turn
        current = torch.cuda.current_stream()
        hidden = embedding[token]
        for number, (layer, store) in enumerate(zip(layers, stored, strict=True)):
            slot = turn % 2
            fetch(number + 1, 1 - slot)
            current.wait_event(loaded[slot])
            hidden, new = layer.decode(hidden, buffers[slot])
            new = new.contiguous()
            used[slot].record()
            stores.wait_stream(current)
            with torch.cuda.stream(stores):
                store.copy_(new, non_blocking=True)
            new.record_stream(stores)
            turn += 1
        torch.argmax(hidden @ embedding.t(), dim=1, out=token)

    if way == "on_demand":
        return on_demand
    fetch(0, 0)
    return prefetch


def weight_offload(way: str) -> Step:
    """A transformer whose weights stay on the host: 6 layers of 96 MiB in 4 tensors, each uploaded for its turn."""
    width, heads, batch, length = 2048, 16, 8, 1024
    shapes = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    host = [[(0.02 * torch.randn(shape)).half().pin_memory() for shape in shapes] for _ in range(6)]
    slots = [[torch.empty(shape, dtype=torch.float16, device="cuda") for shape in shapes] for _ in range(2)]
    tokens = torch.randn(batch, length, width, dtype=torch.float16, device="cuda")

    def forward(hidden: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
        qkv, out, up, down = weights
        normed = functional.layer_norm(hidden, (width,))
        split = functional.linear(normed, qkv).view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        attention = functional.scaled_dot_product_attention(split[0], split[1], split[2], is_causal=True)
        hidden = hidden + functional.linear(attention.transpose(1, 2).reshape(hidden.shape), out)
        inner = functional.gelu(functional.linear(functional.layer_norm(hidden, (width,)), up))
        result: torch.Tensor = hidden + functional.linear(inner, down)
        return result

    def upload(number: int, slot: int) -> None:
        for target, source in zip(slots[slot], host[number % len(host)], strict=True):
            target.copy_(source, non_blocking=True)

    @torch.no_grad()
    def layer_by_layer() -> torch.Tensor:
        hidden = tokens
        for number in range(len(host)):
            upload(number, 0)
            hidden = forward(hidden, slots[0])
        return hidden

    side = torch.cuda.Stream()
    uploaded, used = ([torch.cuda.Event() for _ in slots] for _ in range(2))

    def ahead(number: int) -> None:
        slot = number % 2
        side.wait_event(used[slot])
        with torch.cuda.stream(side):
            upload(number, slot)
            uploaded[slot].record()

    @torch.no_grad()
    def prefetch() -> torch.Tensor:
        hidden, current = tokens, torch.cuda.current_stream()
        for number in range(len(host)):
            ahead(number + 1)
            current.wait_event(uploaded[number % 2])
            hidden = forward(hidden, slots[number % 2])
            used[number % 2].record()
        return hidden

    if way == "layer_by_layer":
        return layer_by_layer
    ahead(0)
    return prefetch
