"""Training in a control group with a CPU quota: 8 ms in each 20 ms."""

from __future__ import annotations

import atexit
import os
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch
from torch import nn

from tests.programs.host.options import PlantedTimer, not_possible, options

o = options()
QUOTA_US, PERIOD_US = 8_000, 20_000
ROOTS = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
"""Folders of the hierarchies of control groups: version 1, then 2."""


def join() -> Path | None:
    """Enter a control group, and leave it at the end. None if the system does not allow it."""
    for root in ROOTS:
        group = root / f"quota-{os.getpid()}"
        if not (root / "cgroup.procs").exists():
            continue
        with suppress(OSError):
            with suppress(OSError):
                (root / "cgroup.subtree_control").write_text("+cpu")
            group.mkdir()
            atexit.register(leave, root, group)
            limit(group, fixed=False)
            (group / "cgroup.procs").write_text(str(os.getpid()))
            return group
    return None


def limit(group: Path, fixed: bool) -> None:
    """Set the quota of a control group, or none."""
    if (group / "cpu.cfs_quota_us").exists():
        (group / "cpu.cfs_period_us").write_text(f"{PERIOD_US}")
        (group / "cpu.cfs_quota_us").write_text(f"{-1 if fixed else QUOTA_US}")
    else:
        (group / "cpu.max").write_text(f"{'max' if fixed else QUOTA_US} {PERIOD_US}")


def leave(root: Path, group: Path) -> None:
    with suppress(OSError):
        (root / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


WIDTH = o.size(256, 16)
model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(o.size(40, 2)))).to(o.device)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
batch = torch.randn(64, WIDTH, device=o.device)
group = join()
if group is None:
    not_possible("this program can't make a control group with a CPU quota here")
planted = PlantedTimer(o, time.process_time_ns, partial(limit, group))
for _ in planted.steps():
    with planted:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
