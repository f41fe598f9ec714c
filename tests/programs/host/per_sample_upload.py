"""Training that copies each sample to the GPU by itself.

Fixed: samples are put together on the CPU, in pinned memory, and copied at once.
"""

from __future__ import annotations

import torch
from torch import nn

from tests.programs.host.options import PlantedTimer, network, options

o = options()
WIDTH = o.size(2048, 16)
model = nn.Sequential(network(o))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
samples = [torch.randn(WIDTH) for _ in range(o.size(1024, 8))]
together = torch.stack(samples).pin_memory() if o.cuda else torch.stack(samples)
planted = PlantedTimer(o)
total = 0.0
for _ in planted.steps():
    if planted.fixed:
        batch = together.to(o.device, non_blocking=True)
    else:
        with planted:
            batch = torch.stack([sample.to(o.device) for sample in samples])  # planted
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    total += loss.item()
