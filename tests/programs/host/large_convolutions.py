"""Training of a convolutional network on large batches: the GPU decides how long a step takes."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from tests.programs.host.options import PlantedTimer, options

o = options()
WIDTH, SIDE, BATCH = o.size(256, 4), o.size(56, 8), o.size(128, 2)
blocks = (
    nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False), nn.BatchNorm2d(WIDTH), nn.ReLU())
    for _ in range(o.size(8, 2))
)
model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, 10)).to(o.device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
images = torch.randn(BATCH, WIDTH, SIDE, SIDE, device=o.device)
labels = torch.randint(10, (BATCH,), device=o.device)
for _ in PlantedTimer(o).steps():
    with torch.autocast(o.device, dtype=torch.bfloat16):
        loss = functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
