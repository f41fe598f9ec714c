"""`lstm` with edits."""

from __future__ import annotations

import torch
from torch.nn import functional

from tests.programs.trials.by_hand.edits import fused, graphed
from tests.programs.trials.models import Cells
from tests.programs.trials.options import Clock, options

o = options(steps=600, edits=("graph", "fused"))
clock = Clock(o)
LENGTH, BATCH, INPUTS = o.size(12, 4), o.size(64, 2), o.size(32, 4)

series = torch.randn(LENGTH + 1, BATCH, INPUTS, device=o.device)
model = Cells(INPUTS, o.size(256, 8)).to(o.device)
graphed(o, model, series[:-1])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, **fused(o))
for _ in range(o.steps):
    loss = functional.mse_loss(model(series[:-1]), series[1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    clock.step()
print(f"{loss.item():.6f}")
