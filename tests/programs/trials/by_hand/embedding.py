"""`embedding` with edits."""

from __future__ import annotations

import torch
from torch.nn import functional

from tests.programs.trials.by_hand.edits import fused, graphed, uploaded
from tests.programs.trials.models import Ranker
from tests.programs.trials.options import Clock, options

o = options(steps=300, edits=("pin", "non-blocking", "graph", "fused"))
clock = Clock(o)
BATCH, CATEGORIES, NUMBERS = o.size(16384, 16), o.size(24, 3), o.size(256, 8)
ROWS = o.size(1_000_000, 100)

batches = [
    (torch.randint(ROWS, (BATCH, CATEGORIES)), torch.rand(BATCH, NUMBERS), torch.rand(BATCH).round()) for _ in range(8)
]
model = Ranker(CATEGORIES, NUMBERS, ROWS, o.size(64, 4)).to(o.device)
graphed(o, model, *(part.to(o.device) for part in batches[0][:2]))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, **fused(o))
for number in range(o.steps):
    categories, numbers, clicks = (uploaded(part, o) for part in batches[number % 8])
    loss = functional.binary_cross_entropy_with_logits(model(categories, numbers), clicks)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    clock.step()
print(f"{loss.item():.6f}")
