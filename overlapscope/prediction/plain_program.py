"""The plain program of an analysed recording: its step, the analysis of its replay, and its figures in a report."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from overlapscope.analysis import TraceAnalysis, analyze_trace, divide_trace
from overlapscope.analysis.device import StepBuckets
from overlapscope.analysis.grouping import distinct, distinct_rows
from overlapscope.analysis.plain_step import PlainStep
from overlapscope.analysis.results import Buckets, Device, Period, Plain
from overlapscope.base.session import kept_in_session
from overlapscope.prediction.base import Base, prepare
from overlapscope.prediction.overhead import as_plain, estimated, known_step
from overlapscope.prediction.predict import fitted
from overlapscope.prediction.predicted_trace import plain_trace
from overlapscope.trace.model import PlainSteps, Trace

P = TypeVar("P", Device, Period)

MOST_OPS = 200_000
"""Maximum number of GPU ops to replay by default: 200,000 synthetic ops add 0.9 s to an analysis of 0.4 s.
`overlapscope whatif` replays any recording."""
_MOST_DEVICES = 16
_MOST_LANES = 256
"""Maximum number of streams and threads to replay by default. Each costs some milliseconds, however little it does."""
_COPY, _IDLE = "exposed_copy_ns", "idle_ns"
_UNKNOWN = (_IDLE, "unknown")


class PlainProgram(msgspec.Struct, frozen=True, eq=False):
    """The plain program of one trace."""

    step: PlainStep | None
    """None if unknown: the overhead of torch.profiler can be estimated, that of other recorders cannot."""
    recorded: Base
    """The recording, prepared for predictions."""
    base: Base | None
    """Starting point of predictions for the plain program; None if the recording cannot be replayed."""
    analysis: TraceAnalysis | None
    """Analysis of the replay's timeline, for verdict, findings and budgets; None if the step is only estimated, or the
    recording cannot be replayed."""
    estimated: tuple[StepBuckets, ...] = ()
    """Breakdown of the replay's steps, if their length is an estimate."""

    def device(self, ordinal: int) -> Device | None:
        """Return a device's figures in the replay, with missing step time added (`Base.real_ns`)."""
        devices = self.analysis.devices if self.analysis is not None else ()
        result = next((device.result for device in devices if device.result.device == ordinal), None)
        lacking_ns = 0 if self.base is None or self.step is None else self.step.step_ns - self.base.steps.median_ns
        return result if result is None or lacking_ns <= 0 else _longer(result, lacking_ns)


def _longer(device: Device, by_ns: int) -> Device:
    """Return the device with each step lengthened by unexplained idle time; the windows keep their places."""
    whole_ns = by_ns * max(1, len(device.steps))
    return msgspec.structs.replace(
        _idle_for(device, whole_ns),
        judged=None if device.judged is None else _idle_for(device.judged, whole_ns),
        steps=tuple(_idle_for(step, by_ns) for step in device.steps),
    )


def _idle_for(part: P, more_ns: int) -> P:
    return msgspec.structs.replace(
        part,
        span_ns=part.span_ns + more_ns,
        buckets=msgspec.structs.replace(part.buckets, idle_ns=part.buckets.idle_ns + more_ns),
        idle_by_cause=part.idle_by_cause | {"unknown": part.idle_by_cause.get("unknown", 0) + more_ns},
    )


def replayed_unasked(trace: Trace) -> bool:
    """Return whether a recording is small enough, in ops and lanes, to replay it by default."""
    return len(trace.gpu_ops) <= MOST_OPS and _of_few_lanes(trace)


def _of_few_lanes(trace: Trace) -> bool:
    if len(trace.devices) > _MOST_DEVICES:
        return False
    streams = len(distinct_rows((trace.gpu_ops.device, trace.gpu_ops.stream)))
    return streams + len(distinct(trace.runtime_calls.thread)) <= _MOST_LANES


def find_program(analysis: TraceAnalysis, user_step_ns: int | None, *, estimate: bool) -> PlainProgram | None:
    """Return the plain program of an analysed recording.

    Args:
        user_step_ns: Length of its step, if the user passed it.
        estimate: Estimate the step if it is neither passed nor timed.

    Returns:
        None for a prediction, a trace without GPU activity, a recording that cannot be replayed, and a step that is
        neither known nor to be estimated. Also None if the recording is too large to estimate its step, or has more
        devices, streams and threads than programs do while the user passed no step.
    """
    trace = analysis.trace
    if trace.predicted_by is not None or not analysis.devices:
        return None
    if user_step_ns is None and not _of_few_lanes(trace):
        return None
    untold = user_step_ns is None and trace.plain_steps == PlainSteps()
    if untold and (not estimate or len(trace.gpu_ops) > MOST_OPS):
        return None
    try:
        return _replayed(analysis, user_step_ns, estimate)
    except (ArithmeticError, LookupError, MemoryError, ValueError):
        if not untold:
            raise
        # An estimate must not break the analysis of an unusual trace.
        return None


@kept_in_session
def _replayed(analysis: TraceAnalysis, user_step_ns: int | None, estimate: bool) -> PlainProgram | None:
    recorded = prepare(analysis.trace, None, None, with_shapes=False)
    step = known_step(recorded, user_step_ns)
    if step is None and not estimate:
        return None
    if step is None and analysis.trace.recorder != "kineto":
        return PlainProgram(None, recorded, None, None)
    if not recorded.fidelity.valid:
        return None if step is None else PlainProgram(step, recorded, None, None)
    if step is not None:
        base = as_plain(recorded, step)
    else:
        base = estimated(recorded)
        assert base.plain is not None
        step = base.plain
    replayed = plain_trace(base)
    if step.decides:
        return PlainProgram(step, recorded, base, analyze_trace(replayed))
    return PlainProgram(step, recorded, base, None, divide_trace(replayed))


def summary(recorded: Device, program: PlainProgram) -> Plain | None:
    """Return the report's figures of a device without recording; None if the plain step is unknown."""
    device, step = program.device(recorded.device), program.step
    if step is None:
        return None
    estimated = (figures for figures in program.estimated if figures.device == recorded.device)
    figures = next(estimated, None) if device is None else device
    parts = _fallback(recorded, step.step_ns) if figures is None else _fitted(_typical(figures), step.step_ns)
    sums = {bucket: sum(_by_cause(parts or {}, bucket).values()) for bucket in Buckets.__struct_fields__}
    return Plain(
        step_ns=step.step_ns,
        low_ns=step.low_ns,
        high_ns=step.high_ns,
        origin=step.origin,
        recorded_step_ns=program.recorded.recorded.median_ns,
        buckets=None if parts is None else Buckets(**sums),
        exposed_copy_by_cause=_by_cause(parts or {}, _COPY),
        idle_by_cause=_by_cause(parts or {}, _IDLE),
        program=device,
    )


_Parts = dict[tuple[str, str], int]
"""Parts of a step, by bucket and cause; the cause is empty for buckets without causes."""


def _fallback(device: Device, step_ns: int) -> _Parts | None:
    """Return the parts of the recording's step, with idle time adjusted to the plain step.

    The adjusted idle time has no known cause. None if the recording's ops alone take longer than the plain step.
    """
    parts = _typical(device)
    busy = {key: ns for key, ns in parts.items() if key[0] != _IDLE}
    if sum(busy.values()) > step_ns:
        return None
    if sum(parts.values()) > step_ns:
        parts = busy
    return _fitted(parts, step_ns)


def _fitted(parts: _Parts, step_ns: int) -> _Parts:
    """Return the parts, scaled to add up to the step."""
    return fitted(parts | {_UNKNOWN: parts.get(_UNKNOWN, 0)}, _UNKNOWN, step_ns)


def _typical(device: Device | StepBuckets) -> _Parts:
    """Return the parts of the step of median length (`periods.StepTimes`), or of the window without steps."""
    steps = sorted(device.steps[:-1] or device.steps, key=lambda step: step.span_ns)
    period = steps[(len(steps) - 1) // 2] if steps else device.judged
    if period is None:
        return {}
    causes = {_COPY: period.exposed_copy_by_cause, _IDLE: period.idle_by_cause}
    return {
        (bucket, cause): part
        for bucket, ns in msgspec.structs.asdict(period.buckets).items()
        for cause, part in causes.get(bucket, {"": ns}).items()
    }


def _by_cause(parts: _Parts, bucket: str) -> dict[str, int]:
    return {cause: ns for (part, cause), ns in parts.items() if part == bucket}
