"""What samples spent where: what reasons are told from, and how much of it may be noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from overlapscope.budgets.metrics import METRICS, Blame, Direction, Metric
from overlapscope.budgets.samples import Measured
from overlapscope.catalog.causes import COPY_CAUSES, IDLE_CAUSES, STALL_CAUSES
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


def spent(measured: Measured, direction: Direction | None) -> Spent:
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
