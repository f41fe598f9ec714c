"""Inference of a model that does not fit: each layer's weights come from pinned memory right before they are used.

Edit: `streams` copies them on a stream of their own, into two buffers in turn.
"""

from __future__ import annotations

import torch
from torch.nn import functional

import overlapscope
from tests.programs.plain.options import options

o = options("streams")
WIDTH, LAYERS, TOKENS = o.size(4096, 32), o.size(10, 3), o.size(12288, 8)

kind = torch.bfloat16 if o.cuda else torch.float32
weights = [(torch.randn(WIDTH, WIDTH) / WIDTH**0.5).to(kind) for _ in range(LAYERS)]
if o.cuda:
    weights = [weight.pin_memory() for weight in weights]
buffers = [torch.empty(WIDTH, WIDTH, dtype=kind, device=o.device) for _ in range(2)]
tokens = torch.randn(TOKENS, WIDTH, dtype=kind, device=o.device)
side = torch.cuda.Stream() if "streams" in o.edits and o.cuda else None
sent, used = ([torch.cuda.Event() for _ in buffers] if side else [] for _ in range(2))


def bring(number: int) -> torch.Tensor:
    """Return the weights of a layer, on their way."""
    buffer = buffers[number % 2]
    with torch.cuda.stream(side):
        if side is not None:
            side.wait_event(used[number % 2])
        buffer.copy_(weights[number % LAYERS], non_blocking=True)
        if side is not None:
            sent[number % 2].record()
    return buffer


hidden = tokens
with torch.no_grad():
    count = 0
    for _ in range(o.steps):
        hidden = tokens
        for _ in range(LAYERS):
            weight = bring(count)
            if side is not None:
                torch.cuda.current_stream().wait_event(sent[count % 2])
            hidden = functional.gelu(hidden @ weight) + hidden
            if side is not None:
                used[count % 2].record()
            count += 1
        overlapscope.step()
print(f"{hidden.float().square().mean().item():.6f}")
