"""Training of a vision transformer on photos that the training process itself decodes."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from tests.programs.trials.options import Clock, options
from tests.programs.trials.pictures import Pictures, vision_transformer

o = options(steps=200)
clock = Clock(o)
BATCH = o.size(48, 2)

pictures = Pictures(o.steps * BATCH, side=o.size(192, 16))
loader = DataLoader(pictures, batch_size=BATCH, shuffle=True)
model = vision_transformer(o, pictures.side).to(o.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for images, labels in loader:
    images = images.to(o.device)
    labels = labels.to(o.device)
    with torch.autocast(o.device, dtype=torch.bfloat16):
        loss = model(pixel_values=images, labels=labels).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    clock.step()
print(f"{loss.item():.6f}")
