"""Number of cores that reading may use."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

_MOST_CORES: Final = 8


def usable_cores() -> int:
    """Return the number of cores that this process may use, up to _MOST_CORES."""
    if sys.platform != "linux":
        return 1
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, int(quota) // int(period))
    return min(cores, _MOST_CORES)
