"""Training of 400 small tensors by AdamW, which updates one after the other.

Fixed: a fused AdamW.
"""

from __future__ import annotations

import torch
from torch import nn

from tests.programs.host.options import PlantedTimer, options

o = options()
WIDTH = o.size(128, 8)
model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(o.size(200, 4)))).to(o.device)
unfused, fused = (torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False, fused=fused) for fused in (False, True))
batch = torch.randn(32, WIDTH, device=o.device)
planted = PlantedTimer(o)
for _ in planted.steps():
    optimizer = fused if planted.fixed else unfused
    loss = model(batch).square().mean()
    loss.backward()
    with planted:
        optimizer.step()  # planted
    optimizer.zero_grad()
