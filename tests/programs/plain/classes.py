"""Training of a classifier that reads the number of right answers for each of 40 classes after each step.

Edit: `together` reads them all at once.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tests.programs.plain.options import options

o = options("together")
CLASSES, BATCH = 40, o.size(1024, 64)

batch, labels = torch.randn(BATCH, 256, device=o.device), torch.randint(CLASSES, (BATCH,), device=o.device)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, CLASSES))
model.to(o.device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
seen, scores = [0] * CLASSES, torch.zeros(())
for _ in range(o.steps):
    scores = model(batch)
    functional.cross_entropy(scores, labels).backward()
    right = torch.zeros(CLASSES, device=o.device).index_add_(0, labels, (scores.argmax(1) == labels).float())
    counts = right.tolist() if "together" in o.edits else [value.item() for value in right]
    seen = [before + int(now) for before, now in zip(seen, counts, strict=True)]
    optimizer.step()
    optimizer.zero_grad()
print(sum(seen), f"{scores.sum().item():.4f}")
