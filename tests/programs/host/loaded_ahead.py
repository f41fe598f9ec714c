"""Training on batches that workers load and pin ahead: the GPU decides how long a step takes."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from tests.programs.host.options import PlantedTimer, options

o = options()
WIDTH, BATCH = o.size(4096, 16), o.size(4096, 4)
INPUTS = o.size(256, 16)
data = TensorDataset(torch.randn(o.size(16_384, 64), INPUTS))
sampler = RandomSampler(data, replacement=True, num_samples=4_000_000)
loader = DataLoader(data, batch_size=BATCH // 4, sampler=sampler, num_workers=2, pin_memory=o.cuda, prefetch_factor=4)
model = nn.Sequential(nn.Linear(INPUTS, WIDTH), *(nn.Linear(WIDTH, WIDTH) for _ in range(o.size(4, 1)))).to(o.device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
for _, (batch,) in zip(PlantedTimer(o).steps(), loader, strict=False):
    loss = model(batch.to(o.device, non_blocking=True).repeat(4, 1)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
