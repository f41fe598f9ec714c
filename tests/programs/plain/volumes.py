"""Training of a three-dimensional convolutional network on volumes of 50 MB a batch, from pageable memory.

Edits: `pinned` pins them; `prefetched` copies the next batch during the step, on a stream of its own.
"""

from __future__ import annotations

import torch
from torch import nn

from tests.programs.plain.options import options

o = options("pinned", "prefetched")
SIDE, WIDTH, BATCH = o.size(128, 8), o.size(32, 4), o.size(6, 2)

batches = [torch.randn(BATCH, 1, SIDE, SIDE, SIDE) for _ in range(3)]
if "pinned" in o.edits and o.cuda:
    batches = [batch.pin_memory() for batch in batches]
model = nn.Sequential(
    nn.Conv3d(1, WIDTH, 3, stride=2, padding=1),
    *(nn.Sequential(nn.Conv3d(WIDTH, WIDTH, 3, padding=1), nn.BatchNorm3d(WIDTH), nn.ReLU()) for _ in range(2)),
    nn.AdaptiveAvgPool3d(1),
    nn.Flatten(),
    nn.Linear(WIDTH, 10),
).to(o.device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
ahead = "prefetched" in o.edits
side = torch.cuda.Stream() if o.cuda else None


def fetch(number: int) -> torch.Tensor:
    batch = batches[number % 3]
    with torch.cuda.stream(side if ahead else None):
        return batch.to(o.device, non_blocking=ahead)


following = fetch(0) if ahead else torch.zeros(())
loss = torch.zeros(())
for number in range(o.steps):
    if ahead:
        volumes = following
        if side is not None:
            torch.cuda.current_stream().wait_stream(side)
            volumes.record_stream(torch.cuda.current_stream())
        following = fetch(number + 1)
    else:
        volumes = fetch(number)
    loss = model(volumes).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"{loss.item():.6f}")
