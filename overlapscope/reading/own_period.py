"""Steps of a recording that has none, from the period of its kernel launches or, without a GPU, of its CPU ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.base.columns import Index
from overlapscope.base.intervals import I64, Bool, begins_after_all
from overlapscope.base.marks import is_step_name, repeat_name
from overlapscope.base.recurrence import Recurrence, find_recurrence
from overlapscope.reading.steps import with_names
from overlapscope.trace.host_ops import OPTIMIZER_STEP
from overlapscope.trace.lead_in import lead_in_end
from overlapscope.trace.model import GpuOps, HostEvents, Kind, OwnPeriod, Trace, stream_keys

_MARK_NS: Final = 10**12
"""Length added to the pause after an iteration's mark, so that a step begins there."""


class _Sequence(Struct, frozen=True, eq=False):
    """Launches or ops of a program, in order."""

    of: str
    """What they are, as in `OwnPeriod.of`."""
    symbol: I64
    start_ns: I64
    """When the host began each, ascending."""
    end_ns: I64
    thread: I64
    runs_ns: I64
    """When each began to run: on the device, for launches."""
    begin_ns: int
    """Begin of the recording where they run, after the lead-in."""
    finish_ns: int
    """End of the recording where they run."""


def periodic_steps(trace: Trace) -> Trace:
    """Return the trace with its own period, of which the repeats are steps if they cover nearly all of the recording.

    It is unchanged if it has steps or no period.
    """
    if trace.annotations.named(is_step_name).any():
        return trace
    if not len(trace.gpu_ops):
        # Without CUDA events, Nsight Systems records hardly anything but system calls.
        return trace if trace.recorder == "nsys" else _with_period(trace, _outermost_ops(trace))
    device, stream = _main_stream(trace.gpu_ops)
    of_device = trace.gpu_ops.device == device
    of_stream = _with_period(trace, _launches(trace, of_device, of_device & (trace.gpu_ops.stream == stream)))
    if of_stream.period is not None and of_stream.period.is_step:
        return of_stream
    # Work may take turns on several streams.
    return max(of_stream, _with_period(trace, _launches(trace, of_device, of_device)), key=_covered_pct)


def _covered_pct(trace: Trace) -> float:
    return -1 if trace.period is None else trace.period.covered_pct


def without_period(trace: Trace) -> Trace:
    """Return the trace without the steps from its own period."""
    if trace.period is None:
        return trace
    notes = trace.annotations
    return replace(trace, annotations=notes.take(~notes.named(is_step_name)), period=None)


def _main_stream(ops: GpuOps) -> tuple[int, int]:
    """Device and stream with the most compute; without compute, with the most work."""
    length = (ops.end_ns - ops.start_ns).astype(np.float64)
    # Sorting 10 million keys would take as long as all the rest.
    group = stream_keys(ops.device, ops.stream) % 65_521
    compute = np.bincount(group, length * (ops.kind == Kind.COMPUTE))
    busiest = int(np.argmax(compute if compute.any() else np.bincount(group, length)))
    row = int(np.argmax(group == busiest))
    return int(ops.device[row]), int(ops.stream[row])


def _launches(trace: Trace, of_device: Bool, ops: Bool) -> _Sequence:
    """Return the calls that launched some ops of a device.

    A call's symbol is the name of its op, or of all ops of its graph.
    """
    calls, rows = trace.runtime_calls, np.flatnonzero(ops & (trace.gpu_ops.launch >= 0))
    # Calls are sorted by their start.
    rows = rows[np.argsort(trace.gpu_ops.launch[rows], kind="stable")]
    launch = trace.gpu_ops.launch[rows]
    first = np.flatnonzero(np.diff(launch, prepend=-1))
    symbol = trace.gpu_ops.name_id[rows].astype(np.int64)
    runs_ns = trace.gpu_ops.start_ns[rows]
    if len(first) < len(rows):
        size = np.diff(first, append=len(rows))
        # A sum, because the branches of a graph may run in any order.
        mixed = np.add.reduceat((symbol + 1) * 0x9E3779B1 & 0x7FFFFFFF, first) & 0x7FFFFFFF
        symbol = np.where(size > 1, mixed, symbol[first])
        runs_ns = np.minimum.reduceat(runs_ns, first)
    call, device = launch[first], trace.gpu_ops.take(of_device)
    begin = int(device.start_ns.min())
    return _Sequence(
        of="kernel launches",
        symbol=symbol,
        start_ns=calls.start_ns[call],
        end_ns=calls.end_ns[call],
        thread=calls.thread[call],
        runs_ns=runs_ns,
        begin_ns=lead_in_end(device, calls, begin) or begin,
        finish_ns=int(device.end_ns.max()),
    )


def _outermost_ops(trace: Trace) -> _Sequence:
    """Return the CPU ops that lie in no other op, of the thread with the most ops."""
    ops = trace.cpu_ops
    if len(ops):
        ops = ops.take(ops.thread == _most_common(ops.thread))
    ops = ops.take(begins_after_all(ops.start_ns, ops.end_ns))
    return _Sequence(
        of="CPU ops",
        symbol=ops.name_id.astype(np.int64),
        start_ns=ops.start_ns,
        end_ns=ops.end_ns,
        thread=ops.thread,
        runs_ns=ops.start_ns,
        begin_ns=int(ops.start_ns.min(initial=0)),
        finish_ns=int(ops.end_ns.max(initial=0)),
    )


def _with_period(trace: Trace, done: _Sequence) -> Trace:
    """Return the trace with the period of a sequence, if it has one, and with its repeats as steps, if they qualify."""
    pause = np.maximum(done.start_ns - np.append(done.start_ns[:1], done.end_ns[:-1]), 0)
    notes = trace.annotations
    marks = [_after(done, notes.end_ns[notes.named(judge)]) for judge in (_is_optimizer, _is_loader)]
    for places in marks:
        pause[places] += _MARK_NS
    # Several optimizer steps may be one iteration, as in a GAN, and so may several batches, of which gradients add up.
    units = find_recurrence(done.symbol, pause, marks)
    if units is None:
        return trace
    edges = np.append(done.start_ns, done.end_ns[-1:])[units.bounds]
    thread = _most_common(done.thread[units.starts])
    if _are_parts(units, marks, _after(done, _reads(trace))) or _are_in_calls(trace, edges, thread):
        return trace
    begin = max(done.begin_ns, int(done.runs_ns[units.starts[0] : units.end].min()))
    covered = int(done.runs_ns[units.end :].min(initial=done.finish_ns)) - begin
    period = OwnPeriod(
        of=done.of,
        length=units.length,
        repeats=len(units.starts),
        regular_pct=round(100 * units.regular, 1),
        covered_pct=100 * max(covered, 0) / max(done.finish_ns - done.begin_ns, 1),
    )
    return replace(_marked(trace, edges, thread) if period.is_step else trace, period=period)


def _are_parts(units: Recurrence, marks: Sequence[Index], reads: Index) -> bool:
    """Return whether units are only parts of iterations, as layers of a model are.

    Then more work than in other units, such as a model's head, comes with what an iteration does once, and units don't:
    an optimizer's step, a batch or reading a result. The recording may end after the last unit, so that doesn't count.
    """
    inside = [np.diff(np.searchsorted(places - 1, units.starts)) for places in (*marks, reads)]
    usual = [float(np.median(count)) for count in inside]
    if max(usual[: len(marks)]) >= 1:
        return False
    more = np.diff(units.starts) - units.length
    return any(not often and bool((more > count)[count > 0].any()) for often, count in zip(usual, inside, strict=True))


def _are_in_calls(trace: Trace, edges: I64, thread: int) -> bool:
    """Return whether a CPU op or a module's call on a thread holds several units: steps lie in no op of a step."""
    frames = trace.python_frames
    for held in (trace.cpu_ops, frames.take(frames.named(lambda name: name.startswith("nn.Module: ")))):
        inside = np.searchsorted(edges, held.end_ns, "right") - np.searchsorted(edges, held.start_ns)
        # Two units have three edges.
        if ((inside > 2) & (held.thread == thread)).any():
            return True
    return False


def _marked(trace: Trace, edges: I64, thread: int) -> Trace:
    """Return the trace with a step between each two edges."""
    count = len(edges) - 1
    names = (*trace.names, *(repeat_name(number, count) for number in range(1, count + 1)))
    renamed = with_names(trace, names)
    used = max(int(table.place.max(initial=-1)) for table in (trace.gpu_ops, trace.annotations, trace.cpu_ops))
    rows = np.arange(count, dtype=np.int32)
    steps = HostEvents(
        names=names,
        start_ns=edges[:-1],
        end_ns=edges[1:],
        name_id=rows + np.int32(len(trace.names)),
        # Places after those of all events.
        place=rows + np.int32(used + 1),
        thread=np.full(count, thread),
    )
    notes = HostEvents.joined([renamed.annotations, steps])
    return replace(renamed, annotations=notes.take(np.lexsort((-notes.end_ns, notes.start_ns))))


def _most_common(threads: I64) -> int:
    threads, counts = np.unique(threads, return_counts=True)
    return int(threads[np.argmax(counts)])


def _after(done: _Sequence, ends_ns: I64) -> Index:
    """Return the places of the launches or ops that follow some moments on the host."""
    places = np.unique(np.searchsorted(done.start_ns, ends_ns))
    return places[places < len(done.start_ns)]


def _reads(trace: Trace) -> I64:
    """Return when the host had called for results of the device: copies to it, and synchronization."""
    calls, ops = trace.runtime_calls, trace.gpu_ops
    reads = calls.named(lambda name: "Synchronize" in name)
    reads[ops.launch[(ops.kind == Kind.D2H) & (ops.launch >= 0)]] = True
    return calls.end_ns[reads]


def _is_optimizer(name: str) -> bool:
    return name.startswith(OPTIMIZER_STEP)


def _is_loader(name: str) -> bool:
    return name.startswith("enumerate(DataLoader)#") and "__next__" in name
