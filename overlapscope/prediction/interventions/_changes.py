"""Changes to a graph that several interventions share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.host import on_thread
from overlapscope.base.columns import pick
from overlapscope.base.intervals import I64, covered
from overlapscope.base.kept import kept
from overlapscope.base.words import plural, size
from overlapscope.prediction.graph import Graph, RecordedParts, by_thread
from overlapscope.prediction.interventions import Request
from overlapscope.prediction.steps import step_of_calls
from overlapscope.trace.model import F64, HostEvents, Trace

NOTHING = np.empty(0, np.int64)
LONG_WORK_NS = 1_000_000
"""Minimum length of host work between two calls that is more than Python's time from op to op."""


def copies(graph: Graph, rows: I64) -> str:
    """Return the number of copies and their size: `96 copies of 4.9 GB in total`."""
    return f"{plural(len(rows), 'copy')} of {size(int(graph.items.bytes[rows].sum()))} in total"


@kept()
def time_in_events(recorded: RecordedParts, find: Callable[[Trace], HostEvents]) -> I64:
    """Return how much of the work before each call is inside the found host events of its thread, in ns."""
    calls, events = recorded.calls, find(recorded.trace)
    inside = np.zeros(len(calls), np.int64)
    for thread, of_thread in by_thread(recorded):
        inside[of_thread] = covered(on_thread(events, thread), calls.since_ns[of_thread], calls.start_ns[of_thread])
    return inside


def part_of_work(graph: Graph, request: Request, work: F64, share: float) -> float:
    """Return which part of the host's work, given for each call, takes a share of an average plain step; at most 1."""
    step = step_of_calls(graph, request.judged)
    steps = int(step.max(initial=-1)) + 1
    work_ns = float(work[step >= 0].sum())
    return min(1.0, steps * share * request.plain_ns / work_ns) if work_ns > 0 else 0.0


class RemovedHostTime(NamedTuple):
    """A graph without some time of the host."""

    graph: Graph
    calls: I64
    """Calls that lost work before them, or their length."""
    host_ns: int
    """Removed time."""


def without_time_in(graph: Graph, events: HostEvents) -> RemovedHostTime:
    """Remove what threads did inside host events of theirs: work between calls, and whole calls."""
    if not len(events):
        return RemovedHostTime(graph, NOTHING, 0)
    calls = graph.calls
    new = calls.copied("before_ns", "length_ns", "handed_by", "release_ns")
    removed_ns, gone = np.zeros(len(calls), np.int64), np.zeros(len(calls), np.bool_)
    for thread, rows in graph.by_thread():
        inside, of_thread = on_thread(events, thread), calls.take(rows)
        handed_over_ns = pick(calls.end_ns, of_thread.handed_by, 0)
        # A thread no longer waits for a handover that happened while it was inside.
        freed = (of_thread.handed_by >= 0) & (covered(inside, handed_over_ns, handed_over_ns + 1) > 0)
        new.handed_by[rows[freed]] = -1
        if freed[0]:
            # A thread's first call then comes after nothing, and stays where it was.
            new.release_ns[rows[0]] = of_thread.start_ns[0]
        since = np.where(freed, np.append(of_thread.start_ns[:1], of_thread.end_ns[:-1]), of_thread.since_ns)
        measured = of_thread.start_ns - of_thread.since_ns
        # Earlier interventions may have left only a part of the measured work.
        part = np.where(measured > 0, of_thread.before_ns / np.maximum(measured, 1), 1.0)
        before = np.where(freed, np.rint(part * (of_thread.start_ns - since)).astype(np.int64), of_thread.before_ns)
        removed_ns[rows] = np.rint(part * covered(inside, since, of_thread.start_ns))
        new.before_ns[rows] = before - removed_ns[rows]
        gone[rows] = covered(inside, of_thread.start_ns, of_thread.end_ns) == of_thread.end_ns - of_thread.start_ns
    new.length_ns[gone] = 0
    changed = replace(graph, calls=new, waits=graph.waits.take(~gone[graph.waits.call]))
    return RemovedHostTime(
        changed, np.flatnonzero((removed_ns > 0) | gone), int(removed_ns.sum() + calls.length_ns[gone].sum())
    )
