"""Training of residual perceptrons with `torch.compile`: small kernels, fused, but launched separately.

Edit: `reduced` compiles with `mode="reduce-overhead"`, which replays CUDA graphs.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tests.programs.plain.options import options

o = options("reduced")


class ResidualMlp(nn.Module):
    """A residual perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = hidden + self.down(functional.gelu(self.up(self.norm(hidden))))
        return result


WIDTH = o.size(256, 8)
model = nn.Sequential(*(ResidualMlp(WIDTH) for _ in range(o.size(12, 2)))).to(o.device)
mode = "reduce-overhead" if "reduced" in o.edits and o.cuda else None
fast = torch.compile(model, backend="inductor" if o.cuda else "eager", mode=mode)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
batches = torch.randn(16, o.size(256, 8), WIDTH, device=o.device)
loss = torch.zeros(())
for number in range(o.steps):
    loss = (fast(batches[number % 16]) - 1).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"{loss.item():.6f}")
