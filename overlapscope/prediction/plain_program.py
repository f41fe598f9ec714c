"""The plain program: the recorded program as it runs without the profiler.

Its step was timed, or passed by the user. A replay of the recording without the profiler's cost has its figures.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis import TraceAnalysis, analyze_trace
from overlapscope.analysis.figures import Period, PerStep, TimeFigures
from overlapscope.analysis.results import Device, Plain, PlainStep
from overlapscope.catalog.causes import IdleCause
from overlapscope.prediction.base import Base, on_device, prepare
from overlapscope.prediction.overhead import known_step, plain_program
from overlapscope.prediction.predicted_trace import plain_trace

P = TypeVar("P", bound=TimeFigures)


class PlainProgram(Struct, frozen=True, eq=False):
    """The plain program of one trace."""

    step: PlainStep | None
    """None if there are too few timed steps for a mean."""
    recorded: Base
    """The recording, prepared for predictions."""
    base: Base | None
    """Starting point of predictions for the plain program; None if the recording cannot be replayed."""
    analysis: TraceAnalysis | None
    """Analysis of the replay's timeline; None if the recording cannot be replayed."""

    def step_on(self, recorded: Device) -> Plain | None:
        """Return a device's step without recording, with its figures in the replay; None if the step is unknown.

        Each device's average step differs slightly from `step`, and by rounding. Missing step time is added
        (`Base.real_ns`).
        """
        step, program = self.step, None
        if self.base is not None and self.analysis is not None:
            plain = on_device(self.base, recorded.device).plain
            assert plain is not None
            replayed = next(each.result for each in self.analysis.devices if each.result.device == recorded.device)
            program = _as_long_as(replayed, plain.step_ns)
            if program is not None:
                rounded_ns = _judged_part(program).span_ns - plain.step_ns
                low_ns, step_ns, high_ns = (ns + rounded_ns for ns in (plain.low_ns, plain.step_ns, plain.high_ns))
                step = replace(plain, low_ns=low_ns, step_ns=step_ns, high_ns=high_ns)
        if step is None:
            return None
        figures = _adjusted(recorded, step.step_ns) if program is None else _judged_part(program)
        return Plain.of(step, _judged_part(recorded), figures, program)


_ROUNDED_NS = 2
"""Maximum difference between the means of a device's steps that is rounding: all times are whole nanoseconds."""


def _judged_part(device: Device) -> PerStep | Period | Device:
    """Return the average step; without steps, the time after the lead-in."""
    return device.per_step or device.judged or device


def _as_long_as(device: Device, step_ns: int) -> Device | None:
    """Return the device with each step lengthened by time that was not recorded; the windows keep their places.

    None if the steps are too long: time that is not idle can't be taken away.
    """
    by_ns = step_ns - _judged_part(device).span_ns
    if by_ns <= _ROUNDED_NS:
        return device if by_ns >= -_ROUNDED_NS else None
    whole_ns = by_ns * max(1, len(device.steps))
    return replace(
        _idle_for(device, whole_ns),
        judged=None if device.judged is None else _idle_for(device.judged, whole_ns),
        per_step=None if device.per_step is None else _idle_for(device.per_step, by_ns),
        steps=tuple(_idle_for(step, by_ns) for step in device.steps),
    )


def _idle_for(part: P, more_ns: int) -> P:
    return replace(
        part,
        span_ns=part.span_ns + more_ns,
        buckets=replace(part.buckets, idle_ns=part.buckets.idle_ns + more_ns),
        idle_by_cause=part.idle_by_cause | {IdleCause.UNRECORDED: more_ns},
    )


def replay_plain(analysis: TraceAnalysis, user_step_ns: int | None) -> PlainProgram:
    """Return the plain program of an analyzed recording. Raises UsageError as `find_program` does."""
    recorded = prepare(analysis.trace, None)
    step, base = known_step(recorded.trace, user_step_ns), plain_program(recorded, user_step_ns)
    # The recording has decided which steps are judged.
    replayed = None if base is None else analyze_trace(plain_trace(base), settled=True)
    # Each device must have as many judged steps in both, or else time after the lead-in in both.
    if replayed is None or _judged_steps(analysis) != _judged_steps(replayed):
        return PlainProgram(step, recorded, None, None)
    return PlainProgram(step, recorded, base, replayed)


def _judged_steps(analysis: TraceAnalysis) -> dict[int, int]:
    """Return each device's number of judged steps; without steps, -1 if it has time after the lead-in, else 0."""
    devices = [device.result for device in analysis.devices]
    return {each.device: each.per_step.steps if each.per_step else -(each.judged is not None) for each in devices}


def _adjusted(device: Device, step_ns: int) -> PerStep | Period | None:
    """Return the recorded step with idle time adjusted to the plain step; the adjusted idle time has no known cause.

    None if the recording's ops alone take longer than the plain step.
    """
    recorded = device.per_step or device.judged
    if recorded is None or recorded.span_ns - recorded.buckets.idle_ns > step_ns:
        return None
    if recorded.span_ns > step_ns:
        recorded = replace(_idle_for(recorded, -recorded.buckets.idle_ns), idle_by_cause={})
    return _idle_for(recorded, step_ns - recorded.span_ns)
