"""Training in a control group with a CPU quota: 8 ms in each 20 ms."""

from __future__ import annotations

import atexit
import os
import time
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn

from tests.programs.host.options import PlantedTimer, not_possible, options

o = options()
QUOTA_US, PERIOD_US = 8_000, 20_000
ROOTS = {
    Path("/sys/fs/cgroup/cpu"): {"cpu.cfs_period_us": f"{PERIOD_US}", "cpu.cfs_quota_us": f"{QUOTA_US}"},
    Path("/sys/fs/cgroup"): {"cpu.max": f"{QUOTA_US} {PERIOD_US}"},
}
"""Settings of the quota by the folder of the hierarchy: version 1, then 2."""


def join() -> bool:
    """Enter a control group with the quota, and leave it at the end. False if the system does not allow it."""
    for root, settings in ROOTS.items():
        group = root / f"quota-{os.getpid()}"
        if not (root / "cgroup.procs").exists():
            continue
        with suppress(OSError):
            with suppress(OSError):
                (root / "cgroup.subtree_control").write_text("+cpu")
            group.mkdir()
            atexit.register(leave, root, group)
            for name, value in settings.items():
                (group / name).write_text(value)
            (group / "cgroup.procs").write_text(str(os.getpid()))
            return True
    return False


def leave(root: Path, group: Path) -> None:
    with suppress(OSError):
        (root / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


WIDTH = o.size(256, 16)
model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(o.size(40, 2)))).to(o.device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.randn(64, WIDTH, device=o.device)
if not o.fixed and not join():
    not_possible("this program can't make a control group with a CPU quota here")
planted = PlantedTimer(o, apart_from=time.process_time_ns)
for _ in planted.steps():
    with planted:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
