"""Training of 100 residual layers of width 128: the host can hardly launch them fast enough.

Edit: `graph` captures the training step.
"""

from __future__ import annotations

import torch
from torch import nn

import overlapscope
from tests.programs.plain.graphs import captured
from tests.programs.plain.options import options

o = options("graph")

layers = [nn.Linear(128, 128, device=o.device) for _ in range(o.size(100, 5))]
optimizer = torch.optim.SGD([weight for layer in layers for weight in layer.parameters()], lr=1e-3)
batch = torch.randn(64, 128, device=o.device)


def train() -> torch.Tensor:
    hidden = batch
    for layer in layers:
        hidden = hidden + 0.1 * torch.relu(layer(hidden))
    loss = hidden.square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


step = captured(train) if "graph" in o.edits and o.cuda else train
for _ in range(o.steps):
    step()
    overlapscope.step()
print(f"{sum(float(layer.weight.detach().sum()) for layer in layers):.4f}")
