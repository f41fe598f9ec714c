"""Training of a ranker with an embedding table, on large batches that lie in pageable memory."""

from __future__ import annotations

import torch
from torch.nn import functional

from tests.programs.trials.models import Ranker
from tests.programs.trials.options import Clock, options

o = options(steps=300)
clock = Clock(o)
BATCH, CATEGORIES, NUMBERS = o.size(16384, 16), o.size(24, 3), o.size(256, 8)
ROWS = o.size(1_000_000, 100)

batches = [
    (torch.randint(ROWS, (BATCH, CATEGORIES)), torch.rand(BATCH, NUMBERS), torch.rand(BATCH).round()) for _ in range(8)
]
model = Ranker(CATEGORIES, NUMBERS, ROWS, o.size(64, 4)).to(o.device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for number in range(o.steps):
    categories, numbers, clicks = batches[number % 8]
    categories = categories.to(o.device)
    numbers = numbers.to(o.device)
    clicks = clicks.to(o.device)
    loss = functional.binary_cross_entropy_with_logits(model(categories, numbers), clicks)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    clock.step()
print(f"{loss.item():.6f}")
