"""The frame of all figures that people read: an average step of the judged steps.

The judged steps are the whole ones, without a first one that is warm-up and without the last one, which ends with the
recording instead of the next step. They follow each other without gaps, except those of an inference server, where they
are the steps of the phase that takes most time. Every length of the average step is the mean of their lengths, in whole
nanoseconds, and every percentage is a ratio of the sums.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Final

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from overlapscope.analysis.figures import (
    FIGURES,
    HostTime,
    Period,
    PerStep,
    PhaseFigures,
    ServedSteps,
    TimeFigures,
    by_cause,
)
from overlapscope.analysis.measured import figures_of
from overlapscope.analysis.results import CopyGroup, Device, Evidence, HostStall, KernelGroup, by_subject
from overlapscope.base.intervals import I64
from overlapscope.catalog.causes import CommCause, CopyCause, IdleCause
from overlapscope.catalog.measures import BY_CAUSE, MEASURED, PARTS, of_group
from overlapscope.trace.servers import Phase, StepBatch, batch_in, phase_in

_other_lengths: Final = attrgetter(*(f"{group}.{field}" for group, field in MEASURED.values()))
_SUBJECT_AND_CAUSE: Final = [name.split(":") for name in PARTS[1:]]
COLUMN: Final = {name: number for number, name in enumerate((*PARTS, *MEASURED))}
"""Column of each length in `lengths_of`."""
WARM_UP_FACTOR = 1.5
_FEWEST_BESIDE_WARM_UP = 3


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
    enough = len(spans_ns) >= _FEWEST_BESIDE_WARM_UP
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


# -- Means of periods -------------------------------------------------------------------------------


def lengths_of(periods: Sequence[Period]) -> I64:
    """Return all lengths of each period, in nanoseconds, of shape (periods, `COLUMN`)."""
    return np.array([_lengths(period) for period in periods], np.int64).reshape(len(periods), len(COLUMN))


def _lengths(period: Period) -> list[int]:
    every: Mapping[str, Mapping[str, int]] = by_subject(period)  # type: ignore[assignment]
    of_causes = [every[subject].get(cause, 0) for subject, cause in _SUBJECT_AND_CAUSE]
    return [period.buckets.compute_ns, *of_causes, *_other_lengths(period)]


def means(table: I64) -> dict[str, int]:
    """Return the mean of each column of `lengths_of` in whole nanoseconds, rounded so that sums stay exact.

    The parts of the span add up to its mean. Time exposed in one direction, in the other and in both at once adds up
    to the exposed copy.
    """
    totals, count = table.sum(axis=0).tolist(), len(table)
    exact = dict(zip(COLUMN, totals, strict=True))
    rounded, running, distributed = {}, 0, 0
    for name, total in exact.items():
        if name in MEASURED:
            rounded[name] = rounded_mean(total, count)
            continue
        # Rounding the running sum instead of each part keeps the total exact.
        running += total
        rounded[name] = rounded_mean(running, count) - distributed
        distributed += rounded[name]
    exposed, exposed_total = (sum(each[name] for name in BY_CAUSE["exposed_copy"]) for each in (rounded, exact))
    rounded["copy"] = exposed + rounded_mean(exact["copy"] - exposed_total, count)
    only_h2d = min(exposed, rounded_mean(exposed_total - exact["exposed_d2h"], count))
    in_one = min(exposed, rounded_mean(2 * exposed_total - exact["exposed_d2h"] - exact["exposed_h2d"], count))
    rounded["exposed_h2d"] = only_h2d + exposed - in_one
    rounded["exposed_d2h"] = exposed - only_h2d
    return rounded


def rounded_mean(total: int, count: int) -> int:
    """Return the mean, rounded to the nearest whole number."""
    return (2 * total + count) // (2 * count)


def average(steps: Sequence[Period], judged: Sequence[int]) -> PerStep | None:
    """Return the average of the judged steps, given by number; None if there are none."""
    if not judged:
        return None
    periods = [steps[number] for number in judged]
    table = lengths_of(periods)
    ns = means(table)
    sums = _with_totals(dict(zip(COLUMN, table.sum(axis=0).tolist(), strict=True)))
    figures = figures_of(_with_totals(ns))
    # A ratio of means would be rounded twice.
    shares = {measure.id: measure.of(sums) for measure in of_group("overlap") if measure.unit == "pct"}
    return PerStep(
        steps=len(periods),
        first=judged[0],
        span_ns=sum(ns[name] for name in PARTS),
        buckets=figures["buckets"],
        engines=figures["engines"],
        overlap=replace(figures["overlap"], **shares),
        **by_cause(ns),
        host=_mean_host([step.host for step in periods]),
        phase=phase_in(periods[0].name) or UNSET,
    )


def lengths_by_name(period: Period) -> dict[str, int]:
    """Return all lengths of a period by name, those of its buckets and of its span included."""
    buckets = {measure.name: getattr(period.buckets, measure.id) for measure in of_group("buckets")}
    return {**dict(zip(COLUMN, _lengths(period), strict=True)), **buckets, "span": period.span_ns}


def _with_totals(ns: Mapping[str, int]) -> dict[str, int]:
    """Return the lengths in a row of `lengths_of` with those of the buckets that it has by cause."""
    return {**ns, **{name: sum(ns[part] for part in parts) for name, parts in BY_CAUSE.items()}}


def _mean_host(times: Sequence[HostTime | None]) -> HostTime | None:
    """Return the mean of the host times, rounded so that sums stay exact; None if any is unknown."""
    known = [time for time in times if time is not None]
    if len(known) < len(times):
        return None
    running, given, rounded = 0, 0, dict[str, int]()
    for name in HostTime.__struct_fields__:
        if name == "gc_known":
            continue
        total = sum(getattr(time, name) for time in known)
        if name == "launches":
            rounded[name] = rounded_mean(total, len(known))
            continue
        running += total
        rounded[name] = rounded_mean(running, len(known)) - given
        given += rounded[name]
    return HostTime(**rounded, gc_known=all(time.gc_known for time in known))


# -- The device in the frame ------------------------------------------------------------------------


def in_frame(device: Device) -> Device:
    """Return the device with the figures of an average step; of the time after the lead-in if no step is judged.

    Counts and bytes stay sums over the judged steps, because an average step may have half a copy.
    """
    average_step, rows = device.per_step, judged_steps(device)
    if average_step is None:
        return after_lead_in(device)
    framed = _with_figures(device, average_step)
    if not rows:
        # Large reports are kept without the figures of each step.
        return replace(framed, copies=(), host_stalls=(), kernels=(), evidence=())
    copies = [_copies_in_steps(group, rows) for group in device.copies if group.by_step.time_ns]
    stalls = [_stall(stall, rows) for stall in device.host_stalls if stall.by_step.host_wait_ns]
    kernels = [_kernels_in_steps(group, rows) for group in device.kernels if group.by_step.count]
    cases = [_case(case, rows) for case in device.evidence if case.by_step.time_ns]
    return _with_lists(framed, copies, stalls, kernels, cases)


def after_lead_in(device: Device) -> Device:
    """Return the device with the figures and lists of the time after the lead-in; unchanged if nothing is left."""
    if device.judged is None:
        return device
    return _with_lists(
        _with_figures(device, device.judged),
        (
            _copies(
                group,
                group.judged_count,
                group.judged_bytes,
                group.judged_duration_ns,
                group.judged_time_ns,
                group.judged_exposed_ns,
            )
            for group in device.copies
        ),
        # No call is blamed for idle time in the lead-in.
        (replace(stall, count=stall.judged_count, host_wait_ns=stall.judged_wait_ns) for stall in device.host_stalls),
        (
            replace(
                group,
                count=group.judged_count,
                time_ns=group.judged_time_ns,
                exposed_ns=group.judged_exposed_ns,
            )
            for group in device.kernels
        ),
        (
            case
            for case in device.evidence
            if case.cause not in (CopyCause.LEAD_IN, CommCause.LEAD_IN, IdleCause.LEAD_IN)
        ),
    )


def _with_figures(device: Device, figures: TimeFigures) -> Device:
    return replace(device, **{name: getattr(figures, name) for name in FIGURES})


def _with_lists(
    device: Device,
    copies: Iterable[CopyGroup],
    stalls: Iterable[HostStall],
    kernels: Iterable[KernelGroup],
    cases: Iterable[Evidence],
) -> Device:
    """Return the device with these lists, without empty groups, the longest and the costliest first."""
    return replace(
        device,
        copies=tuple(sorted((group for group in copies if group.count or group.time_ns), key=_longest)),
        host_stalls=tuple(
            sorted(
                (stall for stall in stalls if stall.host_wait_ns or stall.idle_caused_ns),
                key=lambda stall: (-stall.idle_caused_ns, -stall.host_wait_ns),
            )
        ),
        kernels=tuple(sorted((group for group in kernels if group.count), key=_longest)),
        evidence=tuple(sorted((case for case in cases if case.time_ns), key=_longest)),
    )


def _longest(group: CopyGroup | KernelGroup | Evidence) -> int:
    return -group.time_ns


def _copies(group: CopyGroup, count: int, moved: int, took_ns: int, time_ns: int, exposed_ns: int) -> CopyGroup:
    """Return the figures of some of a group's copies."""
    return replace(
        group,
        count=count,
        bytes=moved if group.bytes is not None else None,
        time_ns=time_ns,
        exposed_ns=exposed_ns,
        gb_per_s=moved / took_ns if group.bytes is not None and took_ns else None,
    )


def _copies_in_steps(group: CopyGroup, rows: Sequence[int]) -> CopyGroup:
    each = group.by_step
    count, moved, took_ns = (_total(column, rows) for column in (each.count, each.bytes, each.duration_ns))
    return _copies(group, count, moved, took_ns, _mean(each.time_ns, rows), _mean(each.exposed_ns, rows))


def _stall(stall: HostStall, rows: Sequence[int]) -> HostStall:
    each = stall.by_step
    return replace(
        stall,
        count=_total(each.count, rows),
        host_wait_ns=_mean(each.host_wait_ns, rows),
        idle_caused_ns=_mean(each.idle_caused_ns, rows),
    )


def _kernels_in_steps(group: KernelGroup, rows: Sequence[int]) -> KernelGroup:
    each = group.by_step
    time_ns, exposed_ns = _mean(each.time_ns, rows), _mean(each.exposed_ns, rows)
    return replace(group, count=_total(each.count, rows), time_ns=time_ns, exposed_ns=exposed_ns)


def _case(case: Evidence, rows: Sequence[int]) -> Evidence:
    each = case.by_step
    return replace(case, count=_total(each.count, rows), time_ns=_mean(each.time_ns, rows))


def _total(each: Sequence[int], rows: Sequence[int]) -> int:
    return sum(each[row] for row in rows)


def _mean(each: Sequence[int], rows: Sequence[int]) -> int:
    return rounded_mean(_total(each, rows), len(rows))


# -- Steps of an inference server by phase -----------------------------------------------------------

_NS: Final = 10**9


def describe_served(steps: Sequence[Period], window: Period) -> ServedSteps | None:
    """Return the figures of each phase; None for steps that no server marked. `window` has the figures of all time."""
    batches = {number: batch for number, step in enumerate(steps) if (batch := batch_in(step.name)) is not None}
    if not batches:
        return None
    whole = [number for number, step in enumerate(steps) if not step.partial]
    judged = judged_by_phase(whole, [step.name for step in steps])
    phases = [
        _phase(phase, steps, batches, judged.get(phase, ()))
        for phase in dict.fromkeys(batch.phase for batch in batches.values())
    ]
    every = [number for phase, numbers in judged.items() if phase is not None for number in numbers]
    span_ns = sum(steps[number].span_ns for number in every)
    return ServedSteps(
        phases=tuple(sorted(phases, key=_total_ns, reverse=True)),
        tokens_per_s=_rate((batches[number].tokens for number in every), span_ns),
        awaiting_requests_ns=window.idle_by_cause[IdleCause.AWAITING_REQUESTS],
        decode_tokens_per_s=_rate((_decoded(batches[number]) for number in every), span_ns),
    )


def _phase(phase: Phase, steps: Sequence[Period], batches: dict[int, StepBatch], judged: Sequence[int]) -> PhaseFigures:
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
        per_step=average(steps, judged),
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
    return total * _NS / span_ns if span_ns else None
