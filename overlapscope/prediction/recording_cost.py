"""What recording costs a program: time of the host, for every event that the profiler writes down.

A CPU op, a runtime call or a Python function that is recorded takes the host longer than one that is not. Ops on the
device hardly change (1% or less on an H200). So a recording is turned into the plain program by taking time off the
host: from the work between two calls as much as the events in it cost, from each call what recording it costs.

How much that is differs from machine to machine, and from hour to hour on a shared one: 0.7 to 4 us for an op. It shows
in the recording itself, by how much longer a kernel's launch call is than one that nobody records.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from overlapscope.analysis import calls as call_kinds
from overlapscope.prediction.calibration import Constants
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.observed_hardware import KERNEL_LAUNCH
from overlapscope.trace.model import F64, I64, HostEvents, Trace

PLAIN_LAUNCH_NS = 2200.0
"""A kernel's launch call that nobody records. This and the shares below fit 37 recordings of 22 programs on H200s, each
of which was timed without a profiler, too (`docs/plain.md`)."""
_OP, _CALL, _AROUND_CALL, _FRAME = 0.8, 0.8, 0.6, 0.3
"""What recording an op, a call, what is around a call, and a Python function costs, as shares of what it adds to a
launch call."""
_USUAL_ADDED_NS = 2500.0
"""For recordings with too few launches to tell."""
_FEWEST = 20
_QUICK = 10
"""Percentile of launch calls: others wait for room in a queue, or load a module."""
_LEFT = 0.2
"""What is left at least of each stretch of host work by what its events cost."""


@dataclass(frozen=True, slots=True)
class EventCost:
    """How much longer the host takes for an event that is recorded, in ns."""

    op_ns: float
    call_ns: float
    """Inside the call, as recorded..."""
    around_call_ns: float
    """...and outside."""
    frame_ns: float


@dataclass(frozen=True, slots=True, eq=False)
class HostCost:
    """What recording added to each call of a graph, in ns."""

    before_ns: F64
    """To the work before it."""
    length_ns: F64
    """To the call."""


def event_cost(trace: Trace, calibrated: Constants | None = None) -> EventCost:
    """What each event of a recording cost, by how long its launch calls are; in the proportions of a calibration of the
    same machine, where there is one."""
    calls = trace.runtime_calls
    launches = np.flatnonzero(call_kinds.named(calls, KERNEL_LAUNCH))
    added = _USUAL_ADDED_NS
    if len(launches) >= _FEWEST:
        quick = float(np.percentile(calls.end_ns[launches] - calls.start_ns[launches], _QUICK))
        added = max(quick - PLAIN_LAUNCH_NS, 0.0)
    op, call, around, frame = _OP, _CALL, _AROUND_CALL, _FRAME
    if calibrated is not None and calibrated.op_cost_ns and calibrated.call_cost_ns and calibrated.frame_cost_ns:
        then = max((calibrated.launch_call_ns or 0) - PLAIN_LAUNCH_NS, 1.0)
        op, frame = calibrated.op_cost_ns / then, calibrated.frame_cost_ns / then
        call, around = (calibrated.call_cost_ns / then * part / (_CALL + _AROUND_CALL) for part in (call, around))
    return EventCost(op * added, call * added, around * added, frame * added)


def host_cost(graph: Graph, cost: EventCost) -> HostCost:
    """The cost of all events that begin in the work before each call, on its thread or on the one that handed over."""
    trace, calls = graph.trace, graph.calls
    before = np.full(len(calls), cost.around_call_ns)
    until, since = calls.start_ns, calls.since_ns
    giver = np.where(calls.handed_by >= 0, calls.thread[calls.handed_by], calls.thread)
    tables: tuple[tuple[HostEvents, float], ...] = (
        (trace.cpu_ops, cost.op_ns),
        (trace.annotations, cost.op_ns),
        (trace.python_frames, cost.frame_ns),
        (trace.runtime_calls, cost.call_ns + cost.around_call_ns),
    )
    for table, each in tables:
        if not len(table):
            continue
        order = np.argsort(table.thread, kind="stable")
        threads, first = np.unique(table.thread[order], return_index=True)
        starts = dict(zip(threads.tolist(), np.split(table.start_ns[order], first[1:]), strict=True))
        for number, thread in enumerate(graph.threads):
            if thread in starts:
                own = (calls.thread == number) | (giver == number)
                inside = np.searchsorted(starts[thread], until[own]) - np.searchsorted(starts[thread], since[own])
                before[own] += each * np.maximum(inside, 0)
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
    shorter = np.where(lengths > 0, np.maximum(lengths - by, _LEFT * lengths) * rest, lengths)
    return np.rint(shorter).astype(np.int64)
