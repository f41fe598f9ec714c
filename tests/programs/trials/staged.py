"""Training on batches that are brought into one pinned buffer, each as soon as the one before it has been copied.

If the copy is not waited for, the buffer changes under it: the results are different, and there is a race.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from tests.programs.trials.models import convolutions
from tests.programs.trials.options import Clock, options

o = options(steps=300)
clock = Clock(o)
BATCH, SIDE = o.size(64, 4), o.size(128, 16)

batches = [torch.randn(BATCH, 3, SIDE, SIDE) for _ in range(8)]
labels = torch.randint(100, (BATCH,), device=o.device)
staging = torch.empty(BATCH, 3, SIDE, SIDE, pin_memory=o.cuda)
model = convolutions(o, layers=12).to(o.device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
for number in range(o.steps):
    staging.copy_(batches[number % 8])
    images = staging.to(o.device)
    loss = functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    clock.step()
print(f"{loss.item():.6f}")
