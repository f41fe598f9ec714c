"""Training of a small convolutional network on images of 32 x 32 that lie on the GPU, eager.

Edit: `graph` captures the training step.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

import overlapscope
from tests.programs.plain.graphs import captured
from tests.programs.plain.options import options

o = options("graph")
WIDTH, BATCH, LAYERS = o.size(48, 4), 8, o.size(18, 3)

images = torch.randn(BATCH * 100, 3, 32, 32, device=o.device)
labels = torch.randint(10, (BATCH * 100,), device=o.device)
model = nn.Sequential(
    nn.Conv2d(3, WIDTH, 3, padding=1),
    *(nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.BatchNorm2d(WIDTH), nn.ReLU()) for _ in range(LAYERS)),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(WIDTH, 10),
).to(o.device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def train(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    loss = functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


graphed = "graph" in o.edits and o.cuda
if graphed:
    static_images, static_labels = images[:BATCH].clone(), labels[:BATCH].clone()
    replay = captured(lambda: train(static_images, static_labels))
loss = torch.zeros(())
for number in range(o.steps):
    place = slice(BATCH * (number % 100), BATCH * (number % 100 + 1))
    if graphed:
        static_images.copy_(images[place])
        static_labels.copy_(labels[place])
        replay()
    else:
        loss = train(images[place], labels[place])
    overlapscope.step()
print(f"{loss.item():.6f}")
