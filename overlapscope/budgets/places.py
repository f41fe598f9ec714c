"""Subjects of budgets: samples of metrics, and the places that have them.

Samples are steps of a device, occurrences of its ranges, or its window. A `Series` has the values of a metric in them;
`Spent` has mean times, for reasons and noise floors. `figures` yields everything that can be judged at devices.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from math import fsum
from operator import mul
from pathlib import PurePath
from statistics import fmean
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.average import judged_steps, occurrences, without_warm_up
from overlapscope.analysis.facts import UNKNOWN, Facts, facts_of, select
from overlapscope.analysis.figures import COPIES_MATTER_FROM, Period
from overlapscope.analysis.results import CopyGroup, Device, HostUse, TraceResult
from overlapscope.base.intervals import I64
from overlapscope.base.words import clean, percent
from overlapscope.budgets.settings import Budget, step_fits
from overlapscope.budgets.verdicts import Status, Subject
from overlapscope.catalog.measures import BY_CAUSE, CAUSES_OF, DIRECTIONS, MEASURES, METRICS, Direction, Measure
from overlapscope.compare.doubts import doubt
from overlapscope.compare.noise import noise_floor
from overlapscope.report.model import Report, of_program
from overlapscope.rules.finding import Finding
from overlapscope.trace.lost import PARTS_FOR_CAUSES
from overlapscope.trace.servers import Phase

# -- Samples --------------------------------------------------------------------------------------


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

    def named(self, pattern: str | None) -> MetricSamples:
        """Return the steps that match a pattern (`step_fits`); all without one."""
        if pattern is None:
            return self
        return self.take([number for number, name in enumerate(self.names) if step_fits(name, pattern)])


class Series(Struct, frozen=True):
    """Values of a metric, one per sample; None for a percentage of nothing."""

    values: tuple[float | None, ...]
    spans_ns: tuple[int, ...]
    """Lengths of the samples. They seed the bootstrap, so that all metrics of the same samples are drawn alike."""
    wholes: tuple[float, ...]
    """The denominator of each value, so that a mean is the ratio of the sums; 1 for times."""

    def known(self) -> Series:
        """Return the series without samples that have no value."""
        known = [value is not None for value in self.values]
        spans_ns, wholes = tuple(compress(self.spans_ns, known)), tuple(compress(self.wholes, known))
        return Series(self.numbers, spans_ns, wholes)

    @property
    def numbers(self) -> tuple[float, ...]:
        """The values, without None."""
        return tuple(value for value in self.values if value is not None)

    @property
    def mean(self) -> float:
        """The mean of known values, weighted so that a mean percentage is the ratio of the sums."""
        known = self.known()
        return fsum(map(mul, known.numbers, known.wholes)) / fsum(known.wholes)


def aggregated(budget: Budget, values: Series) -> float:
    """Return the aggregate of the known values of several samples."""
    if budget.aggregate == "median":
        return float(statistics.median(values.numbers))
    if budget.aggregate == "mean":
        return values.mean
    return float(sorted(values.numbers)[budget.place_of(len(values.numbers))])


_MOVED: Final = ("h2d:bytes", "h2d:moving", "d2h:bytes", "d2h:moving")
"""Bytes of the copies in each direction whose size is known, and the sum of their durations."""


def series(samples: MetricSamples, metric: Measure, direction: Direction | None) -> Series:
    """Return the values of a metric; None where a column is unknown."""
    part, whole = metric.amount.narrowed(direction), metric.divided_by and metric.divided_by.narrowed(direction)
    facts, parts = samples.facts, part.of(samples.facts).tolist()
    wholes: list[int] = [1] * len(parts) if whole is None else whole.of(facts).tolist()
    names = [name for amount in (part, whole) if amount is not None for name in (*amount.added, *amount.subtracted)]
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
        if group.direction in DIRECTIONS and group.says_bandwidth:
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
    copy = METRICS["copy_time"].amount.narrowed(direction).of(facts)
    columns = {"span": facts["span"], "compute": facts["compute"], "copy": copy}
    columns |= {name: facts[name] for bucket in ("exposed_copy", "exposed_comm", "idle") for name in BY_CAUSE[bucket]}
    return {name: fmean(column[column != UNKNOWN].tolist() or [0.0]) for name, column in columns.items()}


def blamed(metric: Measure) -> list[str]:
    """Return the lengths of what a metric blames, by cause: those that are part of it, or else all of them."""
    lengths = ["copy"] if "copies" in metric.blames else []
    lengths += [name for blame in metric.blames for name in BY_CAUSE.get(blame.replace("-", "_"), ())]
    added, _ = metric.amount.columns()
    return [name for name in lengths if name in added] or lengths


def lacking(metric: Measure, direction: Direction | None, samples: MetricSamples, values: Series) -> str | None:
    """Return what the samples lack for a metric to be computed; None if they lack nothing."""
    copies, way = MEASURES["copy_ns"].amount.narrowed(direction).of(samples.facts), f"{direction} " if direction else ""
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


# -- Places ---------------------------------------------------------------------------------------

NO_STEPS = (
    "there are no whole steps in it: mark them with prof.step() or overlapscope.step(), or judge the whole recording "
    'with scope = "window"'
)


class JudgedPlace(Struct, frozen=True, eq=False, kw_only=True):
    """A place with what is judged there, and the judgement; figures are in the metric's unit."""

    subject: Subject = Subject(scope="window")
    """By default all traces together."""
    trace: TraceResult | None = None
    device: Device | None = None
    samples: MetricSamples = NO_SAMPLES
    before: MetricSamples | None = None
    """The baseline's samples that they were compared with; None without a comparison."""
    status: Status = "pass"
    """`unknown` before the judgement, too, if nothing can be judged here for the reason in `sentence`."""
    value: float | None = None
    known: int = 0
    """Number of samples that have a value. A percentage of nothing has none."""
    limit: float | None = None
    baseline: float | None = None
    low: float | None = None
    high: float | None = None
    sentence: str = ""
    """The result without its place and full stop: `step_time is 3.4 ms, but at most 3 ms is allowed`."""
    note: str = ""
    """Reason why a change beyond the allowed percentage passes: `18% more, within noise`."""
    nothing: bool = False
    """True if both sides of a comparison have nothing to measure."""
    exception: str = ""
    """Sentence about the exception that applies, or that has ended."""
    findings: tuple[Finding, ...] = ()
    """Findings of a forbidden rule."""

    def unknown(self, reason: str) -> JudgedPlace:
        """Return the place where nothing can be judged."""
        return replace(self, status="unknown", sentence=reason)

    @property
    def spent(self) -> Spent:
        """Mean times of the samples."""
        return spent(self.samples, self.subject.direction)


class JudgedFigure(NamedTuple):
    """A metric at a device, or its part by a cause (`CAUSES_OF`)."""

    place: JudgedPlace
    metric: Measure
    values: Series

    @property
    def value(self) -> float:
        """Value as a budget judges it."""
        return self.values.mean

    @property
    def noise_floor(self) -> float:
        """Change that `check` would consider noise between two recordings like this one."""
        now = self.place.spent
        return noise_floor(self.metric, (now, now), whole=fmean(self.values.wholes), base=self.value)


def figures(report: Report) -> Iterator[JudgedFigure]:
    """Yield all figures of a report: of the plain program if its step time is known, otherwise of the recording.

    A metric's value is the mean of the steps that a budget judges. Causes of idle time, of exposed copies and of
    exposed communication have their own figures, even if they are 0. A device without steps has percentages and
    bandwidths of its window, but no times, since the length of a recording says nothing about the program.
    """
    report = of_program(report)
    for metric in METRICS.values():
        budget = Budget(metric=metric.metric)
        for place in find_places(report, budget, {}):
            device, subject = place.device, place.subject
            if device is not None and not device.steps and metric.unit != "ns":
                whole = replace(place, subject=replace(subject, scope="window"), status="pass")
                [place] = _sampled(replace(budget, scope="window"), whole)
            values = series(place.samples, metric, None)
            if place.status == "unknown" or lacking(metric, None, place.samples, values):
                continue
            yield JudgedFigure(place, metric, values)
            if place.trace is not None and not doubt(place.trace, PARTS_FOR_CAUSES):
                for part in CAUSES_OF.get(metric.metric, {}).values():
                    yield JudgedFigure(place, part, series(place.samples, part, None))


def subjects(report: Report, **narrowed: Any) -> Iterator[tuple[Subject, TraceResult, Device | None]]:
    """Yield every device of every trace; a trace without devices comes once.

    `narrowed` are further fields of the subjects.
    """
    for trace in report.traces:
        for device in trace.devices or (None,):
            number = device.device if device else None
            yield Subject(source=trace.source, rank=trace.rank, device=number, **narrowed), trace, device


def place_words(report: Report, subject: Subject) -> str:
    """Return what sets a subject apart in this report, cleaned: `rank 3, device 1, range forward, h2d`."""
    parts = []
    if subject.rank is not None:
        parts.append(f"rank {subject.rank}")
    elif len(report.traces) > 1 and subject.source is not None:
        parts.append(clean(PurePath(subject.source).name, 60))
    if subject.device is not None and any(len(trace.devices) > 1 for trace in report.traces):
        parts.append(f"device {subject.device}")
    if subject.scope not in ("steps", "window"):
        parts.append(f"range {clean(subject.scope, 60)}")
    if subject.step is not None:
        parts.append(f"step {clean(subject.step, 60)}")
    if subject.phase is not None:
        parts.append(f"phase {subject.phase}")
    if subject.direction is not None:
        parts.append(subject.direction)
    return ", ".join(parts)


def find_places(report: Report, budget: Budget, absent: Mapping[int, str]) -> Iterator[JudgedPlace]:
    """Yield every place at which to judge a budget. One with nothing to judge, such as an absent rank, is unknown."""
    anywhere = False
    for subject, trace, device in subjects(report, scope=budget.scope, direction=budget.direction, phase=budget.phase):
        if replace(budget, range=None).matches(subject):
            anywhere = True
            yield from _sampled(budget, JudgedPlace(subject=subject, trace=trace, device=device))
    if not anywhere:
        nowhere = JudgedPlace(subject=Subject(scope=budget.scope))
        yield nowhere.unknown("there is no such trace, rank or device")
    if budget.rank is None and budget.trace is None and budget.device is None:
        for rank, reason in absent.items():
            subject = Subject(rank=rank, scope=budget.scope, direction=budget.direction)
            yield JudgedPlace(subject=subject).unknown(reason)


def _sampled(budget: Budget, place: JudgedPlace) -> Iterator[JudgedPlace]:
    """Yield a device's place with its samples: one for each range that matches, otherwise a single one."""
    trace, device, skip = place.trace, place.device, budget.skip_steps
    assert trace is not None
    if budget.measure.of_host:
        place = replace(place, device=None)
    if missing := doubt(trace, budget.measure.rests_on) or (
        _host_lacks(budget, trace) if budget.measure.of_host else None
    ):
        yield place.unknown(missing)
    elif budget.measure.of_host and trace.host is not None:
        yield _at_steps(budget, place, of_host(trace.host, skip=skip), marked=trace.host.by_steps)
    elif device is None:
        yield place.unknown("nothing ran on the GPU")
    elif budget.range is not None:
        yield from _at_ranges(budget, place, device, budget.range)
    elif budget.scope == "window":
        samples = of_window(device)
        yield replace(place, samples=samples) if samples else place.unknown("all of it is lead-in, which is not judged")
    else:
        samples = of_steps(device, skip=skip, phase=budget.phase)
        yield _at_steps(budget, place, samples, marked=bool(device.steps))


def _host_lacks(budget: Budget, trace: TraceResult) -> str | None:
    """Return the reason why a metric of programs without a GPU can't be judged; None if it can."""
    if budget.phase is not None:
        return "the phases of a server without a GPU are unknown"
    if trace.host is None:
        return "it is only for programs that do not use a GPU"
    return "it is known only for steps" if budget.scope == "window" else None


def _at_ranges(budget: Budget, place: JudgedPlace, device: Device, pattern: str) -> Iterator[JudgedPlace]:
    judged, matching = occurrences(device, skip=budget.skip_steps), False
    for name in occurrences(device):
        each = replace(place, subject=replace(place.subject, scope=name))
        if budget.matches(each.subject):
            matching, periods = True, judged.get(name, ())
            missing = each.unknown("it does not occur after the skipped steps")
            yield replace(each, samples=of_range(name, periods)) if periods else missing
    if not matching:
        yield place.unknown(f"there is no whole range {clean(pattern, 80)}")


def _at_steps(budget: Budget, place: JudgedPlace, samples: MetricSamples, *, marked: bool) -> JudgedPlace:
    """Return a place with the steps that match the budget's pattern. `marked`: whether the recording has steps."""
    pattern = budget.step
    if kept := samples.named(pattern):
        return replace(place, subject=replace(place.subject, step=pattern), samples=kept)
    if samples:
        return place.unknown(f"there is no step {clean(pattern or '', 80)}")
    if not marked:
        return place.unknown(NO_STEPS)
    if budget.phase is not None:
        return place.unknown(f"there is no whole step of the phase {budget.phase}")
    return place.unknown("no step is left after the skipped ones")
