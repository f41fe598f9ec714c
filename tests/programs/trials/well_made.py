"""Training that leaves nothing to do: workers, pinned batches copied ahead, a fused optimizer and a compiled model."""

from __future__ import annotations

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from tests.programs.trials.by_hand.edits import ahead
from tests.programs.trials.models import Patches
from tests.programs.trials.options import Clock, options
from tests.programs.trials.pictures import Pictures

o = options(steps=400)
clock = Clock(o)
BATCH, SIDE, PATCH = o.size(64, 2), o.size(160, 16), o.size(16, 4)

loader = DataLoader(
    Pictures(o.steps * BATCH, SIDE),
    batch_size=BATCH,
    shuffle=True,
    num_workers=o.size(12, 1),
    persistent_workers=True,
    pin_memory=o.cuda,
)
model = Patches(PATCH, o.size(3072, 8), layers=o.size(12, 1)).to(o.device)
if o.cuda:
    model.compile()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
for images, labels in ahead(loader) if o.cuda else loader:
    with torch.autocast(o.device, dtype=torch.bfloat16):
        loss = functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    clock.step()
print(f"{loss.item():.6f}")
