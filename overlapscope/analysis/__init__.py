"""Analysis of traces: pure functions with frozen results."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import UNSET, Struct
from msgspec.structs import replace

from overlapscope.analysis.device import DeviceAnalysis, analyze_device, describe
from overlapscope.analysis.jobs import describe_environment
from overlapscope.analysis.periods import check_step, names_of
from overlapscope.analysis.results import Check, TraceResult
from overlapscope.analysis.trust import clocks_agree, judge_file, verdict
from overlapscope.analysis.trust_device import judge_device
from overlapscope.base.memory import check_room
from overlapscope.base.words import check_device, check_known
from overlapscope.errors import NotInTrace
from overlapscope.errors import UnreadableTrace as UnreadableTrace
from overlapscope.trace.host import find_blocking
from overlapscope.trace.model import Trace


class TraceAnalysis(Struct, frozen=True, eq=False):
    """Result for one trace, and its devices' timelines for drawing."""

    result: TraceResult
    devices: tuple[DeviceAnalysis, ...]
    trace: Trace


def analyze_trace(
    trace: Trace,
    *,
    device: int | None = None,
    step: str | None = None,
    range: str | None = None,
    settled: bool = False,
    described: bool = True,
) -> TraceAnalysis:
    """Analyze all devices of a trace or one of them, over the whole window or over one step or range.

    Args:
        trace: The trace.
        device: Ordinal of the only device to analyse.
        step: Name of the only step to analyse.
        range: Name of the only range to analyse.
        settled: Whether the trace replays a recording, which has decided that no step is warm-up.
        described: Whether to include what only a report on this trace shows (`device.describe`).

    Returns:
        The trace's results, with the timelines of its devices.

    Raises:
        NotInTrace: If no device has that step or range.
        UnreadableTrace: If the analysis needs more memory than is left beside the traces analyzed before.
    """
    tables = trace.gpu_ops, trace.runtime_calls, trace.cpu_ops, trace.annotations, trace.python_frames, trace.syncs
    check_room(trace.source, sum(map(len, tables)))
    return _analyze(trace, device, step, range, settled, described)


def _analyze(
    trace: Trace, device: int | None, step: str | None, range: str | None, settled: bool, described: bool
) -> TraceAnalysis:
    checks = [*judge_file(trace)]
    comparable = _comparable(trace, checks)
    blocking = find_blocking(comparable)
    devices = []
    for ordinal in trace.devices:
        if device is None or ordinal == device:
            analysis = analyze_device(trace, comparable, ordinal, blocking, step=step, range=range, settled=settled)
            if analysis is not None:
                devices.append(describe(trace, analysis, blocking, settled=settled) if described else analysis)
                checks += judge_device(trace, analysis.timeline, analysis.steps, analysis.idle)
    if not devices:
        check_device(trace.source, device, trace.devices)
        if step is not None:
            check_step(trace.source, step, trace.annotations)
        if range is not None:
            check_known(trace.source, "range", range, names_of(trace.annotations)[1])
        for what, name in (("step", step), ("range", range)):
            if name is not None:
                raise NotInTrace(f"{trace.source}: {what} {name} launched nothing on the GPU; choose another.")
    host, sampled = None, None
    if described and not len(trace.gpu_ops):
        from overlapscope.analysis.host_use import describe_host

        host = describe_host(trace)
    if described and trace.host_activity and not trace.predicted_by:
        from overlapscope.analysis.host_sampled import sampled_step

        sampled = sampled_step(trace, host)
    result = TraceResult(
        source=trace.source,
        rank=trace.rank,
        trust=verdict(checks),
        devices=tuple(analysis.result for analysis in devices),
        environment=describe_environment(trace),
        predicted_by=trace.predicted_by,
        host=host,
        sampled=sampled,
        origin=trace.origin or UNSET,
        step_source=trace.step_source or UNSET,
        period=trace.period or UNSET,
    )
    return TraceAnalysis(result, tuple(devices), trace)


def _comparable(trace: Trace, checks: Sequence[Check]) -> Trace:
    """Return the trace without launches if its clocks can't be compared, as causes then can't use the host."""
    if clocks_agree(checks):
        return trace
    return replace(trace, gpu_ops=replace(trace.gpu_ops, launch=np.full(len(trace.gpu_ops), -1, np.int64)))
