"""Steps of a recording that has none, from the period of its kernel launches or, without a GPU, of its CPU ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.base.columns import Index
from overlapscope.base.intervals import I64, Bool, begins_after_all
from overlapscope.base.recurrence import Recurrence, find_recurrence
from overlapscope.reading.steps import STEP, with_names
from overlapscope.trace.host_ops import OPTIMIZER_STEP
from overlapscope.trace.model import GpuOps, HostEvents, Kind, OwnPeriod, Trace, stream_keys

_MARK_NS: Final = 10**12
"""Length added to the pause after an iteration's mark, so that a step begins there."""


class _Sequence(Struct, frozen=True, eq=False):
    """Launches or ops of a program, in order."""

    symbol: I64
    start_ns: I64
    """When the host began each, ascending."""
    end_ns: I64
    thread: I64


def periodic_steps(trace: Trace) -> Trace:
    """Return the trace with steps from its own period, or unchanged if it has steps or no period.

    Start-up before the first period becomes a step of the warm-up, which is not judged.
    """
    if trace.annotations.named(lambda name: name.startswith(STEP)).any():
        return trace
    if not len(trace.gpu_ops):
        return _with_period(trace, "CPU ops", _outermost_ops(trace))
    device, stream = _main_stream(trace.gpu_ops)
    of_device = trace.gpu_ops.device == device
    periodic = _with_period(trace, "kernel launches", _launches(trace, of_device & (trace.gpu_ops.stream == stream)))
    if periodic.period is not None:
        return periodic
    # Work may take turns on several streams.
    return _with_period(trace, "kernel launches", _launches(trace, of_device))


def without_period(trace: Trace) -> Trace:
    """Return the trace without the steps from its own period."""
    if trace.period is None:
        return trace
    notes = trace.annotations
    marked = notes.named(lambda name: name.startswith(STEP))
    return replace(trace, annotations=notes.take(~marked), warm_up_steps=0, period=None)


def _main_stream(ops: GpuOps) -> tuple[int, int]:
    """Device and stream with the most compute; without compute, with the most work."""
    length = (ops.end_ns - ops.start_ns).astype(np.float64)
    # Sorting 10 million keys would take as long as all the rest.
    group = stream_keys(ops.device, ops.stream) % 65_521
    compute = np.bincount(group, length * (ops.kind == Kind.COMPUTE))
    busiest = int(np.argmax(compute if compute.any() else np.bincount(group, length)))
    row = int(np.argmax(group == busiest))
    return int(ops.device[row]), int(ops.stream[row])


def _launches(trace: Trace, ops: Bool) -> _Sequence:
    """Return the calls that launched some ops; a call's symbol is the name of its op, or of all ops of its graph."""
    calls, rows = trace.runtime_calls, np.flatnonzero(ops & (trace.gpu_ops.launch >= 0))
    # Calls are sorted by their start.
    rows = rows[np.argsort(trace.gpu_ops.launch[rows], kind="stable")]
    launch = trace.gpu_ops.launch[rows]
    first = np.flatnonzero(np.diff(launch, prepend=-1))
    symbol = trace.gpu_ops.name_id[rows].astype(np.int64)
    if len(first) < len(rows):
        size = np.diff(first, append=len(rows))
        # A sum, because the branches of a graph may run in any order.
        mixed = np.add.reduceat((symbol + 1) * 0x9E3779B1 & 0x7FFFFFFF, first) & 0x7FFFFFFF
        symbol = np.where(size > 1, mixed, symbol[first])
    call = launch[first]
    return _Sequence(symbol, calls.start_ns[call], calls.end_ns[call], calls.thread[call])


def _outermost_ops(trace: Trace) -> _Sequence:
    """Return the CPU ops that lie in no other op, of the thread with the most ops."""
    ops = trace.cpu_ops
    threads, counts = np.unique(ops.thread, return_counts=True)
    if len(threads):
        ops = ops.take(ops.thread == threads[np.argmax(counts)])
    ops = ops.take(begins_after_all(ops.start_ns, ops.end_ns))
    return _Sequence(ops.name_id.astype(np.int64), ops.start_ns, ops.end_ns, ops.thread)


def _with_period(trace: Trace, of: str, done: _Sequence) -> Trace:
    """Return the trace with the periods of a sequence as its steps, if there are any."""
    count = len(done.symbol)
    pause = np.maximum(done.start_ns - np.append(done.start_ns[:1], done.end_ns[:-1]), 0)
    marks = [_after(trace, done, _is_optimizer), _after(trace, done, _is_loader)]
    for places in marks:
        pause[places] += _MARK_NS
    # Several optimizer steps may be one iteration, as in a GAN, and so may several batches, of which gradients add up.
    recurrence = find_recurrence(done.symbol, pause, marks if all(map(len, marks)) else ())
    if recurrence is None:
        return trace
    period = OwnPeriod(
        of=of,
        length=recurrence.length,
        repeats=len(recurrence.starts),
        regular_pct=round(100 * recurrence.regular, 1),
    )
    edges = np.append(done.start_ns, done.end_ns[-1:])[np.minimum(recurrence.bounds, count)]
    return replace(_marked(trace, edges, done, recurrence), period=period)


def _marked(trace: Trace, edges: I64, done: _Sequence, recurrence: Recurrence) -> Trace:
    """Return the trace with a step between each two edges, and another before them for start-up."""
    if recurrence.starts[0]:
        edges = np.append(done.start_ns[:1], edges)
    threads, counts = np.unique(done.thread[recurrence.starts], return_counts=True)
    names = (*trace.names, *(f"{STEP}{number}" for number in range(len(edges) - 1)))
    renamed = with_names(trace, names)
    used = max(int(table.place.max(initial=-1)) for table in (trace.gpu_ops, trace.annotations, trace.cpu_ops))
    rows = np.arange(len(edges) - 1, dtype=np.int32)
    steps = HostEvents(
        names=names,
        start_ns=edges[:-1],
        end_ns=edges[1:],
        name_id=rows + np.int32(len(trace.names)),
        # Places after those of all events.
        place=rows + np.int32(used + 1),
        thread=np.full(len(rows), threads[np.argmax(counts)]),
    )
    notes = HostEvents.joined([renamed.annotations, steps])
    notes = notes.take(np.lexsort((-notes.end_ns, notes.start_ns)))
    return replace(renamed, annotations=notes, warm_up_steps=int(recurrence.starts[0] > 0))


def _after(trace: Trace, done: _Sequence, judge: Callable[[str], bool]) -> Index:
    """Return the places of the launches or ops that follow some annotations."""
    ends = trace.annotations.end_ns[trace.annotations.named(judge)]
    places = np.unique(np.searchsorted(done.start_ns, ends))
    return places[places < len(done.start_ns)]


def _is_optimizer(name: str) -> bool:
    return name.startswith(OPTIMIZER_STEP)


def _is_loader(name: str) -> bool:
    return name.startswith("enumerate(DataLoader)#") and "__next__" in name
