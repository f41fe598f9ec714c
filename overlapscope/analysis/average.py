"""The frame of all figures that people read: an average step of the judged steps.

The judged steps are the whole ones, without a first one that is warm-up and without the last one, which ends with the
recording instead of the next step. They follow each other without gaps, except those of an inference server, where they
are the steps of the phase that takes most time. Every length of the average step is the mean of their lengths, in whole
nanoseconds, and every percentage is a ratio of the sums. Of recorded steps, one of median length is representative.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any, Final, TypeVar

import numpy as np
from msgspec import UNSET
from msgspec.structs import asdict, replace

from overlapscope.analysis.facts import Facts, host_time, means, rounded_mean, select, sums
from overlapscope.analysis.figures import Period, PerStep, PhaseFigures, ServedSteps, TimeFigures, by_cause, figures_in
from overlapscope.analysis.measured import figures_of
from overlapscope.analysis.periods import after_warm_up, find_steps
from overlapscope.analysis.plain_step import measured
from overlapscope.analysis.results import CopyGroup, Device, Evidence, HostStall, KernelGroup, PlainStep
from overlapscope.analysis.timeline import build
from overlapscope.base.columns import Bool, quantile
from overlapscope.base.intervals import covered
from overlapscope.base.kept import kept
from overlapscope.catalog.causes import CommCause, CopyCause, IdleCause
from overlapscope.trace.model import Trace
from overlapscope.trace.servers import Phase, StepBatch, batch_in, phase_in

WARM_UP_FACTOR = 1.5
_MIN_BESIDE_WARM_UP = 3
_MIN_SHARE_OF_WORK = 0.8
"""Minimum length of a plain step as a share of the device's work in a recorded one; at least 0.98 in 44 recordings."""


# -- Which steps ------------------------------------------------------------------------------------


def comparable(
    numbers: Sequence[int],
    names: Sequence[str],
    spans_ns: Sequence[int],
    *,
    settled: bool = False,
    phase: Phase | None = None,
) -> tuple[int, ...]:
    """Return the numbers of whole steps without the first if it is warm-up, and without the last if another is left.

    Those of a server are of the phase that takes most time. None of them is warm-up, because their batches differ.

    Args:
        numbers: Numbers of the whole steps, ascending.
        names: Names of all steps.
        spans_ns: Spans of all steps.
        settled: Whether it is known that none is warm-up.
        phase: Phase of a server's steps, instead of the phase that takes most time.
    """
    if phase is not None:
        return judged_by_phase(numbers, names).get(phase, ())
    of_phases = [kept for phase, kept in judged_by_phase(numbers, names).items() if phase is not None]
    if of_phases:
        return max(of_phases, key=lambda kept: sum(spans_ns[number] for number in kept))
    kept = tuple(numbers) if settled else without_warm_up(numbers, spans_ns)
    return kept[:-1] if len(kept) > 1 else kept


def judged_by_phase(numbers: Sequence[int], names: Sequence[str]) -> dict[Phase | None, tuple[int, ...]]:
    """Return the numbers of each phase's whole steps, without the recording's last if another is left."""
    phases: dict[Phase | None, list[int]] = {}
    for number in numbers:
        phases.setdefault(phase_in(names[number]), []).append(number)
    return {
        phase: tuple(kept[:-1] if len(kept) > 1 and kept[-1] == numbers[-1] else kept) for phase, kept in phases.items()
    }


def without_warm_up(numbers: Sequence[int], spans_ns: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers without the first if that step is warm-up. `spans_ns` has the spans of all steps."""
    warm_up = begins_with_warm_up([spans_ns[number] for number in numbers])
    return tuple(numbers[1:] if warm_up else numbers)


def begins_with_warm_up(spans_ns: Sequence[int]) -> bool:
    """Return whether the first step took over 1.5 times as long as the longest of the others.

    Then it allocated, compiled or chose kernels. With fewer than three steps, the result is False.
    """
    enough = len(spans_ns) >= _MIN_BESIDE_WARM_UP
    return enough and spans_ns[0] > WARM_UP_FACTOR * max(spans_ns[1:])


def judged_steps(device: Device, *, skip: int = 0, phase: Phase | None = None) -> tuple[int, ...]:
    """Return the numbers of the judged steps in `Device.steps`, of which the first `skip` are left out.

    `Device.steps` excludes what the recorder marked as warm-up. Those of a server are of the given phase, by default of
    the one that takes most time.
    """
    steps, average_step = device.steps, device.per_step
    if steps and average_step is not None and not skip and phase is None:
        following = range(average_step.first, len(steps))
        of_phase = (number for number in following if phase_in(steps[number].name) == (average_step.phase or None))
        return tuple(islice(of_phase, average_step.steps))
    whole = [number for number, step in enumerate(steps) if number >= skip and not step.partial]
    return comparable(whole, [step.name for step in steps], [step.span_ns for step in steps], phase=phase)


def judged_ranges(device: Device) -> tuple[Period, ...]:
    """Return the occurrences of ranges that begin in judged steps; all of them if no step is judged."""
    rows = judged_steps(device)
    if device.per_step is None or not rows:
        return device.ranges
    starts = [device.steps[row].window.start_ns for row in rows]

    def is_judged(period: Period) -> bool:
        place = bisect_right(starts, period.window.start_ns) - 1
        return place >= 0 and period.window.start_ns < device.steps[rows[place]].window.end_ns

    return tuple(filter(is_judged, device.ranges))


def occurrences(device: Device, *, skip: int = 0) -> dict[str, tuple[Period, ...]]:
    """Return the complete ranges by name that begin at or after the first step to compare."""
    steps = judged_steps(device, skip=skip)
    begin = device.steps[steps[0]].window.start_ns if steps else device.window.start_ns
    by_name: dict[str, list[Period]] = {}
    for period in device.ranges:
        if not period.partial and period.window.start_ns >= begin:
            by_name.setdefault(period.name, []).append(period)
    return {name: tuple(periods) for name, periods in by_name.items()}


@kept()
def known_plain_step(trace: Trace) -> PlainStep | None:
    """Return the step without the profiler as timed; None if too few were, or if the device's work takes longer.

    Recording hardly makes kernels longer. So the timed steps were others then, or only their launches.
    """
    recorded_ns, work_ns = 0, 0.0
    # On the first device, where a host that runs ahead does not shorten the judged steps.
    for device in trace.devices[:1]:
        timeline = build(trace, device)
        steps = find_steps(trace, after_warm_up(trace, timeline))
        spans = steps.end_ns - steps.start_ns
        names = [trace.annotations.name(row) for row in steps.row.tolist()]
        if judged := list(comparable(np.flatnonzero(~steps.partial).tolist(), names, spans.tolist())):
            recorded_ns = round(float(spans[judged].mean()))
            work_ns = float(covered(timeline.busy, steps.start_ns[judged], steps.end_ns[judged]).mean())
    plain = measured(trace.plain_steps, recorded_ns, trace.host_activity)
    return None if plain is not None and plain.step_ns < _MIN_SHARE_OF_WORK * work_ns else plain


def step_ns(trace: Trace) -> float:
    """Return the plain step, or else the mean of the sampled ones; 0 without either."""
    plain, activity = known_plain_step(trace), trace.host_activity
    return activity.span_ns / max(1, activity.steps) if plain is None else plain.step_ns


# -- The average step -------------------------------------------------------------------------------


def average(steps: Facts, judged: Sequence[int], names: Sequence[str]) -> PerStep | None:
    """Return the average of the judged steps, given by number; None if there are none. `names` has those of all."""
    if not judged:
        return None
    chosen = select(steps, list(judged))
    ns = means(chosen)
    return PerStep(
        steps=len(judged),
        first=judged[0],
        span_ns=ns["span"],
        **figures_of(ns, shares_of=sums(chosen)),
        **by_cause(ns),
        host=host_time(ns),
        phase=phase_in(names[judged[0]]) or UNSET,
    )


# -- The device in the frame ------------------------------------------------------------------------


def frame_of(device: Device) -> TimeFigures:
    """Return the figures of an average step; of the time after the lead-in if no step is judged."""
    return device.per_step or device.judged or device


def in_frame(device: Device) -> Device:
    """Return the device with the figures of an average step; of the time after the lead-in if no step is judged.

    Counts and bytes stay sums over the judged steps, because an average step may have half a copy.
    """
    average_step, rows = device.per_step, judged_steps(device)
    if average_step is None:
        return after_lead_in(device)

    def in_steps(group: G) -> G | None:
        totals = {name: sum(each[row] for row in rows) for name, each in asdict(group.by_step).items()}
        of_steps = {name: ns if name in _SUMMED else rounded_mean(ns, len(rows)) for name, ns in totals.items()}
        return _with_figures(group, of_steps)

    # Large reports are kept without the figures of each step.
    return _with(device, average_step, in_steps if rows else lambda _: None)


def after_lead_in(device: Device) -> Device:
    """Return the device with the figures and lists of the time after the lead-in; unchanged if nothing is left."""
    return device if device.judged is None else _with(device, device.judged, _judged)


_SUMMED: Final = ("count", "bytes", "duration_ns")
"""Figures of a group whose sum over the judged steps is stated instead of their mean."""
_LEADS_IN: Final = (CopyCause.LEAD_IN, CommCause.LEAD_IN, IdleCause.LEAD_IN)
G = TypeVar("G", CopyGroup, HostStall, KernelGroup, Evidence)


def _judged(group: G) -> G | None:
    """Return a group after the lead-in; None for what is in the lead-in only."""
    if isinstance(group, Evidence):
        return None if group.cause in _LEADS_IN else group
    judged = {name: value for name, value in asdict(group).items() if name.startswith("judged_")}
    names = {"judged_wait_ns": "host_wait_ns"}
    return _with_figures(group, {names.get(name, name.removeprefix("judged_")): each for name, each in judged.items()})


def _with_figures(group: G, figures: dict[str, Any]) -> G:
    """Return the group with other figures. Those of copies without a known size have none."""
    if isinstance(group, CopyGroup):
        moved, took_ns = figures["bytes"], figures.pop("duration_ns")
        sized = group.bytes is not None
        figures |= {"bytes": moved if sized else None, "gb_per_s": moved / took_ns if sized and took_ns else None}
    return replace(group, **figures)


_GROUPS: Final = {
    "copies": (("count", "time_ns"), ("time_ns",)),
    "host_stalls": (("host_wait_ns", "idle_caused_ns"), ("idle_caused_ns", "host_wait_ns")),
    "kernels": (("count",), ("time_ns",)),
    "evidence": (("time_ns",), ("time_ns",)),
}
"""Lists of a device's groups: the figures of which any makes a group matter, and those by which groups are sorted."""


def _with(device: Device, figures: TimeFigures, changed: Callable[[Any], Any]) -> Device:
    """Return the device with other figures and groups, without empty ones, the longest and the costliest first."""
    lists = {}
    for name, (needed, order) in _GROUPS.items():
        groups = filter(None, map(changed, getattr(device, name)))
        shown = (group for group in groups if any(getattr(group, figure) for figure in needed))
        lists[name] = tuple(sorted(shown, key=attrgetter(*order), reverse=True))
    return replace(device, **lists, **asdict(figures_in(figures)))


# -- Steps of an inference server by phase -----------------------------------------------------------

_NS_PER_S: Final = 10**9


def describe_served(facts: Facts, steps: Sequence[Period], window: Period) -> ServedSteps | None:
    """Return the figures of each phase; None for steps that no server marked. `window` has the figures of all time."""
    batches = {number: batch for number, step in enumerate(steps) if (batch := batch_in(step.name)) is not None}
    if not batches:
        return None
    whole = [number for number, step in enumerate(steps) if not step.partial]
    judged = judged_by_phase(whole, [step.name for step in steps])
    phases = [
        _phase(phase, facts, steps, batches, judged.get(phase, ()))
        for phase in dict.fromkeys(batch.phase for batch in batches.values())
    ]
    all_steps = [number for phase, numbers in judged.items() if phase is not None for number in numbers]
    span_ns = sum(steps[number].span_ns for number in all_steps)
    return ServedSteps(
        phases=tuple(sorted(phases, key=_total_ns, reverse=True)),
        tokens_per_s=_rate((batches[number].tokens for number in all_steps), span_ns),
        awaiting_requests_ns=window.idle_by_cause[IdleCause.AWAITING_REQUESTS],
        decode_tokens_per_s=_rate((_decoded(batches[number]) for number in all_steps), span_ns),
    )


def _phase(
    phase: Phase, facts: Facts, steps: Sequence[Period], batches: dict[int, StepBatch], judged: Sequence[int]
) -> PhaseFigures:
    requests = [batches[number].requests for number in judged]
    known = [count for count in requests if count is not None]
    stated = bool(known) and len(known) == len(requests)
    return PhaseFigures(
        phase=phase,
        recorded=sum(batch.phase == phase for batch in batches.values()),
        fewest_requests=min(known) if stated else None,
        most_requests=max(known) if stated else None,
        tokens_per_s=_rate(
            (batches[number].tokens for number in judged), sum(steps[number].span_ns for number in judged)
        ),
        per_step=average(facts, judged, [step.name for step in steps]),
    )


def _total_ns(phase: PhaseFigures) -> int:
    return 0 if phase.per_step is None else phase.per_step.steps * phase.per_step.span_ns


def _decoded(batch: StepBatch) -> int | None:
    """Return the tokens of requests that decode; None if unknown."""
    if batch.phase in ("prefill", "empty"):
        return 0
    return batch.tokens if batch.phase == "decode" else batch.decode_tokens


def _rate(counts: Iterable[int | None], span_ns: int) -> float | None:
    """Return counts by a second; None if any is unknown, or for no time."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total * _NS_PER_S / span_ns if span_ns else None


# -- Typical steps and outliers ----------------------------------------------------------------------


MIN_STEPS_FOR_OUTLIERS = 5
"""Minimum number of steps for outliers."""

DEVIATIONS = 3.0
MIN_SHARE = 0.05
"""Minimum deviation of an outlier as a share of the median span, however even the other steps are."""

_MAD_TO_SIGMA = 1.4826
"""Factor that turns the median absolute deviation of a normal distribution into its standard deviation."""


def median_step(periods: Sequence[Period]) -> Period | None:
    """Return the step of median length, the lower of the two middle ones, so that it is a recorded one."""
    ordered = sorted(periods, key=lambda step: (step.span_ns, step.window.start_ns))
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def find_outliers(steps: Sequence[Period]) -> Bool:
    """Select the steps whose span is more than 3 scaled median absolute deviations and 5% from the median.

    Outliers don't move the median and the median absolute deviation. 3 is the strictest threshold that C. Leys et al.
    propose ("Detecting outliers: Do not use standard deviation around the mean, use absolute deviation around the
    median", Journal of Experimental Social Psychology 49 (2013), 764-766).

    Returns:
        Mask of the steps; all false if there are too few to judge.
    """
    spans = np.array([step.span_ns for step in steps], np.float64)
    if len(spans) < MIN_STEPS_FOR_OUTLIERS:
        return np.zeros(len(spans), np.bool_)
    usual = quantile(spans, 0.5)
    away = np.abs(spans - usual)
    unusual: Bool = (away > DEVIATIONS * _MAD_TO_SIGMA * quantile(away, 0.5)) & (away >= MIN_SHARE * usual)
    return unusual
