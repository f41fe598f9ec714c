"""All-gathers of weights by FSDP2, which a program could launch one layer ahead.

FSDP2 gathers a layer's weights when the layer is reached, or one or more layers earlier if it prefetches. It then lets
a gather wait until the weights of the one before have been copied out
(torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py: `unshard`, `wait_for_unshard`), so that not all of them take
memory at once.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from overlapscope.analysis.host import around
from overlapscope.base.columns import pick
from overlapscope.base.intervals import I64
from overlapscope.prediction.graph import Graph
from overlapscope.trace.host_ops import OPTIMIZER_STEP

_GATHERS, _COPIES_OUT = re.compile(r"FSDP::all_gather( \(.*)?", re.DOTALL), "FSDP::all_gather_copy_out"


class OneAhead(NamedTuple):
    """Launches of weights' all-gathers one layer ahead, an entry for each collective; -1 for others."""

    call: I64
    """Call of the graph that it would be launched right after."""
    item: I64
    """Item of the graph that it would wait for."""


def one_ahead(graph: Graph, comm: I64, step: I64) -> OneAhead:
    """Return where all-gathers would be launched that are now launched when their layer is reached.

    Args:
        graph: The graph.
        comm: Items of its collectives.
        step: Step of each call; -1 for none.
    """
    calls, items, notes = graph.calls, graph.items, graph.trace.annotations
    result = OneAhead(np.full(len(comm), -1), np.full(len(comm), -1))
    caller, threads = items.call[comm], np.array(graph.recorded.threads, np.int64)
    at = pick(calls.start_ns, caller)
    gathering = notes.take(notes.named(lambda name: _GATHERS.fullmatch(name) is not None))
    gathers = np.flatnonzero((caller >= 0) & (around(gathering, pick(threads, pick(calls.thread, caller)), at) >= 0))
    gathers = gathers[np.argsort(caller[gathers], kind="stable")]
    updates = np.sort(notes.start_ns[notes.named(lambda name: name.startswith(OPTIMIZER_STEP))])
    copying = notes.take(notes.named(lambda name: name.startswith(_COPIES_OUT)))
    by_call = np.argsort(items.call, kind="stable")
    in_order = items.call[by_call]
    for before, gather in zip(gathers[:-1].tolist(), gathers[1:].tolist(), strict=True):
        begin, end = int(at[before]), int(at[gather])
        same_weights = np.searchsorted(updates, begin) == np.searchsorted(updates, end)
        row = int(np.searchsorted(copying.start_ns, begin))
        if row == len(copying) or copying.start_ns[row] >= end or not same_weights:
            continue
        if step[caller[before]] != step[caller[gather]] or step[caller[gather]] < 0:
            continue
        first, last = np.searchsorted(calls.start_ns, (copying.start_ns[row], copying.end_ns[row]))
        launched = by_call[slice(*np.searchsorted(in_order, (first, last)))]
        launched = launched[threads[calls.thread[items.call[launched]]] == copying.thread[row]]
        if len(launched):
            result.call[gather], result.item[gather] = items.call[launched].max(), launched.max()
    return result
