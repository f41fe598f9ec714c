"""Prefetch depth: how many parts of the program's compute the host launches between a collective and its use.

FSDP gathers the weights of a layer by a collective. Without prefetching, the next thing launched is the layer's own
compute, and the depth is 0. With prefetching for the next layer, the compute of the current one is launched in between,
and the depth is 1. It follows from the order of launches alone, so it doesn't depend on the speed of the GPU or of the
network.
"""

from __future__ import annotations

import re

import numpy as np

from overlapscope.analysis.comm_order import CommOps, find_compute
from overlapscope.base.columns import pick
from overlapscope.base.grouping import distinct
from overlapscope.base.intervals import I64
from overlapscope.trace.model import GpuOps, RuntimeCalls

NO_DEPTH = -1
GATHERS = re.compile(r"all_?gather", re.IGNORECASE)
"""Collectives that may gather weights."""


def prefetch_depths(ops: GpuOps, calls: RuntimeCalls, comm: CommOps) -> I64:
    """Return the prefetch depth of each collective.

    The first compute that waits for a collective begins a part of the program, which ends where the next one begins. A
    part counts if any other compute is launched in it, after the collective and before the compute that waits for it.
    So a layer of a single kernel, which waits for its weights itself, does not count.

    Args:
        ops: The device's ops.
        calls: Calls that launched them.
        comm: Collectives of one kind.

    Returns:
        The depths; `NO_DEPTH` if no compute waits for a collective, a launch is unknown, or one call launched both.
    """
    launched_ns = pick(calls.start_ns, ops.launch, -1)
    issued_ns, used_ns = launched_ns[comm.op], pick(launched_ns, comm.consumer, -1)
    is_use = np.zeros(len(ops), np.bool_)
    is_use[comm.consumer[comm.consumer >= 0]] = True
    computes_ns = np.sort(launched_ns[find_compute(ops).is_work & ~is_use & (launched_ns >= 0)])
    begins_ns = distinct(used_ns[used_ns >= 0])
    # Numbers of the parts that have other compute.
    filled = distinct(np.searchsorted(begins_ns, computes_ns, side="right"))
    first, last = np.searchsorted(begins_ns, issued_ns, side="right"), np.searchsorted(begins_ns, used_ns)
    whole = np.searchsorted(filled, last, side="right") - np.searchsorted(filled, first, side="right")
    # The part in which it is launched counts if compute follows in it.
    until_ns = pick(begins_ns, first, 0)
    follows = np.searchsorted(computes_ns, until_ns) > np.searchsorted(computes_ns, issued_ns, side="right")
    known = (issued_ns >= 0) & (used_ns > issued_ns)
    return np.where(known, whole + follows, NO_DEPTH)
