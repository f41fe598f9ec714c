"""Training that makes images smaller on the CPU, with 64 OpenMP threads, where the process may use four CPUs.

Fixed: four threads. The work of each call is small: most of the time, threads wait for one another.
"""

from __future__ import annotations

import os

import torch
from torch import nn
from torch.nn import functional

from tests.programs.host.options import PlantedTimer, network, options

o = options()
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:4])
torch.set_num_threads(64)
SIDE = o.size(54, 4)
images = [torch.rand(3, SIDE, SIDE) for _ in range(o.size(32, 4))]
inputs = 3 * (SIDE // 2) ** 2
model = nn.Sequential(nn.Linear(inputs, o.size(2048, 16), device=o.device), network(o))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
copies = o.size(64, 2)
planted = PlantedTimer(o, switch=lambda fixed: torch.set_num_threads(4 if fixed else 64))
total = 0.0
for _ in planted.steps():
    with planted:
        small = [functional.avg_pool2d(image, 2) for image in images]  # planted
    batch = torch.stack(small).to(o.device).flatten(1).repeat(copies, 1)
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    total += loss.item()
