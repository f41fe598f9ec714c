"""`vit` with edits."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from tests.programs.trials.by_hand.edits import batches, fused, graphed, loading, uploaded
from tests.programs.trials.options import Clock, options
from tests.programs.trials.pictures import Pictures, vision_transformer

o = options(steps=200, edits=("workers", "pin", "non-blocking", "prefetch", "graph", "fused"))
clock = Clock(o)
BATCH = o.size(48, 2)

pictures = Pictures(o.steps * BATCH, side=o.size(192, 16))
loader = DataLoader(pictures, batch_size=BATCH, shuffle=True, **loading(o))
model = vision_transformer(o, pictures.side).to(o.device)
graphed(o, model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **fused(o))
for images, labels in batches(loader, o):
    images = uploaded(images, o)
    labels = uploaded(labels, o)
    with torch.autocast(o.device, dtype=torch.bfloat16):
        loss = model(pixel_values=images, labels=labels).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    clock.step()
print(f"{loss.item():.6f}")
