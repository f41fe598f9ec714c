"""Training of a large perceptron in bfloat16: the GPU decides how long a step takes."""

from __future__ import annotations

import torch
from torch import nn

from tests.programs.host.options import PlantedTimer, options

o = options()
WIDTH = o.size(8192, 16)
model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(o.size(6, 2)))).to(o.device, torch.bfloat16)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
batch = torch.randn(o.size(4096, 4), WIDTH, device=o.device, dtype=torch.bfloat16)
for _ in PlantedTimer(o).steps():
    loss = model(batch).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
