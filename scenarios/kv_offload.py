"""Decoding with the key/value cache in host memory: each layer's cache is fetched when needed, or a layer ahead.

Beyond the published experiments, as inference engines do it: the cache of a long context does not fit, so it stays in
host memory, and every layer of every token has its keys and values copied to the GPU first. `on_demand` copies them on
the compute stream, `prefetch` one layer ahead on a separate stream into two buffers in turn, and `pageable` is
`on_demand` without pinned memory. The new token's own keys and values are left out.

Look for: decoding reads each weight once and computes little, so the link limits the speed and nearly all copying
exceeds the compute (`no-compute`). Prefetching hides the compute, not the copies, and no order is better
(`overlap-achieved`). The only improvement left is to move less. Results are compared with those of a cache on the GPU.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn import functional

from overlapscope.plugins.laboratory.experiment import Experiment, Program, Truth, Variant, WrongResults

TRIES = 5

Decode = Callable[[], torch.Tensor]


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Weights of a transformer layer. Each row of a weight makes an output of its input's scale."""

    query: torch.Tensor
    output: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor

    def decode(self, hidden: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        """Decode one token.

        Args:
            hidden: Of shape (batch, width).
            cache: Keys and values, of shape (2, batch, heads, context, width / heads).
        """
        _, batch, heads, _, head_width = cache.shape
        query = normed(hidden) @ self.query
        attention = functional.scaled_dot_product_attention(query.view(batch, heads, 1, head_width), cache[0], cache[1])
        hidden = hidden + attention.reshape(hidden.shape) @ self.output
        return hidden + functional.gelu(normed(hidden) @ self.up) @ self.down


def normed(hidden: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(hidden, hidden.shape[-1:])


def weight(rows: int, columns: int) -> torch.Tensor:
    return torch.randn(rows, columns, device="cuda", dtype=torch.float16) / math.sqrt(rows)


def on_demand(layers: list[LayerWeights], caches: list[torch.Tensor], token: torch.Tensor) -> Decode:
    """Copy each cache just before its layer, on the same stream."""
    buffer = torch.empty_like(caches[0], device="cuda")

    @torch.no_grad()
    def step() -> torch.Tensor:
        hidden = token
        for layer, cache in zip(layers, caches, strict=True):
            buffer.copy_(cache, non_blocking=True)
            hidden = layer.decode(hidden, buffer)
        return hidden

    return step


def prefetch(layers: list[LayerWeights], caches: list[torch.Tensor], token: torch.Tensor) -> Decode:
    """Copy the next layer's cache while a layer computes.

    After the last layer comes the first layer of the next token.
    """
    copies = torch.cuda.Stream()
    buffers = [torch.empty_like(caches[0], device="cuda") for _ in range(2)]
    fetched, used = ([torch.cuda.Event() for _ in buffers] for _ in range(2))
    turn = 0

    def fetch(number: int, slot: int) -> None:
        copies.wait_event(used[slot])  # No op uses the buffer any more.
        with torch.cuda.stream(copies):
            buffers[slot].copy_(caches[number], non_blocking=True)
            fetched[slot].record()

    @torch.no_grad()
    def step() -> torch.Tensor:
        nonlocal turn
        current, hidden = torch.cuda.current_stream(), token
        for number, layer in enumerate(layers):
            slot, other = turn % 2, (turn + 1) % 2
            fetch((number + 1) % len(layers), other)
            current.wait_event(fetched[slot])
            hidden = layer.decode(hidden, buffers[slot])
            used[slot].record()
            turn += 1
        return hidden

    fetch(0, 0)
    return step


def prepare(
    layers: int,
    batch: int,
    heads: int,
    head_width: int,
    context: int,
    way: Literal["on_demand", "prefetch"],
    pinned: bool = True,
) -> Program:
    width = heads * head_width
    weights = [
        LayerWeights(weight(width, width), weight(width, width), weight(width, 4 * width), weight(4 * width, width))
        for _ in range(layers)
    ]
    caches = []
    for _ in range(layers):
        # Every position has the same value, which attention returns exactly, so that a wrong cache is certain to show.
        cache = torch.empty(2, batch, heads, context, head_width, dtype=torch.float16, pin_memory=pinned)
        caches.append(cache.copy_(torch.randn(2, batch, heads, 1, head_width)))
    token = torch.randn(batch, width, device="cuda", dtype=torch.float16)
    torch.cuda.synchronize()
    step = (on_demand if way == "on_demand" else prefetch)(weights, caches, token)

    @torch.no_grad()
    def count_wrong() -> WrongResults:
        wrong = 0
        for _ in range(TRIES):
            token.normal_()
            expected = token
            for layer, cache in zip(weights, caches, strict=True):
                expected = layer.decode(expected, cache.cuda())
            wrong += not torch.allclose(step(), expected, rtol=1e-2, atol=1e-2)
        return WrongResults(wrong, TRIES)

    return Program(step, count_wrong=count_wrong)


EXPERIMENT = Experiment(
    name="kv_offload",
    title="Key/value cache in host memory",
    shows="Fetching a layer ahead hides all compute there is, and the link still sets the pace.",
    sizes={
        "small": {"layers": 8, "batch": 2, "heads": 16, "head_width": 64, "context": 2048},
        "paper": {"layers": 32, "batch": 4, "heads": 32, "head_width": 128, "context": 1024},
    },
    prepare=prepare,
    variants=(
        Variant(
            "on_demand",
            {"way": "on_demand"},
            shows="Copy and compute take turns on one stream.",
            # A layer reads its weights and its cache once from the GPU's memory. The cache comes over the link, which
            # is slower by a larger factor than weights are larger than caches.
            truth=Truth(
                exposed_copy="no-compute",
                hidden_copy_pct=(0.0, 1.0),
                findings=("same-stream",),
                no_findings=("pageable-memory", "overlap-achieved"),
            ),
            wrong_results="none",
        ),
        Variant(
            "prefetch",
            {"way": "prefetch"},
            shows="All compute runs beside copies, which is the best there is.",
            truth=Truth(
                exposed_copy="no-compute",
                hidden_copy_pct=(1.0, 60.0),
                findings=("overlap-achieved",),
                no_findings=("pageable-memory", "same-stream"),
            ),
            wrong_results="none",
        ),
        Variant(
            "pageable",
            {"way": "on_demand", "pinned": False},
            shows="Without pinned memory each copy blocks the host and takes longer.",
            truth=Truth(
                exposed_copy="pageable-memory",
                hidden_copy_pct=(0.0, 1.0),
                findings=("pageable-memory",),
                no_findings=("same-stream", "overlap-achieved"),
                least_share=0.99,
            ),
            wrong_results="none",
        ),
    ),
)

if __name__ == "__main__":
    from overlapscope.plugins.laboratory.experiment import main

    main(EXPERIMENT)
