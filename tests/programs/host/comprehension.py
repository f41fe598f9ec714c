"""Training that weights each sample by its norm, which a list comprehension computes over lists of numbers."""

from __future__ import annotations

import random

import torch

from tests.programs.host.options import PlantedTimer, network, options, rows

o = options()
model, batch = network(o), rows(o)
samples = [[random.random() for _ in range(o.size(128, 8))] for _ in batch]
table = torch.tensor(samples, device=o.device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
planted = PlantedTimer(o)
total = 0.0
for _ in planted.steps():
    if planted.fixed:
        weights = table.square().sum(1).sqrt()
    else:
        with planted:
            norms = [sum(value * value for value in sample) ** 0.5 for sample in samples]  # planted
        weights = torch.tensor(norms, device=o.device)
    loss = (model(batch).square().mean(1) * weights).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    total += loss.item()
