"""Training of an autoencoder on photos that four workers decode in time; batches come from pageable memory.

Edit: `pinned` has the loader pin them, and the copies not waited for.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.programs.plain.options import options
from tests.programs.plain.photos import Photos

o = options("pinned")
SIDE, WIDTH, BATCH = o.size(192, 16), o.size(128, 4), o.size(24, 2)

pinned = "pinned" in o.edits
loader = DataLoader(Photos(SIDE, 1), batch_size=BATCH, num_workers=o.size(4, 1), pin_memory=pinned and o.cuda)
model = nn.Sequential(
    nn.Conv2d(3, WIDTH, 4, 2, 1),
    nn.GELU(),
    *(nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.GroupNorm(4, WIDTH), nn.GELU()) for _ in range(6)),
    nn.ConvTranspose2d(WIDTH, 3, 4, 2, 1),
).to(o.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
loss = torch.zeros(())
for _, batch in zip(range(o.steps), loader, strict=False):
    photos = batch.to(o.device, non_blocking=pinned)
    loss = (model(photos) - photos).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"{loss.item():.6f}")
