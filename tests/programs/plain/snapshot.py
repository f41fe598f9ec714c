"""Training that keeps the weights on the host after each step, to go back to the best of them.

Edit: `pinned` keeps them in pinned memory, and does not wait for the copies.
"""

from __future__ import annotations

import torch
from torch import nn

from tests.programs.plain.options import options

o = options("pinned")
WIDTH, BATCH = o.size(1536, 16), o.size(8192, 8)

model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU()) for _ in range(6))).to(o.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
batch = torch.randn(BATCH, WIDTH, device=o.device)
pinned = "pinned" in o.edits
kept = {name: torch.empty(value.shape, pin_memory=pinned and o.cuda) for name, value in model.state_dict().items()}
for _ in range(o.steps):
    with torch.autocast(o.device, dtype=torch.bfloat16):
        loss = (model(batch) - batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    for name, value in model.state_dict().items():
        kept[name].copy_(value, non_blocking=pinned)
if o.cuda:
    torch.cuda.synchronize()
print(f"{sum(value.sum().item() for value in kept.values()):.4f}")
