"""A replayed graph as a Trace: the recording with its events at their simulated times."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
from msgspec.structs import asdict, replace

from overlapscope.analysis.periods import is_step
from overlapscope.analysis.plain_step import MIN_TIMED_STEPS
from overlapscope.base.columns import I64, locate, pick
from overlapscope.base.grouping import among, distinct
from overlapscope.prediction.base import Base
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.overhead import HostClock
from overlapscope.prediction.replay import Replay
from overlapscope.prediction.steps import step_of_items
from overlapscope.trace.model import (
    Collectives,
    GpuOps,
    HostEvents,
    Kind,
    Memory,
    PlainSteps,
    TimedSteps,
    Trace,
    TraceTable,
)

MAX_STRETCH = 0.03
"""Maximum factor, less 1, by which all times of a replay are stretched to the plain step; what lacks beyond that is
idle time. Kernels and copies differ so much between runs."""

T = TypeVar("T", bound=TraceTable)


def predicted_trace(graph: Graph, replayed: Replay, clock: HostClock | None = None) -> Trace:
    """Return the recording with the predicted times, those of the host by the replay's clock.

    Host events between calls are stretched or shrunk with the time between them. Records of synchronization and of
    annotations on the device are left out, since they refer to the recording's own streams.
    """
    trace = graph.trace
    clock = clock or HostClock(graph, replayed)
    calls, place = _sorted(clock.host(trace.runtime_calls))
    ops = predicted_ops(graph, replayed)
    ops = replace(ops, launch=pick(place, ops.launch))
    names, ops = _renamed(trace.names, ops)
    host_tables = ("cpu_ops", "python_frames", "overheads")
    host: dict[str, Any] = {name: _sorted(clock.host(getattr(trace, name)))[0] for name in host_tables}
    notes = clock.host(replace(trace.annotations, thread=_threads_of_steps(graph)))
    host["annotations"] = _sorted(replace(notes, thread=trace.annotations.thread))[0]
    moved = replace(
        trace,
        gpu_ops=ops,
        runtime_calls=calls,
        **host,
        syncs=trace.syncs.take(np.empty(0, np.intp)),
        device_annotations=trace.device_annotations.take(np.empty(0, np.intp)),
        collectives=_collectives(graph, replayed),
        start_ns=clock.instant(trace.start_ns),
        end_ns=clock.instant(trace.end_ns),
    )
    # All tables share one table of names.
    tables: dict[str, Any] = {
        name: replace(part, names=names) for name, part in asdict(moved).items() if isinstance(part, TraceTable)
    }
    return replace(moved, names=names, **tables)


def _threads_of_steps(graph: Graph) -> I64:
    """Return the thread of each annotation; a thread that launches for each step.

    A thread that only marks steps hardly gets faster. Its steps move with the thread of their first launch, so that
    they contain the same launches as before.
    """
    notes, calls = graph.trace.annotations, graph.trace.runtime_calls
    step, call = step_of_items(graph), pick(graph.calls.row, graph.items.call)
    rows = np.flatnonzero((step >= 0) & (graph.items.call >= 0))
    rows = rows[np.lexsort((calls.start_ns[call[rows]], step[rows]))]
    numbers, first = np.unique(step[rows], return_index=True)
    marks = np.flatnonzero(is_step(notes))[numbers]
    launching = calls.thread[call[rows]]
    idle = ~among(notes.thread[marks], launching)
    thread = notes.thread.copy()
    thread[marks[idle]] = launching[first][idle]
    return thread


def plain_trace(base: Base) -> Trace:
    """Return the timeline of a recording's plain program.

    Nothing was moved to another stream, so records of synchronization stay, at their calls. All times are scaled by the
    same factor so that the average step is the plain step, unless the replay is much too short.
    """
    assert base.plain is not None
    graph, trace, step_ns = base.graph, base.graph.trace, base.plain.usual.step_ns
    clock = HostClock(graph, base.replayed)
    syncs = trace.syncs
    call = np.where(syncs.correlation >= 0, locate(trace.runtime_calls.correlation, syncs.correlation), -1)
    thread = pick(trace.runtime_calls.thread, call)
    moved = clock.host(HostEvents(syncs.names, syncs.start_ns, syncs.end_ns, syncs.name_id, syncs.place, thread))
    syncs = replace(syncs, start_ns=moved.start_ns, end_ns=moved.end_ns)
    plain = replace(predicted_trace(graph, base.replayed, clock), syncs=_sorted(syncs)[0])
    # The host was sampled in steps like those of this timeline.
    timed = TimedSteps(host_ns=(step_ns,) * MIN_TIMED_STEPS)
    plain = replace(plain, plain_steps=PlainSteps(after=timed))
    if base.warm_up:
        plain = replace(plain, warm_up_steps=int(base.judged.numbers[0]))
    if base.steps.mean_ns == step_ns:
        return plain
    count, begin = len(base.steps.lengths_ns), int(base.steps.start_ns[0])
    factor = step_ns * count / max(1, int(base.steps.end_ns[count - 1]) - begin)
    return plain if factor > 1 + MAX_STRETCH else _scaled(plain, factor, begin)


def _scaled(trace: Trace, factor: float, origin: int) -> Trace:
    """Return the trace with all its times scaled, from the origin: the judged steps together stay exact."""

    def moved(at: I64) -> I64:
        scaled: I64 = origin + np.rint((at - origin) * factor).astype(np.int64)
        return scaled

    tables: dict[str, Any] = {
        name: replace(part, start_ns=moved(part.start_ns), end_ns=moved(part.end_ns))
        for name, part in asdict(trace).items()
        if isinstance(part, TraceTable)
    }
    instants = {
        name: int(moved(np.array([at]))[0]) for name in ("start_ns", "end_ns") if (at := getattr(trace, name)) >= 0
    }
    return replace(trace, **tables, **instants)


def _renamed(names: tuple[str, ...], ops: GpuOps) -> tuple[tuple[str, ...], GpuOps]:
    """Return the table of names with those of newly pinned copies, and the ops with these names."""
    number_of = {name: number for number, name in enumerate(names)}
    name_id = ops.name_id.copy()
    pinned = ops.is_copy & (ops.host_memory == Memory.PINNED)
    for number in distinct(name_id[pinned]).tolist():
        name = names[number].replace("Pageable", "Pinned")
        name_id[pinned & (name_id == number)] = number_of.setdefault(name, len(number_of))
    return tuple(number_of), replace(ops, name_id=name_id)


def _sorted(table: T) -> tuple[T, I64]:
    """Return the table by start, longest first, and the new row of each old row."""
    later, longer = np.diff(table.start_ns), -np.diff(table.end_ns)
    if ((later > 0) | ((later == 0) & (longer >= 0))).all():
        return table, np.arange(len(table))
    order = np.lexsort((-table.end_ns, table.start_ns))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return table.take(order), place


def predicted_times(graph: Graph, replayed: Replay) -> tuple[I64, I64]:
    """Return the predicted start and end of each GPU op."""
    ops, item = graph.trace.gpu_ops, graph.item_of_op
    start = replayed.start_ns[item] + (ops.start_ns - graph.items.start_ns[item])
    return start, np.where(graph.is_single_op[item], replayed.end_ns[item], start + ops.end_ns - ops.start_ns)


def predicted_ops(graph: Graph, replayed: Replay) -> GpuOps:
    """Return the GPU ops at their predicted times, by start; their launches are rows of the recording's calls."""
    ops, items = graph.trace.gpu_ops, graph.items
    item = graph.item_of_op
    start, end = predicted_times(graph, replayed)
    # Only items that an intervention moved have another stream.
    streams = np.array([stream for _, stream in graph.streams], np.int64)
    stream = np.where(items.moved[item], streams[items.lane[item]], ops.stream)
    pinned = ops.is_copy & (items.host_memory[item] == Memory.PINNED)
    source = np.where(pinned & (ops.kind == Kind.H2D), Memory.PINNED, ops.source_kind)
    target = np.where(pinned & (ops.kind == Kind.D2H), Memory.PINNED, ops.target_kind)
    moved = replace(
        ops,
        start_ns=start,
        end_ns=end,
        stream=stream.astype(np.int32),
        source_kind=source.astype(np.int8),
        target_kind=target.astype(np.int8),
        launch=pick(graph.calls.row, items.call[item]),
        correlation=_correlations(graph),
        bytes=np.where(graph.is_single_op[item] & (ops.bytes >= 0), items.bytes[item], ops.bytes),
        stated_gb_per_s=np.full(len(ops), -1.0),
    )
    return _sorted(moved.take(~items.gone[item]) if items.gone.any() else moved)[0]


def _correlations(graph: Graph) -> I64:
    """Return the correlation id of the call that launches each op now."""
    calls, ops = graph.trace.runtime_calls, graph.trace.gpu_ops
    call = graph.items.call[graph.item_of_op]
    of_call = pick(calls.correlation, pick(graph.calls.row, call, 0), 0)
    return np.where(call >= 0, of_call, ops.correlation)


def _collectives(graph: Graph, replayed: Replay) -> Collectives:
    """Return the collectives at their kernels' predicted times."""
    notes, ops = graph.trace.collectives, graph.trace.gpu_ops
    # A collective has the same position in the source's list of events as its kernel.
    row = locate(ops.place, notes.place)
    item = graph.item_of_op[row]
    shift = replayed.start_ns[item] - graph.items.start_ns[item]
    return _sorted(
        replace(
            notes,
            start_ns=notes.start_ns + shift,
            end_ns=notes.end_ns + shift,
            correlation=_correlations(graph)[row],
        )
    )[0]
