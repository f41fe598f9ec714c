"""Places at which a budget applies: devices, ranges and steps.

`figures` yields everything that can be judged at devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from statistics import fmean
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.results import Device, TraceResult
from overlapscope.base.words import clean
from overlapscope.budgets.gate import doubt
from overlapscope.budgets.samples import (
    NO_SAMPLES,
    MetricSamples,
    Series,
    Spent,
    lacking,
    noise_floor,
    of_ranges,
    of_steps,
    of_window,
    series,
    spent,
)
from overlapscope.budgets.samples import of_host as host_steps
from overlapscope.budgets.settings import Budget, step_fits
from overlapscope.budgets.verdicts import Status, Subject
from overlapscope.catalog.measures import CAUSES_OF, METRICS, Measure
from overlapscope.report.model import Report, of_program
from overlapscope.rules.finding import Finding
from overlapscope.trace.lost import CAUSES

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
    """A metric at a device, or its part by a cause."""

    place: JudgedPlace
    metric: Measure
    values: Series
    cause: str | None = None

    @property
    def value(self) -> float:
        """Value as a budget judges it."""
        return self.values.mean

    @property
    def noise_floor(self) -> float:
        """Change that `check` would consider noise between two recordings like this one."""
        now = self.place.spent
        if self.cause is not None:
            now = {name: ns for name, ns in now.items() if ":" not in name}
            now |= {f"{self.metric.blames[0]}:{self.cause}": self.value}
        return noise_floor(self.metric, now, now, fmean(self.values.wholes), self.value)


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
            if place.trace is not None and not doubt(place.trace, CAUSES):
                for cause in CAUSES_OF.get(metric.metric, ()):
                    yield JudgedFigure(place, metric, series(place.samples, metric, None, cause), cause)


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
    if budget.what.of_host:
        place = replace(place, device=None)
    if missing := doubt(trace, budget.what.rests_on) or (_host_lacks(budget, trace) if budget.what.of_host else None):
        yield place.unknown(missing)
    elif budget.what.of_host and trace.host is not None:
        yield _of_steps(budget, place, host_steps(trace.host, skip=skip), marked=trace.host.by_steps)
    elif device is None:
        yield place.unknown("nothing ran on the GPU")
    elif budget.range is not None:
        yield from _of_ranges(budget, place, device, budget.range)
    elif budget.scope == "window":
        samples = of_window(device)
        yield replace(place, samples=samples) if samples else place.unknown("all of it is lead-in, which is not judged")
    else:
        samples = of_steps(device, skip=skip, phase=budget.phase)
        yield _of_steps(budget, place, samples, marked=bool(device.steps))


def _host_lacks(budget: Budget, trace: TraceResult) -> str | None:
    """Return the reason why a metric of programs without a GPU can't be judged; None if it can."""
    if budget.phase is not None:
        return "the phases of a server without a GPU are unknown"
    if trace.host is None:
        return "it is only for programs that do not use a GPU"
    return "it is known only for steps" if budget.scope == "window" else None


def _of_ranges(budget: Budget, place: JudgedPlace, device: Device, pattern: str) -> Iterator[JudgedPlace]:
    ranged = [replace(place, subject=replace(place.subject, scope=name)) for name in of_ranges(device)]
    matching = [each for each in ranged if budget.matches(each.subject)]
    judged = of_ranges(device, skip=budget.skip_steps)
    for each in matching:
        samples = judged.get(each.subject.scope)
        yield replace(each, samples=samples) if samples else each.unknown("it does not occur after the skipped steps")
    if not matching:
        yield place.unknown(f"there is no whole range {clean(pattern, 80)}")


def _of_steps(budget: Budget, place: JudgedPlace, samples: MetricSamples, *, marked: bool) -> JudgedPlace:
    """Return a place with the steps that match the budget's pattern. `marked`: whether the recording has steps."""
    pattern = budget.step
    kept = samples.take([row for row, name in enumerate(samples.names) if pattern is None or step_fits(name, pattern)])
    if kept:
        return replace(place, subject=replace(place.subject, step=pattern), samples=kept)
    if samples:
        return place.unknown(f"there is no step {clean(pattern or '', 80)}")
    if not marked:
        return place.unknown(NO_STEPS)
    if budget.phase is not None:
        return place.unknown(f"there is no whole step of the phase {budget.phase}")
    return place.unknown("no step is left after the skipped ones")
