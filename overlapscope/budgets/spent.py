"""What steps spent where: what reasons are told from, and how much of it may be noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from overlapscope.budgets.baseline import Baseline, BaselineDevice
from overlapscope.budgets.metrics import METRICS, Blame, Direction, Metric, Sample, copy_ns
from overlapscope.catalog.causes import STALL_CAUSES
from overlapscope.compare.noise import HOST_CAUSES, LINK_SHARE, POINTS, floor_ns


@dataclass(frozen=True, slots=True)
class Spent:
    """Means over some samples, in nanoseconds."""

    span: float
    exposed_copy: Mapping[str, float]
    """By cause, as `idle`."""
    idle: Mapping[str, float]
    exposed_comm: float
    compute: float
    copy: float

    def link_and_host(self, metric: Metric) -> tuple[float, float]:
        """How much of what a metric is made of depends on the link, and how much on the host."""
        link = host = 0.0
        for blame in metric.blames:
            by_cause = self._causes(blame, metric)
            host += sum(ns for cause, ns in by_cause.items() if cause in HOST_CAUSES)
            if blame == "exposed-copy":
                link += sum(ns for cause, ns in by_cause.items() if cause not in HOST_CAUSES)
            elif blame in ("exposed-comm", "copies"):
                link += self.exposed_comm if blame == "exposed-comm" else self.copy
        return link, host

    def _causes(self, blame: Blame, metric: Metric) -> Mapping[str, float]:
        if blame == "exposed-copy":
            return self.exposed_copy
        if blame != "idle":
            return {}
        stalls = metric.id == "host_stall_time"
        return {cause: ns for cause, ns in self.idle.items() if not stalls or cause in STALL_CAUSES}


def by_samples(samples: Sequence[Sample], direction: Direction | None) -> Spent:
    """What the samples of a report spent; there is at least one."""
    return Spent(
        span=fmean(sample.figures.span_ns for sample in samples),
        exposed_copy=_mean_by_cause(samples, lambda sample: sample.figures.exposed_copy_by_cause),
        idle=_mean_by_cause(samples, lambda sample: sample.figures.idle_by_cause),
        exposed_comm=fmean(sample.figures.buckets.exposed_comm_ns for sample in samples),
        compute=fmean(sample.figures.buckets.compute_ns for sample in samples),
        copy=fmean(copy_ns(sample, direction) for sample in samples),
    )


def _mean_by_cause(samples: Sequence[Sample], read: Callable[[Sample], Mapping[str, int]]) -> dict[str, float]:
    return {cause: fmean(read(sample).get(cause, 0) for sample in samples) for cause in read(samples[0])}


def by_baseline(
    baseline: Baseline, device: BaselineDevice, scope: str, direction: Direction | None, *, skip: int
) -> Spent:
    """What the baseline's samples spent."""

    def mean(metric: str) -> float:
        way = direction if METRICS[metric].directional else None
        values = baseline.values(device, METRICS[metric], way, scope, skip=skip)
        return fmean(values.numbers) if values is not None and values.numbers else 0.0

    return Spent(
        span=mean("step_time"),
        exposed_copy=baseline.by_cause(device, "exposed_copy_time", scope, skip=skip),
        idle=baseline.by_cause(device, "idle_time", scope, skip=skip),
        exposed_comm=mean("exposed_comm_time"),
        compute=mean("compute_time"),
        copy=mean("copy_time"),
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
