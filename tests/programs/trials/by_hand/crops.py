"""`crops` with edits."""

from __future__ import annotations

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from tests.programs.trials.by_hand.edits import batches, graphed, loading, uploaded
from tests.programs.trials.models import convolutions
from tests.programs.trials.options import Clock, options
from tests.programs.trials.pictures import Cropped

o = options(steps=250, edits=("workers", "pin", "non-blocking", "prefetch", "graph"))
clock = Clock(o)
BATCH = o.size(32, 2)

pictures = Cropped(o.steps * BATCH, side=o.size(160, 16))
loader = DataLoader(pictures, batch_size=BATCH, shuffle=True, **loading(o))
model = convolutions(o).to(o.device)
graphed(o, model, torch.zeros(BATCH, 3, pictures.cropped, pictures.cropped, device=o.device))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for images, labels in batches(loader, o):
    images, labels = uploaded(images, o), uploaded(labels, o)
    loss = functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    clock.step()
print(f"{loss.item():.6f}")
