"""Host time of a step by activity of the launching thread, and the step's launches."""

from __future__ import annotations

import numpy as np

from overlapscope.analysis.calls import launching
from overlapscope.analysis.figures import HostTime
from overlapscope.analysis.host import find_blocking, inside_with, loading
from overlapscope.analysis.host_work import backward_threads, gc_pauses, launching_thread, shows_ops, work_of
from overlapscope.base.columns import mask_of
from overlapscope.base.intervals import I64, Intervals, covered, join, subtract
from overlapscope.base.kept import kept
from overlapscope.trace.model import Trace


def host_times(trace: Trace, device: int, starts: I64, ends: I64) -> tuple[HostTime | None, ...]:
    """Return the parts of each interval of host time, and the launches for a device that begin in it.

    They are None if no thread launches, or the launching thread's ops were not recorded.
    """
    parts = _parts(trace)
    if parts is None:
        return (None,) * len(starts)
    launches, noted = _launches(trace, device), bool(len(gc_pauses(trace))) or trace.host_activity is not None
    counts = np.searchsorted(launches, ends) - np.searchsorted(launches, starts)
    lengths = {name: covered(of, starts, ends) for name, of in parts.items()}
    rest = ends - starts - sum(lengths.values(), np.zeros(len(starts), np.int64))
    columns = {**{name: ns.tolist() for name, ns in lengths.items()}, "python_ns": rest.tolist()}
    return tuple(
        HostTime(launches=count, gc_known=noted, **dict(zip(columns, each, strict=True)))
        for count, *each in zip(counts.tolist(), *columns.values(), strict=True)
    )


def python_in(trace: Trace, starts: I64, ends: I64) -> I64 | None:
    """Return the Python of the launching thread in each interval of host time, in ns; None if it is unknown."""
    parts = _parts(trace)
    return None if parts is None else ends - starts - covered(join(*parts.values()), starts, ends)


@kept()
def _parts(trace: Trace) -> dict[str, Intervals] | None:
    """Return when the launching thread did each thing that is not Python; None if that is unknown."""
    thread = launching_thread(trace)
    if thread is None or not shows_ops(trace, thread):
        return None
    calls, blocking = trace.runtime_calls, find_blocking(trace)
    backward = backward_threads(trace)
    backward = backward[backward != thread]
    launches = [int((calls.thread[launching(trace)] == other).sum()) for other in backward.tolist()]
    companion = int(backward[np.argmax(launches)]) if len(backward) else thread
    work = work_of(trace, thread, companion)
    parts, taken = dict[str, Intervals](), list[Intervals]()
    for name, when in (
        ("profiler_ns", inside_with(trace, thread, companion, trace.overheads)),
        ("gc_pause_ns", work.pause),
        ("waiting_ns", inside_with(trace, thread, companion, calls.take(blocking.row))),
        ("loading_ns", inside_with(trace, thread, companion, loading(trace))),
        ("cpu_ops_ns", work.cpu_ops),
        ("dispatch_ns", work.dispatch),
    ):
        parts[name] = subtract(when, join(*taken)) if taken else when
        taken.append(when)
    return parts


@kept()
def _launches(trace: Trace, device: int) -> I64:
    """Return the starts of the calls that launch ops on a device, ascending."""
    launch = trace.gpu_ops.launch[(trace.gpu_ops.device == device) & (trace.gpu_ops.launch >= 0)]
    rows = np.flatnonzero(mask_of(launch, len(trace.runtime_calls)))
    return trace.runtime_calls.start_ns[rows]
