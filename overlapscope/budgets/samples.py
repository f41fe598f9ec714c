"""Samples that budgets judge: steps of a device, occurrences of its ranges, or its window.

A `Series` has the values of a metric in them; `Spent` has mean times, for reasons and noise floors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import fsum
from operator import mul
from statistics import fmean
from typing import Final

import numpy as np
from msgspec import Struct

from overlapscope.analysis.average import judged_steps, without_warm_up
from overlapscope.analysis.facts import UNKNOWN, Facts, facts_of, select
from overlapscope.analysis.figures import COPIES_MATTER_FROM, Period
from overlapscope.analysis.groups import says_bandwidth
from overlapscope.analysis.results import CopyGroup, Device, HostUse
from overlapscope.base.intervals import I64
from overlapscope.base.words import percent
from overlapscope.catalog.causes import IdleCause
from overlapscope.catalog.measures import (
    BY_CAUSE,
    DIRECTIONS,
    MEASURES,
    METRICS,
    Amount,
    Direction,
    Measure,
)
from overlapscope.compare.figures import occurrences
from overlapscope.compare.noise import HOST_CAUSES, LINK_SHARE, POINTS, floor_ns
from overlapscope.trace.servers import Phase


class MetricSamples(Struct, frozen=True, eq=False):
    """Steps, occurrences of a range, or the window, with a row of facts each."""

    names: tuple[str, ...]
    rows: tuple[int, ...]
    """Numbers in `Device.steps`, or among the occurrences."""
    facts: Facts

    def __len__(self) -> int:
        return len(self.names)

    def take(self, kept: Sequence[int]) -> MetricSamples:
        """Return some samples, by number."""
        names, rows = tuple(self.names[number] for number in kept), tuple(self.rows[number] for number in kept)
        return MetricSamples(names, rows, select(self.facts, list(kept)))


class Series(Struct, frozen=True):
    """Values of a metric, one per sample; None for a percentage of nothing."""

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


_MOVED: Final = ("h2d:bytes", "h2d:moving", "d2h:bytes", "d2h:moving")
"""Bytes of the copies in each direction whose size is known, and the sum of their durations."""


def series(samples: MetricSamples, metric: Measure, direction: Direction | None, cause: str | None = None) -> Series:
    """Return the values of a metric, or its part due to a cause in `CAUSES_OF`; None where a column is unknown."""
    part, whole = metric.part.narrowed(direction), metric.whole and metric.whole.narrowed(direction)
    if cause is not None:
        part, whole = Amount((f"{metric.blames[0]}:{cause}",)), None
    facts, parts = samples.facts, part.of(samples.facts).tolist()
    wholes: list[int] = [1] * len(parts) if whole is None else whole.of(facts).tolist()
    names = [name for amount in (part, whole) if amount is not None for name in (*amount.added, *amount.taken)]
    unknown = np.any([facts[name] == UNKNOWN for name in names], axis=0).tolist()
    values = tuple(
        None if lacks else float(share) if whole is None else metric.ratio(share, divisor)
        for share, divisor, lacks in zip(parts, wholes, unknown, strict=True)
    )
    return Series(values, tuple(facts["span"].tolist()), tuple(map(float, wholes)))


def of_steps(device: Device, *, skip: int = 0, phase: Phase | None = None) -> MetricSamples:
    """Return the steps to judge: whole ones after the warm-up, of the phase that takes most time or of another."""
    return steps_of(device, judged_steps(device, skip=skip, phase=phase))


def steps_of(device: Device, numbers: Sequence[int]) -> MetricSamples:
    """Return some of `Device.steps` as samples."""
    moved = _moved(device, lambda group: (group.by_step.bytes, group.by_step.duration_ns), len(device.steps))
    return _samples([device.steps[number] for number in numbers], numbers, select(moved, list(numbers)))


def of_ranges(device: Device, *, skip: int = 0) -> dict[str, MetricSamples]:
    """Return the occurrences of each range, by its name."""
    return {name: of_range(name, periods) for name, periods in occurrences(device, skip=skip).items()}


def of_range(name: str, periods: Sequence[Period]) -> MetricSamples:
    """Return occurrences of a range. The analysis doesn't count copies by range, so their bandwidth is unknown."""
    return _samples(periods, range(len(periods)), {}, [f"{name} ({number})" for number in range(1, len(periods) + 1)])


def of_window(device: Device) -> MetricSamples:
    """Return the window after the lead-in; nothing if all of it is lead-in."""
    moved = _moved(device, lambda group: ((group.judged_bytes,), (group.judged_duration_ns,)), 1)
    return NO_SAMPLES if device.judged is None else _samples([device.judged], (0,), moved, ["window"])


def of_host(host: HostUse, *, skip: int = 0) -> MetricSamples:
    """Return the steps to judge of a program without GPU activity."""
    steps = host.steps if host.by_steps else ()
    judged = without_warm_up(range(min(skip, len(steps)), len(steps)), [step.span_ns for step in steps])
    return _samples([steps[number] for number in judged], judged, {})


def _samples(
    periods: Sequence[Period], rows: Sequence[int], moved: Facts, names: Iterable[str] | None = None
) -> MetricSamples:
    facts, nothing = facts_of(periods), np.zeros(len(periods), np.int64)
    facts = {
        **facts,
        "host:marked_gc_pause": np.where(facts["host:gc_known"] == 1, facts["host:gc_pause"], UNKNOWN),
        **dict.fromkeys(_MOVED, nothing),
        **moved,
    }
    return MetricSamples(tuple(names or (period.name for period in periods)), tuple(rows), facts)


def _moved(
    device: Device, moved_by: Callable[[CopyGroup], tuple[Sequence[int], Sequence[int]]], count: int
) -> dict[str, I64]:
    """Return bytes and durations of the copies in each direction. `moved_by` returns those of a group of copies."""
    moved = {name: np.zeros(count, np.int64) for name in _MOVED}
    for group in device.copies:
        if group.direction in DIRECTIONS and says_bandwidth(group):
            for what, amounts in zip(("bytes", "moving"), moved_by(group), strict=True):
                moved[f"{group.direction}:{what}"] += np.array(amounts, np.int64)
    return moved


NO_SAMPLES: Final = of_range("", ())
LENGTHS: Final = tuple(sorted(NO_SAMPLES.facts))
"""Columns that metrics are computed from."""

Spent = Mapping[str, float]
"""Mean times of some samples in nanoseconds: `span`, `compute`, `copy`, and that of each cause, `idle:host-sync`."""


def spent(samples: MetricSamples, direction: Direction | None) -> Spent:
    """Return the mean times of some samples. `direction` narrows the copies."""
    facts = samples.facts
    copy = METRICS["copy_time"].part.narrowed(direction).of(facts)
    columns = {"span": facts["span"], "compute": facts["compute"], "copy": copy}
    columns |= {name: facts[name] for bucket in ("exposed_copy", "exposed_comm", "idle") for name in BY_CAUSE[bucket]}
    return {name: fmean(column[column != UNKNOWN].tolist() or [0.0]) for name, column in columns.items()}


def blamed(metric: Measure) -> list[str]:
    """Return the lengths of what a metric blames, by cause: those that are part of it, or else all of them."""
    lengths = ["copy"] if "copies" in metric.blames else []
    lengths += [name for blame in metric.blames for name in BY_CAUSE.get(blame.replace("-", "_"), ())]
    own, _ = metric.part.columns()
    return [name for name in lengths if name in own] or lengths


def noisy(times: Spent, metric: Measure) -> tuple[float, float, float]:
    """Return how much of a metric's time depends on the link, on the host's other work, and on loading data.

    Communication depends on the link, whatever its cause: the host's time may vary by far more.
    """
    link = host = loading = 0.0
    for name in blamed(metric):
        subject, _, cause = name.partition(":")
        ns = times.get(name, 0.0)
        if cause == IdleCause.DATA_LOADING:
            loading += ns
        elif cause in HOST_CAUSES and subject != "exposed-comm":
            host += ns
        elif subject in ("exposed-comm", "exposed-copy", "copy"):
            link += ns
    return link, host, loading


def noise_floor(metric: Measure, before: Spent, after: Spent, whole: float, base: float) -> float:
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
    spans = before["span"], after["span"]
    if metric.needs == "host":
        return 0.0 if metric.unit == "launches" else floor_ns(spans, host_ns=base)
    link, host, loading = map(min, noisy(before, metric), noisy(after, metric))
    minimum_ns = floor_ns(spans, link_ns=link, host_ns=host, loading_ns=loading)
    if metric.unit == "ns":
        return minimum_ns
    return max(POINTS, 100 * minimum_ns / whole) if whole > 0 else POINTS


def lacking(metric: Measure, direction: Direction | None, samples: MetricSamples, values: Series) -> str | None:
    """Return what the samples lack for a metric to be computed; None if they lack nothing."""
    copies, way = MEASURES["copy_ns"].part.narrowed(direction).of(samples.facts), f"{direction} " if direction else ""
    if metric.needs == "copies" and not copies.any():
        return f"there are no {way}copies between host and device"
    if values.numbers and metric.unit == "pct" and "exposed-copy" in metric.blames:
        copied, span = int(copies.sum()), int(samples.facts["span"].sum())
        if copied < COPIES_MATTER_FROM * span:
            took = percent(100 * copied / span)
            return f"{way}copies take {took} of the time, too little for a meaningful percentage"
    if metric.needs == "comm" and not samples.facts["comm"].any():
        return "there is no communication"
    if values.numbers:
        return None
    if metric.needs == "host":
        gc = metric.metric == "gc_ms_per_step" and (samples.facts["host:launches"] != UNKNOWN).any()
        return (
            "the recorder did not mark runs of Python's garbage collector"
            if gc
            else "the ops of the launching thread were not recorded, or there are no steps"
        )
    if metric.metric == "efficiency_pct":
        return "only one engine worked, so there was nothing to overlap"
    if metric.metric == "copy_bandwidth":
        return "no copy states its size, or the copies are so small that they only show latency"
    return "there is nothing to measure"
