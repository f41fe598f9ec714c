"""By how much a program's parts differ from one run to the next, which no prediction can know.

Shares of the times themselves, from two sets of 32 recordings of four programs on an H200 (`docs/evaluation/noise.md`):
kernels and copies of one program differed little between runs, what the host did much more. Nor is it known what
threads wait for that nothing ties to the main one: their calls stay, or, in a lucky run, move with its own.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from overlapscope.prediction.graph import Calls, Graph
from overlapscope.prediction.hardware import Stance

KERNELS = {Stance.BEST: -0.01, Stance.WORST: 0.06}
"""At worst a GPU that idles less clocks lower: all kernels of a training step took 5.6% longer once its batch was
copied a step ahead (traces/further/training)."""
COPIES = {Stance.BEST: -0.03, Stance.WORST: 0.03}
HOST = {Stance.BEST: -0.2, Stance.WORST: 0.2}
"""Also of copies from and to pageable memory, which the host moves."""
HOST_OF_PLAIN = {Stance.BEST: -0.1, Stance.WORST: 0.1}
"""Where the plain step tells how fast the host was, what differs is which of its work takes how much of it."""


def spread(graph: Graph, stance: Stance, *, plain: bool) -> Graph:
    """The graph of a lucky run (`BEST`), or of an unlucky one (`WORST`). `plain` where the plain step is known."""
    if stance == Stance.EXPECTED:
        return graph
    items, calls = graph.items, graph.calls
    if stance == Stance.BEST:
        calls = _tied(calls)
    host = (HOST_OF_PLAIN if plain else HOST)[stance]
    device = np.where(items.on_engine, COPIES[stance], np.where(items.is_copy, host, KERNELS[stance]))
    return replace(
        graph,
        items=replace(items, duration_ns=items.duration_ns * (1 + device)),
        calls=replace(
            calls,
            before_ns=np.rint(calls.before_ns * (1 + host)).astype(np.int64),
            length_ns=np.rint(calls.length_ns * (1 + host)).astype(np.int64),
        ),
    )


def _tied(calls: Calls) -> Calls:
    """The calls of threads that nothing ties to the main one as if it had handed over to them."""
    may = (calls.maybe_by >= 0) & (calls.handed_by < 0)
    return replace(
        calls,
        before_ns=np.where(may, calls.start_ns - calls.end_ns[calls.maybe_by], calls.before_ns),
        handed_by=np.where(may, calls.maybe_by, calls.handed_by),
    )
