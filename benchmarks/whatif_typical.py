"""Deviation of a recording from its dependency graph alone, with typical latencies.

The replay that predictions start from takes each latency as it was measured, so it has little to get wrong. Here each
latency has its typical value on this hardware, so that a step's time follows from its dependencies.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from overlapscope.prediction.base import on_device, prepare
from overlapscope.prediction.graph import Graph, OrderReason
from overlapscope.prediction.replay import replay
from overlapscope.prediction.steps import step_times
from overlapscope.reading import load
from overlapscope.trace.model import Memory

PROCESSES = 2


def typical_errors_pct(paths: Sequence[Path]) -> list[float]:
    """Return the relative error of the step time of each recording's devices that replay well: |replayed - measured| /
    measured."""
    with ProcessPoolExecutor(PROCESSES) as pool:
        return [error for errors in pool.map(_errors_pct, paths) for error in errors]


def _errors_pct(path: Path) -> list[float]:
    trace = load(path, progress=False, cache=False)
    errors = []
    for device in trace.devices:
        base = on_device(prepare(trace, None), device)
        if base.fidelity.valid:
            graph = _typical(base.graph)
            replayed = replay(graph)
            steps = step_times(graph, base.judged, replayed.start_ns, replayed.end_ns)
            errors.append(100 * abs(steps.mean_ns / base.recorded.mean_ns - 1))
    return errors


def _typical(graph: Graph) -> Graph:
    """Return the graph with typical latencies.

    Start and return times of pageable copies are staging, and stay; so does the recorded overlap of kernels on several
    streams.
    """
    items, orders, waits, constants = graph.items, graph.orders, graph.waits, graph.constants
    staged = items.is_copy & (items.host_memory == Memory.PAGEABLE)
    launch = np.where(items.is_copy, constants.copy_latency_ns or 0, constants.launch_latency_ns or 0)
    gap = np.full(len(items), constants.kernel_gap_ns or 0)
    return replace(
        graph,
        items=replace(
            items,
            launch_lag_ns=np.where(staged, items.launch_lag_ns, launch),
            after_call=items.after_call & staged,
            queue_lag_ns=np.where(staged, items.queue_lag_ns, gap),
            engine_lag_ns=np.where(staged, items.engine_lag_ns, gap),
        ),
        orders=replace(
            orders, lag_ns=np.where(orders.why == OrderReason.SEEN, orders.lag_ns, constants.handover_ns or 0)
        ),
        waits=replace(waits, lag_ns=np.where(staged[waits.item], waits.lag_ns, constants.return_ns or 0)),
    )
