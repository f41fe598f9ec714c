"""Differences between runs of a program, which no prediction can know.

They are fractions of the times, from two sets of 32 recordings of four programs on an H200
(`docs/evaluation/noise.md`). Kernels and copies differed little between runs, the host's work much more. It is also
unknown what untied threads wait for. Their calls stay in place, or in a lucky run, move with the main thread's.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.host_order import Calls
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.guesses import without_guesses
from overlapscope.prediction.hardware import Stance

KERNELS = {Stance.BEST: -0.01, Stance.WORST: 0.06}
"""The worst case includes a GPU with less idle time and a lower clock: all kernels of a training step took 5.6% longer
once its batch was copied a step ahead (traces/further/training)."""
COPIES = {Stance.BEST: -0.03, Stance.WORST: 0.03}
HOST = {Stance.BEST: -0.2, Stance.WORST: 0.2}
"""Also for copies from and to pageable memory, which the host moves."""
HOST_OF_PLAIN = {Stance.BEST: -0.1, Stance.WORST: 0.1}
"""If the plain step shows the host's speed, only the shares of its parts differ."""


def spread(graph: Graph, stance: Stance, *, plain: bool, changed: bool) -> Graph:
    """Return the graph of a lucky run (`BEST`) or an unlucky run (`WORST`).

    Args:
        graph: The program, with changes or without.
        stance: How lucky the run is.
        plain: The plain step is known.
        changed: Whether the program was changed, so that guesses, and speeds beside other work, may no longer hold.
    """
    if stance == Stance.EXPECTED:
        return graph
    items, calls = graph.items, graph.calls
    if changed and stance == Stance.BEST:
        calls = _tied(calls)
        graph = without_guesses(graph)
    host = (HOST_OF_PLAIN if plain else HOST)[stance]
    copies, kernels = (COPIES[stance], KERNELS[stance]) if changed else (0.0, 0.0)
    device = np.where(items.on_engine, copies, np.where(items.is_copy, host, kernels))
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
    """Return the calls of untied threads as if the main thread had handed over to them."""
    may = (calls.maybe_by >= 0) & (calls.handed_by < 0)
    return replace(
        calls,
        before_ns=np.where(may, calls.start_ns - calls.end_ns[calls.maybe_by], calls.before_ns),
        handed_by=np.where(may, calls.maybe_by, calls.handed_by),
    )
