"""Samples that budgets judge: steps of a device, occurrences of its ranges, or its window.

A `Series` has the values of a metric in them; `Spent` has mean times, for reasons and noise floors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import fsum
from operator import attrgetter, mul
from statistics import fmean
from typing import Final, Protocol

from msgspec import Struct

from overlapscope.analysis.average import judged_steps, without_warm_up
from overlapscope.analysis.figures import COPIES_MATTER_FROM, Period
from overlapscope.analysis.groups import says_bandwidth
from overlapscope.analysis.results import CopyGroup, Device, HostUse
from overlapscope.base.words import percent
from overlapscope.budgets.metrics import DIRECTIONS, METRICS, Direction, Metric, Moved, Sample, copy_ns
from overlapscope.catalog.causes import (
    COMM_CAUSES,
    COPY_CAUSES,
    IDLE_CAUSES,
    STALL_CAUSES,
    IdleCause,
    Subject,
)
from overlapscope.catalog.measures import Blame
from overlapscope.compare.figures import occurrences
from overlapscope.compare.noise import HOST_CAUSES, LINK_SHARE, POINTS, floor_ns
from overlapscope.trace.servers import Phase


class Series(Struct, frozen=True):
    """Values of a metric, one per sample; None for a percentage of nothing."""

    names: tuple[str, ...]
    values: tuple[float | None, ...]
    spans_ns: tuple[int, ...]
    """Lengths of the samples. They seed the bootstrap, so that all metrics of the same samples are drawn alike."""
    wholes: tuple[float, ...]
    """The denominator of each value, so that a mean is the ratio of the sums; 1 for times."""

    def known(self) -> Series:
        """Return the series without samples that have no value."""
        return self.take([number for number, value in enumerate(self.values) if value is not None])

    def take(self, kept: Sequence[int]) -> Series:
        """Return the series of some samples, by number."""
        return Series(
            tuple(self.names[number] for number in kept),
            tuple(self.values[number] for number in kept),
            tuple(self.spans_ns[number] for number in kept),
            tuple(self.wholes[number] for number in kept),
        )

    @property
    def numbers(self) -> tuple[float, ...]:
        """The values, without None."""
        return tuple(value for value in self.values if value is not None)

    @property
    def mean(self) -> float:
        """The mean of known values, weighted so that a mean percentage is the ratio of the sums."""
        known = self.known()
        return fsum(map(mul, known.numbers, known.wholes)) / fsum(known.wholes)


class Measurements(Protocol):
    """Measurements at one place, from a recording or a baseline."""

    def __call__(self, metric: Metric, direction: Direction | None, cause: str | None = None, /) -> Series:
        """Return the values of a metric; with `cause`, the part due to that cause of a metric in `CAUSES_OF`."""


_BY_CAUSE: Final[Mapping[str, Callable[[Period], Mapping[str, int]]]] = {
    "exposed_copy_time": attrgetter("exposed_copy_by_cause"),
    "exposed_comm_time": attrgetter("exposed_comm_by_cause"),
    "idle_time": attrgetter("idle_by_cause"),
}


def series(samples: Sequence[Sample], metric: Metric, direction: Direction | None, cause: str | None = None) -> Series:
    """Return the values of a metric in a recording: see `Measurements`."""
    if cause is None:
        values = tuple(metric.read(sample, direction) for sample in samples)
    else:
        values = tuple(float(_BY_CAUSE[metric.id](sample.figures).get(cause, 0)) for sample in samples)
    of = metric.whole if cause is None else None
    return Series(
        tuple(sample.name for sample in samples),
        values,
        tuple(sample.figures.span_ns for sample in samples),
        tuple(1.0 if of is None else float(of(sample, direction)) for sample in samples),
    )


def of_steps(device: Device, *, skip: int = 0, phase: Phase | None = None) -> tuple[Sample, ...]:
    """Return the steps to judge: whole ones after the warm-up, of the phase that takes most time or of another."""
    return tuple(step_sample(device, number) for number in judged_steps(device, skip=skip, phase=phase))


def step_sample(device: Device, number: int) -> Sample:
    """Return one of `Device.steps` as a sample."""
    moved = _moved(device, lambda group: (group.by_step.bytes[number], group.by_step.duration_ns[number]))
    return Sample(device.steps[number].name, device.steps[number], moved)


def of_ranges(device: Device, *, skip: int = 0) -> dict[str, tuple[Sample, ...]]:
    """Return the occurrences of each range, by its name."""
    return {
        name: tuple(Sample(f"{name} ({number})", period, {}) for number, period in enumerate(periods, 1))
        for name, periods in occurrences(device, skip=skip).items()
    }


def of_window(device: Device) -> tuple[Sample, ...]:
    """Return the window after the lead-in; nothing if all of it is lead-in."""
    if device.judged is None:
        return ()
    moved = _moved(device, lambda group: (group.judged_bytes, group.judged_duration_ns))
    return (Sample("window", device.judged, moved),)


def _moved(device: Device, moved_by: Callable[[CopyGroup], tuple[float, float]]) -> dict[Direction, Moved]:
    """Return the copies in each direction. `moved_by` returns bytes and nanoseconds of a group of copies."""
    moved = {}
    for direction in DIRECTIONS:
        groups = [group for group in device.copies if group.direction == direction and says_bandwidth(group)]
        amounts = [moved_by(group) for group in groups]
        moved[direction] = Moved(sum(size for size, _ in amounts), sum(duration for _, duration in amounts))
    return moved


def of_host(host: HostUse, *, skip: int = 0) -> tuple[Sample, ...]:
    """Return the steps to judge of a program without GPU activity."""
    steps = host.steps if host.by_steps else ()
    judged = without_warm_up(range(min(skip, len(steps)), len(steps)), [step.span_ns for step in steps])
    return tuple(Sample(steps[number].name, steps[number], {}) for number in judged)


class Spent(Struct, frozen=True):
    """Mean times of some samples, in nanoseconds."""

    span: float
    exposed_copy: Mapping[str, float]
    """Exposed copy time by cause."""
    exposed_comm: Mapping[str, float]
    """Exposed communication by cause."""
    idle: Mapping[str, float]
    compute: float
    copy: float

    def by_cause(self, blame: Blame | Subject, metric: Metric) -> Mapping[str, float]:
        """Return the times by cause that a metric includes, of exposed copies, exposed communication or idle time."""
        if blame == "exposed-copy":
            return self.exposed_copy
        if blame == "exposed-comm":
            return self.exposed_comm
        if blame != "idle":
            return {}
        only = STALL_CAUSES if metric.id == "host_stall_time" else self.idle
        return {cause: ns for cause, ns in self.idle.items() if cause in only}

    def noisy(self, metric: Metric) -> tuple[float, float, float]:
        """Return how much of a metric's time depends on the link, on the host's other work, and on loading data.

        Communication depends on the link, whatever its cause: the host's time may vary by far more.
        """
        link = host = loading = 0.0
        for blame in metric.blames:
            by_cause = self.by_cause(blame, metric)
            if blame == "exposed-comm":
                link += sum(by_cause.values())
                continue
            host += sum(ns for cause, ns in by_cause.items() if cause in HOST_CAUSES - {IdleCause.DATA_LOADING})
            loading += by_cause.get(IdleCause.DATA_LOADING, 0.0)
            if blame == "exposed-copy":
                link += sum(ns for cause, ns in by_cause.items() if cause not in HOST_CAUSES)
            elif blame == "copies":
                link += self.copy
        return link, host, loading


def spent(measured: Measurements, direction: Direction | None) -> Spent:
    """Return the mean times at a place. `direction` narrows the copies."""

    def mean(metric: str, direction: Direction | None = None, cause: str | None = None) -> float:
        numbers = measured(METRICS[metric], direction, cause).numbers
        return fmean(numbers) if numbers else 0.0

    return Spent(
        span=mean("step_time"),
        exposed_copy={str(cause): mean("exposed_copy_time", None, cause) for cause in COPY_CAUSES},
        exposed_comm={str(cause): mean("exposed_comm_time", None, cause) for cause in COMM_CAUSES},
        idle={str(cause): mean("idle_time", None, cause) for cause in IDLE_CAUSES},
        compute=mean("compute_time"),
        copy=mean("copy_time", direction),
    )


def noise_floor(metric: Metric, before: Spent, after: Spent, whole: float, base: float) -> float:
    """Return the minimum change of a metric that is more than noise, in its unit.

    Times that depend on the link and the host may vary by a share of the smaller side's time.

    Args:
        metric: The metric.
        before: Mean times of the baseline.
        after: Mean times of the recording.
        whole: The mean divisor of a percentage, in nanoseconds.
        base: The baseline's value.
    """
    if metric.unit == "gb_per_s":
        return LINK_SHARE * base
    spans = before.span, after.span
    if metric.needs == "host":
        return 0.0 if metric.unit == "launches" else floor_ns(spans, host_ns=base)
    link, host, loading = map(min, before.noisy(metric), after.noisy(metric))
    minimum_ns = floor_ns(spans, link_ns=link, host_ns=host, loading_ns=loading)
    if metric.unit == "ns":
        return minimum_ns
    return max(POINTS, 100 * minimum_ns / whole) if whole > 0 else POINTS


def lacking(metric: Metric, direction: Direction | None, samples: tuple[Sample, ...], values: Series) -> str | None:
    """Return what the samples lack for a metric to be computed; None if they lack nothing."""
    if metric.needs == "copies" and not any(copy_ns(sample, direction) for sample in samples):
        way = f"{direction} " if direction else ""
        return f"there are no {way}copies between host and device"
    if values.numbers and (problem := _too_little_copied(metric, direction, samples)):
        return problem
    if metric.needs == "comm" and not any(sample.figures.engines.comm_ns for sample in samples):
        return "there is no communication"
    if values.numbers:
        return None
    if metric.needs == "host":
        gc = metric.id == "gc_ms_per_step" and any(sample.figures.host is not None for sample in samples)
        return (
            "the recorder did not mark runs of Python's garbage collector"
            if gc
            else "the ops of the launching thread were not recorded, or there are no steps"
        )
    if metric.id == "efficiency_pct":
        return "only one engine worked, so there was nothing to overlap"
    if metric.id == "copy_bandwidth":
        return "no copy states its size, or the copies are so small that they only show latency"
    return "there is nothing to measure"


def _too_little_copied(metric: Metric, direction: Direction | None, samples: Sequence[Sample]) -> str | None:
    """Return the reason why a percentage of copies means nothing: they take almost no time."""
    if metric.unit != "pct" or "exposed-copy" not in metric.blames:
        return None
    copies = sum(copy_ns(sample, direction) for sample in samples)
    span = sum(sample.figures.span_ns for sample in samples)
    if copies >= COPIES_MATTER_FROM * span:
        return None
    way = f"{direction} " if direction else ""
    took = percent(100 * copies / span)
    return f"{way}copies take {took} of the time, too little for a meaningful percentage"
