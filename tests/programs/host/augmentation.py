"""Training whose data set augments images in Python; the DataLoader has no workers, so the main process does it.

Fixed: a worker for each CPU but one does it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.programs.host.options import PlantedTimer, network, options

o = options()
planted = PlantedTimer(o)
PIXELS = o.size(2048, 16)


class AugmentedImages(Dataset[torch.Tensor]):
    """Images of random pixels, mirrored and made brighter or darker."""

    def __init__(self) -> None:
        self._images = [random.randbytes(PIXELS) for _ in range(64)]

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, number: int) -> torch.Tensor:
        with planted:
            pixels = augmented(self._images[number % 64], random.uniform(0.7, 1.4))
        return torch.frombuffer(pixels, dtype=torch.uint8)


def augmented(pixels: bytes, gain: float) -> bytearray:
    mirrored = reversed(pixels) if random.random() < 0.5 else pixels
    return bytearray(min(255, int(gain * pixel)) for pixel in mirrored)  # planted


def batches(workers: int) -> Iterator[torch.Tensor]:
    yield from DataLoader(AugmentedImages(), batch_size=o.size(64, 4), num_workers=workers)


in_process, by_workers = batches(0), batches(max(1, len(os.sched_getaffinity(0)) - 1))
model = nn.Sequential(nn.LayerNorm(PIXELS, device=o.device), network(o))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
copies = o.size(32, 2)
total = 0.0
for _ in planted.steps():
    images = next(by_workers if planted.fixed else in_process)
    loss = model(images.to(o.device).float().repeat(copies, 1)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    total += loss.item()
