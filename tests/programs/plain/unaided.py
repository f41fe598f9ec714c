"""Training of a convolutional network on photos that the training process itself decodes.

Edit: `workers` has eight processes decode them.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.programs.plain.options import options
from tests.programs.plain.photos import Photos

o = options("workers")
SIDE, WIDTH = o.size(192, 16), o.size(96, 4)

workers = o.size(8, 1) if "workers" in o.edits else 0
loader = DataLoader(Photos(SIDE, 1), batch_size=o.size(16, 2), num_workers=workers)
model = nn.Sequential(
    nn.Conv2d(3, WIDTH, 7, stride=2, padding=3),
    *(nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH), nn.ReLU()) for _ in range(5)),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(WIDTH, 100),
).to(o.device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
loss = torch.zeros(())
for _, photos in zip(range(o.steps), loader, strict=False):
    loss = model(photos.to(o.device)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"{loss.item():.6f}")
