"""Training on photos of which each is cropped at random, by numbers from the state that the whole process shares.

With workers, other numbers are drawn, so the results differ.
"""

from __future__ import annotations

import torch
from torch.nn import functional
from torch.utils.data import DataLoader

from tests.programs.trials.models import convolutions
from tests.programs.trials.options import Clock, options
from tests.programs.trials.pictures import Cropped

o = options(steps=250)
clock = Clock(o)
BATCH = o.size(32, 2)

pictures = Cropped(o.steps * BATCH, side=o.size(160, 16))
loader = DataLoader(pictures, batch_size=BATCH, shuffle=True)
model = convolutions(o).to(o.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for images, labels in loader:
    images, labels = images.to(o.device), labels.to(o.device)
    loss = functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    clock.step()
print(f"{loss.item():.6f}")
