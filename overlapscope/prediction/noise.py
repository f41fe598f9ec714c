"""By how much a program's parts differ from one run to the next, which no prediction can know.

Shares of the times themselves, from two sets of 32 recordings of four programs on an H200 (`docs/noise.md`): kernels
and copies of one program differed little between runs, what the host did much more.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from overlapscope.prediction.graph import Graph
from overlapscope.prediction.hardware import Stance

KERNELS, COPIES, HOST = 0.01, 0.03, 0.2


def spread(graph: Graph, stance: Stance) -> Graph:
    """The graph of a lucky run (`BEST`), or of an unlucky one (`WORST`)."""
    if stance == Stance.EXPECTED:
        return graph
    sign = 1 if stance == Stance.WORST else -1
    items, calls = graph.items, graph.calls
    device = np.where(items.is_copy, COPIES, KERNELS)
    return replace(
        graph,
        items=replace(items, duration_ns=items.duration_ns * (1 + sign * device)),
        calls=replace(
            calls,
            before_ns=np.rint(calls.before_ns * (1 + sign * HOST)).astype(np.int64),
            length_ns=np.rint(calls.length_ns * (1 + sign * HOST)).astype(np.int64),
        ),
    )
