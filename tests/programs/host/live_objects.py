"""Training with two million live objects, which Python's garbage collector looks through in each step.

Fixed: `gc.freeze()` exempts them.
"""

from __future__ import annotations

import gc

import torch

from tests.programs.host.options import PlantedTimer, network, options, rows

o = options()
model, batch = network(o), rows(o)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
records = [[number] for number in range(o.size(2_000_000, 20_000))]
planted = PlantedTimer(o, switch=lambda fixed: gc.freeze() if fixed else gc.unfreeze())
total = 0.0
for _ in planted.steps():
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    total += loss.item()
    with planted:
        gc.collect()  # planted
