"""Changes to a graph that several interventions share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis import calls as call_kinds
from overlapscope.analysis.host import around, on_thread
from overlapscope.base.columns import mask_of, pick
from overlapscope.base.grouping import among, distinct
from overlapscope.base.intervals import I64, Bool, covered
from overlapscope.base.kept import kept
from overlapscope.base.words import plural, size
from overlapscope.prediction.data_dependencies import ShownNeeds, find_needs
from overlapscope.prediction.graph import Graph, Orders, RecordedParts, Why, by_thread
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.interventions.intervention import Applied, Request
from overlapscope.prediction.steps import step_of_calls
from overlapscope.trace.model import F64, HostEvents, Kind, Trace

NOTHING = np.empty(0, np.int64)
LONG_WORK_NS = 1_000_000
"""Minimum length of host work between two calls that is more than Python's time from op to op."""
_NEXT_NS = 20_000
"""Maximum time between a copy's call and a synchronize by the same op, for it to be the copy's own
(ATen/native/cuda/Copy.cu)."""
_OWN_NS = 5_000
"""Maximum of that time if no ops were recorded. Seen: 0.15 to 4 us inside `copy_`, and 7 us or more for Python code."""
_VALUE_BYTES = 16
"""Maximum size of a download that reads a value: `item()` copies and waits as `copy_` does."""


def move(graph: Graph, rows: I64, stance: Stance) -> tuple[Graph, ShownNeeds]:
    """Move copies to lanes of their own, a lane for each of their lanes and directions.

    Dependencies come from `find_needs`. At worst, uploads also wait for earlier kernels, and kernels for earlier
    downloads. At best, no kernel needs an upload without evidence.

    Returns:
        The graph, and how far the recording shows the dependencies.
    """
    items = graph.items
    moved = mask_of(rows, len(items))
    lines = [np.flatnonzero((items.lane == source) & ~items.gone) for source in distinct(items.lane[rows]).tolist()]
    lane, streams = _own_lanes(graph, lines, moved)
    parted = lane[graph.stated.first] != lane[graph.stated.then]
    stated = graph.stated.take(parted & (moved[graph.stated.first] | moved[graph.stated.then]))
    tied = mask_of(stated.first, len(items)) | mask_of(stated.then, len(items))
    first, then = [stated.first], [stated.then]
    shown = ShownNeeds(bool(len(rows)), bool(len(rows)))
    for line in lines:
        copies = line[moved[line]]
        needs = find_needs(graph, line, copies, tied)
        shown = shown.besides(needs)
        upload = items.kind[copies] == Kind.H2D
        waits = ~upload | (stance == Stance.WORST)
        holds = upload & (needs.shown | (stance == Stance.EXPECTED)) | (stance == Stance.WORST)
        first += [np.where(waits & ~needs.stated, needs.ahead, -1), np.where(holds & ~needs.stated, copies, -1)]
        then += [copies, needs.behind]
    earlier, later = np.concatenate(first), np.concatenate(then)
    real = (earlier >= 0) & (later >= 0)
    orders = Orders.of(earlier[real], later[real], graph.constants.handover_ns or 0, Why.DATA)
    changed = replace(
        graph,
        items=replace(items, lane=lane, moved=items.moved | moved),
        orders=Orders.joined([graph.orders, orders]),
        streams=streams,
    )
    return changed, shown


def _own_lanes(graph: Graph, lines: list[I64], moved: Bool) -> tuple[I64, tuple[tuple[int, int], ...]]:
    """Return each item's lane after the `moved` items have left theirs, and the streams of all lanes.

    New lanes have stream numbers that the trace does not use. `lines` are the items of each lane that is left.
    """
    lane, streams = graph.items.lane.copy(), list(graph.streams)
    for line in lines:
        device = streams[int(graph.items.lane[line[0]])][0]
        for kind in (Kind.H2D, Kind.D2H):
            leaving = line[moved[line] & (graph.items.kind[line] == kind)]
            if len(leaving):
                lane[leaving] = len(streams)
                streams.append((device, max(*(stream for _, stream in streams), 0) + 1))
    return lane, tuple(streams)


def on_own_lanes(graph: Graph, request: Request, rows: I64, what: str) -> Applied:
    """Move copies to lanes of their own, and describe it: `96 copies of 4.9 GB in total ...`."""
    changed, shown = move(graph, rows, request.stance)
    return Applied(changed, graph.callers(rows), len(rows), f"{copies(graph, rows)} {what}", shown=shown)


def copies(graph: Graph, rows: I64) -> str:
    """Return the number of copies and their size: `96 copies of 4.9 GB in total`."""
    return f"{plural(len(rows), 'copy')} of {size(int(graph.items.bytes[rows].sum()))} in total"


@kept()
def time_in(recorded: RecordedParts, find: Callable[[Trace], HostEvents]) -> I64:
    """Return how much of the work before each call is inside the found host events of its thread, in ns."""
    calls, events = recorded.calls, find(recorded.trace)
    inside = np.zeros(len(calls), np.int64)
    for thread, of_thread in by_thread(recorded):
        inside[of_thread] = covered(on_thread(events, thread), calls.since_ns[of_thread], calls.start_ns[of_thread])
    return inside


def part_of_steps(graph: Graph, request: Request, work: F64, share: float) -> float:
    """Return which part of the host's work takes a share of an average plain step; at most 1.

    Args:
        graph: The graph.
        request: The request.
        work: Work at each call.
        share: The share.
    """
    step = step_of_calls(graph, request.judged)
    steps = int(step.max(initial=-1)) + 1
    work_ns = float(work[step >= 0].sum())
    return min(1.0, steps * share * request.plain_ns / work_ns) if work_ns > 0 else 0.0


class Spared(NamedTuple):
    """Result of removing time of the host."""

    graph: Graph
    calls: I64
    """Calls that lost work before them, or their length."""
    host_ns: int
    """Removed time."""


def without_time_in(graph: Graph, events: HostEvents) -> Spared:
    """Remove what threads did inside host events of theirs: work between calls, and whole calls."""
    if not len(events):
        return Spared(graph, NOTHING, 0)
    calls = graph.calls
    new = calls.copied("before_ns", "length_ns", "handed_by", "release_ns")
    spared, gone = np.zeros(len(calls), np.int64), np.zeros(len(calls), np.bool_)
    for thread, rows in graph.by_thread():
        inside, its = on_thread(events, thread), calls.take(rows)
        handed_over_ns = pick(calls.end_ns, its.handed_by, 0)
        # A thread no longer waits for a handover that happened while it was inside.
        freed = (its.handed_by >= 0) & (covered(inside, handed_over_ns, handed_over_ns + 1) > 0)
        new.handed_by[rows[freed]] = -1
        if freed[0]:
            # A thread's first call then comes after nothing, and stays where it was.
            new.release_ns[rows[0]] = its.start_ns[0]
        since = np.where(freed, np.append(its.start_ns[:1], its.end_ns[:-1]), its.since_ns)
        measured = its.start_ns - its.since_ns
        # Earlier interventions may have left only a part of the measured work.
        part = np.where(measured > 0, its.before_ns / np.maximum(measured, 1), 1.0)
        before = np.where(freed, np.rint(part * (its.start_ns - since)).astype(np.int64), its.before_ns)
        spared[rows] = np.rint(part * covered(inside, since, its.start_ns))
        new.before_ns[rows] = before - spared[rows]
        gone[rows] = covered(inside, its.start_ns, its.end_ns) == its.end_ns - its.start_ns
    new.length_ns[gone] = 0
    changed = replace(graph, calls=new, waits=graph.waits.take(~gone[graph.waits.call]))
    return Spared(changed, np.flatnonzero((spared > 0) | gone), int(spared.sum() + calls.length_ns[gone].sum()))


def waits_of_copies(graph: Graph, *, values: bool = False) -> I64:
    """Return the synchronizes that a copy's op made right after it, as `copy_` does unless non_blocking.

    With `values`, also those of ops that read a value, as `item()` does.
    """
    calls, items = graph.calls, graph.items
    syncs = call_kinds.synchronises(graph.trace.runtime_calls)[calls.row]
    previous = graph.previous
    behind = syncs & pick(graph.launching(items.is_copy & ~items.gone), previous, False)
    waits = np.flatnonzero(behind & (calls.start_ns - pick(calls.end_ns, previous, 0) <= _NEXT_NS))
    copy = previous[waits]
    if values:
        return waits
    if len(graph.trace.cpu_ops):
        return waits[_within_one_op(graph, copy, waits)]
    read = items.call[(items.kind == Kind.D2H) & (items.bytes <= _VALUE_BYTES)]
    return waits[(calls.start_ns[waits] - calls.end_ns[copy] <= _OWN_NS) & ~among(copy, read)]


def _within_one_op(graph: Graph, copy: I64, sync: I64) -> Bool:
    """Return whether both calls are inside the same `copy_`, unlike those of `item()`, which reads a value."""
    calls, ops = graph.calls, graph.trace.cpu_ops
    thread = graph.trace.runtime_calls.thread[calls.row[copy]]
    inside = around(ops, thread, calls.start_ns[copy])
    ends: Bool = pick(ops.end_ns, inside, 0) >= calls.end_ns[sync]
    is_copy = pick(ops.named(lambda name: name == "aten::copy_"), inside, False)
    return is_copy & ends
