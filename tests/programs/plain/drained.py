"""Training of a small vision transformer on large photos: twelve workers decode them more slowly than it uses them up.

Edit: `resized` has the photos made small once, beforehand.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.programs.plain.options import options
from tests.programs.plain.photos import Photos

o = options("resized")
SIDE, WIDTH, PATCH = o.size(224, 16), o.size(384, 16), 16 if o.cuda else 4

photos = Photos(SIDE, 3, resized="resized" in o.edits)
loader = DataLoader(photos, batch_size=o.size(16, 2), num_workers=o.size(12, 2))
layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True)
patches = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
layers = nn.TransformerEncoder(layer, o.size(6, 1), enable_nested_tensor=False)
model = nn.ModuleList((patches, layers, nn.Linear(WIDTH, 100))).to(o.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
loss = torch.zeros(())
for _, batch in zip(range(o.steps), loader, strict=False):
    with torch.autocast(o.device, dtype=torch.bfloat16):
        tokens = patches(batch.to(o.device)).flatten(2).transpose(1, 2)
        loss = model[2](layers(tokens).mean(1)).float().square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"{loss.item():.6f}")
