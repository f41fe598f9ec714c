"""Steps of a recording that has none, from the period of its kernel launches or, without a GPU, of its CPU ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.base.columns import Index
from overlapscope.base.grouping import distinct
from overlapscope.base.intervals import I64, Bool, begins_after_all
from overlapscope.base.marks import is_step_name, repeat_name
from overlapscope.base.recurrence import MIN_REGULARITY, Recurrence, find_recurrence
from overlapscope.reading.steps import with_names
from overlapscope.trace.lost import lead_in_end
from overlapscope.trace.model import HOST_OPS, MIN_COVERED_PCT, GpuOps, HostEvents, Kind, OwnPeriod, Trace, stream_keys
from overlapscope.trace.op_names import OPTIMIZER_STEP

_MARK_NS: Final = 10**12
"""Length added to the pause after an iteration's mark, so that a step begins there."""

_MIN_LAUNCHES: Final = 2
"""Minimum launches of a step."""

_MIN_REGULARITY: Final = 0.99
"""Minimum regularity of CPU ops that no mark of an iteration divides."""


class _Sequence(Struct, frozen=True, eq=False):
    """Launches or ops of a program, in order."""

    symbol: I64
    start_ns: I64
    """When the host began each, ascending."""
    end_ns: I64
    thread: I64
    is_wait: Bool
    """Mask of the waits for the device, which launch nothing."""


_PART_OF_WORK: Final = 0.05
"""Least work of another device, as a share of that of the main one, for repeats to have to cover it."""


class _Recorded(Struct, frozen=True, eq=False):
    """Part of a recording that repeats should cover, and the work in it that begins and ends them."""

    begin_ns: int
    end_ns: int
    launched_ns: I64
    """When the host launched each op of the main stream, or of another device."""
    start_ns: I64
    """When it began to run."""

    def covered_pct(self, edges: I64) -> float:
        """Return the share that belongs to the steps between some edges on the host (`analysis.periods.find_steps`)."""
        inside = (self.launched_ns >= edges[0]) & (self.launched_ns < edges[-1])
        first = max(self.begin_ns, int(self.start_ns[inside].min(initial=self.end_ns)))
        after = int(self.start_ns[self.launched_ns >= edges[-1]].min(initial=self.end_ns))
        return 100 * max(after - first, 0) / max(self.end_ns - self.begin_ns, 1)


def periodic_steps(trace: Trace) -> Trace:
    """Return the trace with its own period, or unchanged if it has steps or no period.

    The period's repeats become steps if they cover nearly all of the recording.
    """
    if trace.has_steps:
        return trace
    if not len(trace.gpu_ops):
        # Without CUDA events, Nsight Systems records hardly anything but system calls.
        done = _outermost_ops(trace)
        if trace.recorder == "nsys" or not len(done.symbol):
            return trace
        of_host = _Recorded(int(done.start_ns[0]), int(done.end_ns.max()), done.start_ns, done.start_ns)
        return _with_period(trace, HOST_OPS, done, [of_host])
    device, stream = _main_stream(trace.gpu_ops)
    of_device = trace.gpu_ops.device == device
    of_stream = of_device & (trace.gpu_ops.stream == stream)
    recorded = [_recorded(trace, of_device, of_stream), *_recorded_elsewhere(trace, of_device)]
    periodic = _with_period(trace, "kernel launches", _launches(trace, of_stream), recorded)
    if periodic.period is not None and periodic.period.is_step:
        return periodic
    # Work may take turns on several streams.
    of_all = _with_period(trace, "kernel launches", _launches(trace, of_device), recorded)
    return max(periodic, of_all, key=lambda each: -1 if each.period is None else each.period.covered_pct)


def _recorded(trace: Trace, of_device: Bool, main: Bool) -> _Recorded:
    """Return the recording of a device, of which some ops begin and end the repeats."""
    ops = trace.gpu_ops if of_device.all() else trace.gpu_ops.take(of_device)
    begin, rows = int(ops.start_ns.min()), np.flatnonzero(main & (trace.gpu_ops.launch >= 0))
    return _Recorded(
        lead_in_end(ops, trace.runtime_calls, begin) or begin,
        int(ops.end_ns.max()),
        trace.runtime_calls.start_ns[trace.gpu_ops.launch[rows]],
        trace.gpu_ops.start_ns[rows],
    )


def _recorded_elsewhere(trace: Trace, of_device: Bool) -> list[_Recorded]:
    """Return the recordings of other devices with launches and a part of the work."""
    ops = trace.gpu_ops
    others: list[_Recorded] = []
    if of_device.all():
        return others
    least_ns = _PART_OF_WORK * float((ops.end_ns - ops.start_ns)[of_device].sum())
    for number in np.unique(ops.device[~of_device]).tolist():
        of_other = ops.device == number
        if (ops.end_ns - ops.start_ns)[of_other].sum() >= least_ns and (ops.launch[of_other] >= 0).any():
            others.append(_recorded(trace, of_other, of_other))
    return others


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


def _launches(trace: Trace, ops: Bool) -> _Sequence:
    """Return the calls that launched some ops, and those that waited for the device.

    The symbol of a launch is the name of its op, or of all ops of its graph.
    """
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
    # Waits of the launching thread tell iterations from loops inside them that launch the same over and over.
    waits = np.flatnonzero(calls.named(_is_wait))
    waits = waits[calls.thread[waits] == _most_common(calls.thread[launch])] if len(rows) else waits[:0]
    call = np.concatenate([launch[first], waits])
    symbol = np.concatenate([symbol, len(trace.names) + calls.name_id[waits]])
    order = np.argsort(call, kind="stable")
    call, is_wait = call[order], order >= len(first)
    return _Sequence(symbol[order], calls.start_ns[call], calls.end_ns[call], calls.thread[call], is_wait)


def _outermost_ops(trace: Trace) -> _Sequence:
    """Return the CPU ops that lie in no other op, of the thread with the most ops."""
    ops = trace.cpu_ops
    if len(ops):
        ops = ops.take(ops.thread == _most_common(ops.thread))
    ops = ops.take(begins_after_all(ops.start_ns, ops.end_ns))
    return _Sequence(ops.name_id.astype(np.int64), ops.start_ns, ops.end_ns, ops.thread, np.zeros(len(ops), np.bool_))


def _with_period(trace: Trace, of: str, done: _Sequence, recorded: Sequence[_Recorded]) -> Trace:
    """Return the trace with the period of a sequence and its steps, if there are any."""
    pause = np.maximum(done.start_ns - np.append(done.start_ns[:1], done.end_ns[:-1]), 0)
    notes = trace.annotations
    marks = [_after(done, notes.end_ns[notes.named(judge)]) for judge in (_is_optimizer, _is_loader)]
    for places in marks:
        pause[places] += _MARK_NS
    # Several optimizer steps may be one iteration, as in a GAN, and so may several batches, of which gradients add up.
    units = find_recurrence(done.symbol, pause, marks)
    if units is None:
        return trace
    period = _period(of, done, units, recorded)
    if not period.is_step and (earlier := find_recurrence(done.symbol, np.zeros_like(pause), marks)) is not None:
        # The clearest beginning of a unit may leave out much of the recording.
        units, period = max(
            (units, period), (earlier, _period(of, done, earlier, recorded)), key=lambda found: found[1].covered_pct
        )
    edges, thread = _edges(done, units), _most_common(done.thread[units.starts])
    parts = _are_parts(trace, done, units, marks, thread) or _are_of_server(trace, edges, done.thread[units.starts])
    if parts or period.length < _MIN_LAUNCHES:
        return trace
    return replace(_marked(trace, edges, thread) if period.is_step else trace, period=period)


def _period(of: str, done: _Sequence, units: Recurrence, recorded: Sequence[_Recorded]) -> OwnPeriod:
    launches = np.add.reduceat(~done.is_wait[: units.end], units.starts, dtype=np.int64)
    return OwnPeriod(
        of=of,
        length=int(np.median(launches)),
        repeats=len(units.starts),
        regular_pct=round(100 * units.regular, 1),
        covered_pct=_least_covered_pct(recorded, _edges(done, units)),
    )


def _least_covered_pct(recorded: Sequence[_Recorded], edges: I64) -> float:
    """Return the share of the first recording that belongs to repeats, or that of another if too little of it does.

    Elsewhere, a repeat may begin up to one earlier or later, as in a model whose layers are on several devices.
    """
    main, *others = (each.covered_pct(edges) for each in recorded)
    repeats = len(edges) - 1
    return min([main, *(pct for pct in others if pct * repeats < MIN_COVERED_PCT * max(1, repeats - 1))])


def _edges(done: _Sequence, units: Recurrence) -> I64:
    """Return when the host began each unit, and ended the last."""
    edges: I64 = np.append(done.start_ns, done.end_ns[-1:])[units.bounds]
    return edges


def _are_parts(trace: Trace, done: _Sequence, units: Recurrence, marks: Sequence[Index], thread: int) -> bool:
    """Return whether units are only parts of iterations, as the layers of a model are.

    Units are parts if a single call of the launching thread encloses several of them, or if most of them have no
    optimizer step, batch or read of a result, and others have it together with more work, such as the model's head. The
    last unit isn't compared, because the recording may end after it.
    """
    places = (*marks, _after(done, _reads(trace)))
    inside = [np.diff(np.searchsorted(of_kind - 1, units.starts)) for of_kind in places]
    *iterations, reads = (float(np.median(count)) for count in inside)
    iterates = max(iterations) >= 1
    calls = [
        trace.cpu_ops,
        trace.python_frames.take(trace.python_frames.named(lambda name: name.startswith("nn.Module: "))),
        # A user's own range may enclose a whole loop, of which each iteration has an optimizer step, a batch or a read.
        trace.annotations.take(trace.annotations.named(_is_loader)) if iterates or reads == 1 else trace.annotations,
    ]
    if any(_encloses_several(held, _edges(done, units), thread) for held in calls):
        return True
    if not iterates and not len(trace.gpu_ops):
        # A program calls the same ops in each pass, so that a pass cut off by the end is the beginning of another.
        # Blocks of a model may differ, and its head follows the last of them.
        rest = done.symbol[units.end :]
        return units.regular < _MIN_REGULARITY or not np.array_equal(rest, done.symbol[units.starts[-1] :][: len(rest)])
    more = np.diff(units.starts) - units.length
    rare = [count for count in inside if np.median(count) < 1]
    return not iterates and any(bool((more > count)[count > 0].any()) for count in rare)


def _encloses_several(held: HostEvents, edges: I64, thread: int) -> bool:
    """Return whether one of the events of a thread encloses several units."""
    rows = np.flatnonzero((held.end_ns - held.start_ns >= (edges[2:] - edges[:-2]).min()) & (held.thread == thread))
    inside = np.searchsorted(edges, held.end_ns[rows], "right") - np.searchsorted(edges, held.start_ns[rows])
    # Two units have three edges.
    return bool((inside > 2).any())


def _are_of_server(trace: Trace, edges: I64, threads: I64) -> bool:
    """Return whether several threads or streams go through units, each at its own pace, as a server's requests.

    The last unit isn't compared.
    """
    if len(distinct(threads)) > 1:
        return True
    launch = trace.gpu_ops.launch
    launched = np.bincount(launch[launch >= 0], minlength=len(trace.runtime_calls))
    first = np.searchsorted(trace.runtime_calls.start_ns, edges[:-1])
    count = np.add.reduceat(launched, first)[:-1] if launched.any() else np.ones(1)
    usual = np.median(count)
    # Units of waits launch nothing.
    alike = np.where(count == usual, 1, np.minimum(count, usual) / np.maximum(count, usual).clip(1))
    return bool(alike.mean() < MIN_REGULARITY)


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
    """Return the places of the launches or ops that follow some moments on the host, and the waits after them."""
    launches = np.flatnonzero(~done.is_wait)
    places = distinct(np.searchsorted(done.start_ns[launches], ends_ns))
    return launches[places[places < len(launches)]]


def _reads(trace: Trace) -> I64:
    """Return when the host had called for results of the device: copies to it, and synchronization."""
    calls, ops = trace.runtime_calls, trace.gpu_ops
    reads = calls.named(_is_wait)
    reads[ops.launch[(ops.kind == Kind.D2H) & (ops.launch >= 0)]] = True
    return calls.end_ns[reads]


def _is_wait(name: str) -> bool:
    return "Synchronize" in name


def _is_optimizer(name: str) -> bool:
    return name.startswith(OPTIMIZER_STEP)


def _is_loader(name: str) -> bool:
    return name.startswith("enumerate(DataLoader)#") and "__next__" in name
