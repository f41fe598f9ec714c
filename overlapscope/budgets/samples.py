"""What budgets are judged on: steps of a device, occurrences of its ranges, or its window; a metric's values in them,
and what was spent where, from which reasons are told and how much of it may be noise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Protocol

from msgspec import Struct

from overlapscope.analysis.groups import says_bandwidth
from overlapscope.analysis.results import CopyGroup, Device, HostUse, Period
from overlapscope.analysis.timeline import measured
from overlapscope.budgets.metrics import DIRECTIONS, METRICS, Blame, Direction, Metric, Moved, Sample
from overlapscope.catalog.causes import COPY_CAUSES, IDLE_CAUSES, STALL_CAUSES, IdleCause
from overlapscope.compare.figures import compared, occurrences, without_warm_up
from overlapscope.compare.noise import HOST_CAUSES, LINK_SHARE, POINTS, floor_ns


class Series(Struct, frozen=True):
    """A metric's values, one for each sample; None for a percentage of nothing."""

    names: tuple[str, ...]
    values: tuple[float | None, ...]
    spans_ns: tuple[int, ...]
    """Of the samples; what is resampled together is drawn by them."""

    def known(self) -> Series:
        """Without the samples that have no value."""
        return self.take([number for number, value in enumerate(self.values) if value is not None])

    def take(self, kept: Sequence[int]) -> Series:
        """Those samples alone."""
        return Series(
            tuple(self.names[number] for number in kept),
            tuple(self.values[number] for number in kept),
            tuple(self.spans_ns[number] for number in kept),
        )

    @property
    def numbers(self) -> tuple[float, ...]:
        """The values that are known."""
        return tuple(value for value in self.values if value is not None)


class Measurements(Protocol):
    """What was measured at one place, by a recording or as a baseline keeps it."""

    def __call__(self, metric: Metric, direction: Direction | None, cause: str | None = None, /) -> Series:
        """A metric's values; with `cause`, the part of exposed copy or idle time that is due to it."""


def series(samples: Sequence[Sample], metric: Metric, direction: Direction | None, cause: str | None = None) -> Series:
    """What a recording measured: see `Measured`."""
    if cause is None:
        values = tuple(metric.read(sample, direction) for sample in samples)
    else:
        parts = (
            sample.figures.idle_by_cause if metric.id == "idle_time" else sample.figures.exposed_copy_by_cause
            for sample in samples
        )
        values = tuple(float(part.get(cause, 0)) for part in parts)
    return Series(tuple(sample.name for sample in samples), values, tuple(sample.figures.span_ns for sample in samples))


def of_steps(device: Device, *, skip: int = 0) -> tuple[Sample, ...]:
    """The steps that are compared."""
    return tuple(step_sample(device, number) for number in compared(device, skip=skip))


def step_sample(device: Device, number: int) -> Sample:
    """One of `Device.steps`."""
    moved = _moved(device, lambda group: (group.by_step.bytes[number], group.by_step.duration_ns[number]))
    return Sample(device.steps[number].name, device.steps[number], moved)


def of_ranges(device: Device, *, skip: int = 0) -> dict[str, tuple[Sample, ...]]:
    """The occurrences of each range, by its name."""
    return {
        name: tuple(Sample(f"{name} ({number})", period, {}) for number, period in enumerate(periods, 1))
        for name, periods in occurrences(device, skip=skip).items()
    }


def of_window(device: Device) -> tuple[Sample, ...]:
    """The window behind the lead-in; nothing where it is all lead-in."""
    if device.judged is None:
        return ()
    moved = _moved(device, lambda group: (group.judged_bytes, group.judged_duration_ns))
    return (Sample("window", device.judged, moved),)


def _moved(device: Device, moved_by: Callable[[CopyGroup], tuple[float, float]]) -> dict[Direction, Moved]:
    """What was copied each way; `moved_by` tells bytes and nanoseconds of a group of copies."""
    found = {}
    for direction in DIRECTIONS:
        groups = [group for group in device.copies if group.direction == direction and says_bandwidth(group)]
        amounts = [moved_by(group) for group in groups]
        found[direction] = Moved(sum(size for size, _ in amounts), sum(duration for _, duration in amounts))
    return found


def of_host(host: HostUse, *, skip: int = 0) -> tuple[Sample, ...]:
    """The steps of a program without GPU activity that are compared: a GPU would have been idle all the while."""
    steps = host.steps if host.by_steps else ()
    samples = []
    for number in without_warm_up(range(min(skip, len(steps)), len(steps)), [step.span_ns for step in steps]):
        step = steps[number]
        buckets, engines, overlap = measured(defaultdict(int, idle=step.span_ns))
        period = Period(
            name=step.name,
            window=step.window,
            span_ns=step.span_ns,
            buckets=buckets,
            engines=engines,
            overlap=overlap,
            exposed_copy_by_cause={},
            idle_by_cause={IdleCause.DATA_LOADING: step.loading_ns},
            partial=False,
        )
        samples.append(Sample(step.name, period, {}))
    return tuple(samples)


class Spent(Struct, frozen=True):
    """Means over some samples, in nanoseconds."""

    span: float
    exposed_copy: Mapping[str, float]
    """By cause, as `idle`."""
    idle: Mapping[str, float]
    exposed_comm: float
    compute: float
    copy: float

    def by_cause(self, blame: Blame, metric: Metric) -> Mapping[str, float]:
        """What a metric is made of, of exposed copies or of idle time; nothing of others."""
        if blame == "exposed-copy":
            return self.exposed_copy
        if blame != "idle":
            return {}
        only = STALL_CAUSES if metric.id == "host_stall_time" else self.idle
        return {cause: ns for cause, ns in self.idle.items() if cause in only}

    def link_and_host(self, metric: Metric) -> tuple[float, float]:
        """How much of what a metric is made of depends on the link, and how much on the host."""
        link = host = 0.0
        for blame in metric.blames:
            by_cause = self.by_cause(blame, metric)
            host += sum(ns for cause, ns in by_cause.items() if cause in HOST_CAUSES)
            if blame == "exposed-copy":
                link += sum(ns for cause, ns in by_cause.items() if cause not in HOST_CAUSES)
            elif blame in ("exposed-comm", "copies"):
                link += self.exposed_comm if blame == "exposed-comm" else self.copy
        return link, host


def spent(measured: Measurements, direction: Direction | None) -> Spent:
    """The means of what was measured at a place; `direction` narrows the copies down to one."""

    def mean(metric: str, direction: Direction | None = None, cause: str | None = None) -> float:
        numbers = measured(METRICS[metric], direction, cause).numbers
        return fmean(numbers) if numbers else 0.0

    return Spent(
        span=mean("step_time"),
        exposed_copy={str(cause): mean("exposed_copy_time", None, cause) for cause in COPY_CAUSES},
        idle={str(cause): mean("idle_time", None, cause) for cause in IDLE_CAUSES},
        exposed_comm=mean("exposed_comm_time"),
        compute=mean("compute_time"),
        copy=mean("copy_time", direction),
    )


def noise_floor(metric: Metric, before: Spent, after: Spent, whole: float, base: float) -> float:
    """The least change of a metric that is more than noise, in its unit.

    Of what the link and the host decide about, the side that has less tells how much they may vary. `whole` is what a
    percentage is of, `base` the baseline's value.
    """
    if metric.unit == "gb_per_s":
        return LINK_SHARE * base
    (link, host), (link_after, host_after) = before.link_and_host(metric), after.link_and_host(metric)
    least = floor_ns(max(before.span, after.span), link_ns=min(link, link_after), host_ns=min(host, host_after))
    if metric.unit == "ns":
        return least
    return max(POINTS, 100 * least / whole) if whole > 0 else POINTS
