"""What recording costs a program: time of the host, for every event that the profiler writes down.

A CPU op, a runtime call or a Python function that is recorded takes the host longer than one that is not. Ops on the
device hardly change (1 % or less on an H200). So a recording is turned into the plain program by taking time off the
host: from the work between two calls as much as the events in it cost, from each call what recording it costs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from overlapscope.prediction.graph import Graph
from overlapscope.trace import F64, I64, HostEvents

LEFT = 0.2
"""What is left at least of each stretch of host work by what its events cost."""


@dataclass(frozen=True, slots=True)
class EventCost:
    """How much longer the host takes for an event that is recorded, in ns."""

    op_ns: float
    call_ns: float
    frame_ns: float


@dataclass(frozen=True, slots=True, eq=False)
class HostCost:
    """What recording added to each call of a graph, in ns."""

    before_ns: F64
    """To the work before it."""
    length_ns: F64
    """To the call."""


def host_cost(graph: Graph, cost: EventCost) -> HostCost:
    """The cost of all events that begin in the work before each call, on its thread or on the one that handed over."""
    trace, calls = graph.trace, graph.calls
    before = np.zeros(len(calls))
    until = calls.start_ns
    since = until - calls.before_ns
    giver = np.where(calls.handed_by >= 0, calls.thread[calls.handed_by], calls.thread)
    tables: tuple[tuple[HostEvents, float], ...] = (
        (trace.cpu_ops, cost.op_ns),
        (trace.annotations, cost.op_ns),
        (trace.python_frames, cost.frame_ns),
        (trace.runtime_calls, cost.call_ns),
    )
    for table, each in tables:
        if not len(table):
            continue
        order = np.argsort(table.thread, kind="stable")
        threads, first = np.unique(table.thread[order], return_index=True)
        starts = dict(zip(threads.tolist(), np.split(table.start_ns[order], first[1:]), strict=True))
        for number, thread in enumerate(graph.threads):
            if thread in starts:
                mine = (calls.thread == number) | (giver == number)
                inside = np.searchsorted(starts[thread], until[mine]) - np.searchsorted(starts[thread], since[mine])
                before[mine] += each * np.maximum(inside, 0)
    return HostCost(before, np.full(len(calls), cost.call_ns))


def without(graph: Graph, cost: HostCost, times: float, *, rest: float = 1.0) -> Graph:
    """The graph without so many times that cost, and of what the host then takes only the `rest`."""
    calls = graph.calls
    return replace(
        graph,
        calls=replace(
            calls,
            before_ns=_shortened(calls.before_ns, times * cost.before_ns, rest),
            length_ns=_shortened(calls.length_ns, times * cost.length_ns, rest),
        ),
    )


def _shortened(lengths: I64, by: F64, rest: float) -> I64:
    # What is not positive is no work: a thread went on before the one that handed over had returned.
    shorter = np.where(lengths > 0, np.maximum(lengths - by, LEFT * lengths) * rest, lengths)
    return np.rint(shorter).astype(np.int64)
