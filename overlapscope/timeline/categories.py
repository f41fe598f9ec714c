"""Categories of drawn pieces of time, and their names."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from overlapscope.catalog.causes import COPY_CAUSES, IDLE_CAUSES
from overlapscope.trace.model import GpuOps, Kind, Memory

U8 = NDArray[np.uint8]

_GPU = (
    "compute",
    "comm",
    "h2d-pinned",
    "h2d-pageable",
    "h2d-other",
    "d2h-pinned",
    "d2h-pageable",
    "d2h-other",
    "p2p",
    "other",
)
_OVERLAP = (
    "hidden-copy",
    "exposed-comm",
    "exposed-other",
    *(f"exposed-copy:{cause}" for cause in COPY_CAUSES),
    *(f"idle:{cause}" for cause in IDLE_CAUSES),
)
_HOST = ("blocking-call", "runtime-call", "cpu-op", "range", "profiler", "python-line")

CATEGORIES: tuple[str, ...] = (*_GPU, *_OVERLAP, *_HOST, "step")
"""A category's number is its position here, also in the binary form."""

ID = {name: number for number, name in enumerate(CATEGORIES)}
CALLS = (ID["blocking-call"], ID["runtime-call"])
FIRST_EXPOSED_COPY = ID[f"exposed-copy:{COPY_CAUSES[0]}"]
FIRST_IDLE = ID[f"idle:{IDLE_CAUSES[0]}"]

LABELS: tuple[str, ...] = tuple(name.replace("-copy", " copy", 1).replace(":", ": ") for name in CATEGORIES)
"""Names of the pieces of the overlap lane: `idle: host-sync`."""


def of_gpu_ops(ops: GpuOps) -> U8:
    """Return the category of each GPU op."""
    table = np.full((len(Kind), len(Memory)), ID["other"], np.uint8)
    for kind in (Kind.COMPUTE, Kind.COMM, Kind.P2P):
        table[kind] = ID[kind.name.lower()]
    for kind, word in ((Kind.H2D, "h2d"), (Kind.D2H, "d2h")):
        table[kind] = ID[f"{word}-other"]
        table[kind, Memory.PINNED] = ID[f"{word}-pinned"]
        table[kind, Memory.PAGEABLE] = ID[f"{word}-pageable"]
    return table[ops.kind, ops.host_memory]
