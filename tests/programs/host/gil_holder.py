"""Training beside a thread that computes statistics in Python, for 4 ms at a time, and holds the GIL meanwhile.

No CPU time passes while the main thread waits for it, as `backward()` also runs in the main thread here.
"""

from __future__ import annotations

import threading
import time

import torch
from torch import nn

from tests.programs.host.options import PlantedTimer, options

o = options()
torch.autograd.set_multithreading_enabled(False)
WIDTH = o.size(256, 16)
model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(o.size(20, 2)))).to(o.device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.randn(64, WIDTH, device=o.device)
holding, ended = threading.Event(), threading.Event()


def statistics() -> None:
    while not ended.wait(0.004) and holding.wait():
        until = time.perf_counter() + 0.004
        while time.perf_counter() < until:
            sum(number * number for number in range(500))


holding.set()
threading.Thread(target=statistics, daemon=True).start()
planted = PlantedTimer(
    o, apart_from=time.thread_time_ns, switch=lambda fixed: holding.clear() if fixed else holding.set()
)
for _ in planted.steps():
    with planted:
        loss = model(batch).square().mean()  # planted
        loss.backward()  # planted
        optimizer.step()  # planted
        optimizer.zero_grad()  # planted
ended.set()
