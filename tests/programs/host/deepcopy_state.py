"""Training that keeps a deep copy of its state, two lists of figures, in each step."""

from __future__ import annotations

import copy

import torch

from tests.programs.host.options import PlantedTimer, network, options, rows

o = options()
model, batch = network(o), rows(o)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
epochs = range(o.size(40_000, 20))
state = {"best": 0.0, "losses": [1.0 / (1 + epoch) for epoch in epochs], "rates": [1e-3 for _ in epochs]}
kept = state
planted = PlantedTimer(o)
for _ in planted.steps():
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    state["best"] = max(state["best"], loss.item())
    if not planted.fixed:
        with planted:
            kept = copy.deepcopy(state)  # planted
