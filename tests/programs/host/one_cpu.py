"""Training that may use one CPU only, beside a process that keeps this CPU busy."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import time
from contextlib import suppress

import torch
from torch import nn

from tests.programs.host.options import PlantedTimer, not_possible, options

o = options()
if not hasattr(os, "sched_setaffinity"):
    not_possible("the system can't bind processes to CPUs")
cpus = os.sched_getaffinity(0)


def bind(fixed: bool) -> None:
    """Bind all threads to one CPU, or else to none."""
    for task in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(task), cpus if fixed else {max(cpus)})


bind(fixed=False)
busy = subprocess.Popen([sys.executable, "-c", "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"])
atexit.register(busy.kill)
WIDTH = o.size(256, 16)
model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(o.size(40, 2)))).to(o.device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.randn(64, WIDTH, device=o.device)
planted = PlantedTimer(o, apart_from=time.process_time_ns, switch=bind)
for _ in planted.steps():
    with planted:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
