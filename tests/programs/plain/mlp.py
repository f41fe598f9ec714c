"""Training of a large perceptron on resident data: the GPU is always busy. The loss is read after each step.

Edit: `late` reads the losses when the training is over.
"""

from __future__ import annotations

import torch
from torch import nn

from tests.programs.plain.options import options

o = options("late")
WIDTH, BATCH = o.size(6144, 16), o.size(8192, 8)

kind = torch.bfloat16 if o.cuda else torch.float32
model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(6))).to(o.device, kind)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
batch = torch.randn(BATCH, WIDTH, device=o.device, dtype=kind)
losses: list[torch.Tensor | float] = []
for _ in range(o.steps):
    loss = (model(batch) - batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach() if "late" in o.edits else loss.item())
print(f"{sum(float(loss) for loss in losses):.6f}")
