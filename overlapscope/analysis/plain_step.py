"""Length of a step without the profiler: from steps that the recorder timed around the recording, or its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from overlapscope.analysis.results import Device, PlainStep, StepRange
from overlapscope.base.columns import quantile
from overlapscope.base.intervals import Intervals
from overlapscope.base.median import mean
from overlapscope.errors import UsageError
from overlapscope.trace.host_activity import HostActivity
from overlapscope.trace.model import I64, PlainSteps, TimedSteps, Trace

MIN_TIMED_STEPS = 5
"""Minimum number of timed steps for a mean."""
_MIN_CLOCKED_RATIO = 2
"""Minimum ratio of all clocked steps to those timed one by one for the mean of the former to count."""
_OTHER_KIND_RATIO = 1.5
"""Minimum ratio of a step to the longest recorded one for it to be of another kind. Recording only makes steps longer.
"""
_AHEAD_RATIO = 0.9
"""Maximum ratio of timed steps by the host's clock to the same by the device's for a host that runs ahead of it."""
_NO_ACTIVITY = HostActivity()
_NORMAL_QUANTILE = 1.96
"""Quantile of the normal distribution for 95%."""
_CONFIDENCE = 0.95
_LONGEST_NS = 1 << 53
"""104 days, which a float still represents exactly."""


def from_user(step_ns: int) -> PlainStep:
    """Return a length given by the user.

    Raises:
        UsageError: If it isn't a whole number of nanoseconds from 1 to 2**53 - 1.
    """
    if not 0 < step_ns < _LONGEST_NS or step_ns % 1:
        raise UsageError(f"{step_ns} ns is no length of a plain step; tell whole nanoseconds, such as 31_800_000.")
    step_ns = int(step_ns)
    return PlainStep(step_ns, step_ns, step_ns, "told")


def measured(steps: PlainSteps, recorded_ns: int, activity: HostActivity = _NO_ACTIVITY) -> PlainStep | None:
    """Return the plain step from timed steps; None if there are too few.

    It is the mean of the means before and after the recording if both are known, otherwise the one mean. The steps in
    which facts of the host were taken (`activity`) belong to those after the recording (`mean_of`). A recording slows a
    program down. If one side was slower than the recorded step (`recorded_ns`) and the other was not, the machine's
    speed changed, and only the other side is comparable with the recording. The interval contains the 95% intervals of
    both means, by Student's t. Where many more steps were clocked, all of them count instead (`_clocked`), unless the
    host ran ahead; then the interval only reaches to their mean.
    """
    sides = [lengths for side in (steps.before, steps.after) if len(lengths := lengths_of(side)) >= MIN_TIMED_STEPS]
    if not sides:
        return None
    means = [*map(mean_of, sides[:-1]), mean_of(sides[-1], activity)]
    ends = [*means, *(end for side in sides for end in _interval(side))]
    if steps.clocked.steps >= _MIN_CLOCKED_RATIO * sum(map(len, sides)):
        clocked = _clocked(steps, recorded_ns)
        if not host_ran_ahead(steps):
            return clocked
        ends.append(max(clocked.high_ns, *means))
    alike = [each for each in means if each <= recorded_ns] or means
    step_ns = mean(alike)
    return PlainStep(round(step_ns), math.floor(min(ends)), math.ceil(max(ends)), "measured")


def host_ran_ahead(plain: PlainSteps) -> bool:
    """Return whether the host marked steps faster than the device ran them: those that were timed, and all on average.

    A queue holds a thousand launches, which may be all of a short program. Then the host's clock shows no step time.
    """
    sides = [side for side in (plain.before, plain.after) if side.device_ns]
    if not sides:
        return False
    host_ns = sum(sum(side.host_ns[: len(side.device_ns)]) for side in sides)
    is_faster = host_ns < _AHEAD_RATIO * sum(sum(side.device_ns) for side in sides)
    return is_faster and plain.clocked.span_ns < plain.clocked.steps * min(mean(side.device_ns) for side in sides)


def _clocked(plain: PlainSteps, recorded_ns: int) -> PlainStep:
    """Return the mean of all steps that the program's clock saw, and what steps unlike any recorded one add to it.

    A host that runs ahead of its GPU marks steps in bursts, so that single lengths mean nothing. Steps count as longer
    only as far as those that were timed on the GPU are shorter than the mean.
    """
    clocked, least_ns = plain.clocked, _OTHER_KIND_RATIO * max(plain.clocked.recorded_ns, recorded_ns)
    alike = [(steps, span_ns) for steps, span_ns in clocked.lengths if span_ns <= least_ns * steps] or clocked.lengths
    mean_ns, usual_ns = (sum(ns for _, ns in each) / sum(n for n, _ in each) for each in (clocked.lengths, alike))
    on_device = [ns for side in (plain.before, plain.after) for ns in side.device_ns if ns <= least_ns]
    if on_device:
        usual_ns = min(mean_ns, max(usual_ns, mean(on_device)))
    squares = sum(steps * (span_ns / steps - mean_ns) ** 2 for steps, span_ns in clocked.lengths)
    aside_ns = _NORMAL_QUANTILE * math.sqrt(squares) / clocked.steps
    longer_ns, longer = round(mean_ns) - round(usual_ns), clocked.steps - sum(steps for steps, _ in alike)
    low_ns, high_ns = math.floor(max(0, mean_ns - aside_ns)), math.ceil(mean_ns + aside_ns)
    return PlainStep(round(mean_ns), low_ns, high_ns, "measured", clocked.steps, longer if longer_ns else 0, longer_ns)


def mean_of(lengths: Sequence[int], activity: HostActivity = _NO_ACTIVITY) -> float:
    """Return the mean of timed steps, and of the steps in which facts of the host were taken, if those are alike.

    There are many more of the latter, but only their mean is known. If it is not between the shortest and the longest
    timed step, there were steps of another kind, such as of a checkpoint.
    """
    facts = activity.facts
    if not facts.steps or not min(lengths) <= facts.span_ns / facts.steps <= max(lengths):
        return mean(lengths)
    return (sum(lengths) + facts.span_ns) / (len(lengths) + facts.steps)


def lengths_of(side: TimedSteps) -> tuple[int, ...]:
    """Return lengths by the device's clock if known; the host's clock only shows when steps were launched."""
    return side.device_ns or side.host_ns


def _interval(lengths: Sequence[int]) -> tuple[int, int]:
    """Return the interval in which the mean lies with 95% confidence, within the shortest and the longest length."""
    # Few recordings have timed steps.
    from statistics import stdev

    count, middle = len(lengths), mean(lengths)
    aside = _student_t(count - 1) * stdev(lengths, middle) / math.sqrt(count)
    return max(min(lengths), round(middle - aside)), min(max(lengths), round(middle + aside))


def _student_t(freedom: int) -> float:
    """Return the two-sided 95% quantile of Student's t, to 0.3% from four degrees of freedom.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    from statistics import NormalDist

    z = NormalDist().inv_cdf((1 + _CONFIDENCE) / 2)
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )


# -- Interval of an untimed step -------------------------------------------------------------------

_QUICK_CALL_QUANTILE = 0.1
"""Quantile of the lengths of launch calls that counts as their length: longer calls wait for room in a queue."""
_MIN_LAUNCHES = 20
"""Minimum number of launch calls for a quantile; of fewer, the longest is used."""


def step_interval(trace: Trace, device: Device, launches: I64, host: Intervals) -> StepRange | None:
    """Return the interval of a step without the profiler.

    Recording costs no event more than the whole of a quick launch call as recorded, on the same machine. So the step is
    at most shorter by that much for each event in it, and no shorter than the device's work. In recordings of 20
    programs that were also timed without the profiler, the lower end held for all (`docs/evaluation/plain.md`).

    Args:
        trace: The recording.
        device: Figures of the device.
        launches: Rows of the runtime calls that launched its kernels.
        host: Judged parts on the host.
    """
    frame = device.per_step or device.judged
    if frame is None or not frame.span_ns:
        return None
    low_ns = frame.span_ns - frame.buckets.idle_ns + frame.missing_ns
    calls = trace.runtime_calls
    if len(launches):
        lengths = calls.end_ns[launches] - calls.start_ns[launches]
        quick_ns = (
            math.ceil(quantile(lengths, _QUICK_CALL_QUANTILE)) if len(lengths) >= _MIN_LAUNCHES else int(lengths.max())
        )
        events = sum(
            int((np.searchsorted(table.start_ns, host.ends) - np.searchsorted(table.start_ns, host.starts)).sum())
            for table in (trace.cpu_ops, trace.annotations, trace.python_frames, calls)
        )
        steps = 1 if device.per_step is None else device.per_step.steps
        low_ns = max(low_ns, frame.span_ns - events * quick_ns // steps)
    return StepRange(low_ns=low_ns, high_ns=frame.span_ns)
