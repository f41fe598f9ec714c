"""Rule: pages of managed memory that move between host and GPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from overlapscope.base.intervals import covered, union
from overlapscope.base.words import share
from overlapscope.rules._claims import Claims
from overlapscope.rules.rule import Draft, Rule
from overlapscope.trace.lost import ENGINES
from overlapscope.trace.op_names import is_migration


def _check(claims: Claims) -> Iterator[Draft]:
    ops, pieces = claims.device.timeline.ops, claims.of("page-migration")
    rows = np.flatnonzero(ops.named(is_migration))
    moved = int(covered(union(ops.start_ns[rows], ops.end_ns[rows]), *claims.windows).sum())
    if not claims.matters(moved):
        return
    count = int((covered(claims.windows, ops.start_ns[rows], ops.end_ns[rows]) > 0).sum())
    beside = moved - pieces.time_ns
    yield Draft(
        title=f"Pages of managed memory move between host and GPU for {claims.time_a_step(moved)} "
        f"({share(moved, claims.judged_ns)})",
        detail=f"{claims.times(count, 'migration')}{claims.a_step}: {claims.time(beside)} while kernels or copies ran, "
        f"and {claims.time(pieces.time_ns)} while nothing else did. A kernel that touches a page on the host stops "
        "until the page has arrived, so the kernels' own time includes such stalls.",
        advice="Move the pages ahead with cudaMemPrefetchAsync, on a stream of its own.\n"
        "Prefetch to the GPU before the kernel, and to the host before the CPU reads. cudaMemAdvise with "
        "SetPreferredLocation or SetReadMostly keeps pages where they are used, or copies them. Pinned memory and "
        "more streams change nothing here.",
        bound_ns=moved,
        example=pieces.example,
    )


RULE = Rule(
    id="page-migration",
    severity="warning",
    summary="Kernels wait for pages of managed memory to move.",
    meaning="Memory from `cudaMallocManaged` moves between host and GPU page by page, when one side touches what the "
    "other side has. Each move follows a page fault, which stalls the kernel or the CPU thread.",
    computation="The time in which page migrations ran, whether beside kernels or alone. An upper bound: pages that "
    "are prefetched still have to move.",
    wrong="""import torch
import ctypes
import cupy
import numpy as np

count = 1 << 26
memory = cupy.cuda.malloc_managed(4 * count)
on_host = np.ctypeslib.as_array((ctypes.c_float * count).from_address(memory.ptr))
on_gpu = torch.as_tensor(cupy.ndarray(count, cupy.float32, memory), device="cuda")
for number in range(8):
    on_host[:] = number
    on_gpu.mul_(2)
    torch.cuda.synchronize()
""",
    right="""import torch
import ctypes
import cupy
import numpy as np

count = 1 << 26
memory = cupy.cuda.malloc_managed(4 * count)
on_host = np.ctypeslib.as_array((ctypes.c_float * count).from_address(memory.ptr))
on_gpu = torch.as_tensor(cupy.ndarray(count, cupy.float32, memory), device="cuda")
for number in range(8):
    on_host[:] = number
    cupy.cuda.runtime.memPrefetchAsync(memory.ptr, 4 * count, 0, torch.cuda.current_stream().cuda_stream)
    on_gpu.mul_(2)
    torch.cuda.synchronize()
""",
    check=_check,
    effort="line",
    rests_on=ENGINES | {"other"},
)
