"""Places at which a budget applies: devices, ranges and steps, each with the overrides that hold there.

`figures` yields everything that can be judged at devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.results import Device, TraceResult
from overlapscope.base.words import clean
from overlapscope.budgets.gate import doubt
from overlapscope.budgets.metrics import CAUSES_OF, METRICS, Metric, Sample
from overlapscope.budgets.samples import Series, lacking, of_host, of_ranges, of_steps, of_window, series
from overlapscope.budgets.settings import Budget, Override, step_fits
from overlapscope.budgets.verdicts import Subject
from overlapscope.report.model import Report, of_program
from overlapscope.trace.lost import CAUSES

NO_STEPS = (
    "there are no whole steps in it: mark them with prof.step() or overlapscope.step(), or judge the whole recording "
    'with scope = "window"'
)


class JudgedPlace(Struct, frozen=True, eq=False):
    """Samples of one device, and the budget that they are judged by."""

    budget: Budget
    """The budget with the overrides for this place."""
    subject: Subject
    trace: TraceResult | None = None
    device: Device | None = None
    samples: tuple[Sample, ...] = ()
    missing: str | None = None
    """Reason why nothing can be judged here."""


class JudgedFigure(NamedTuple):
    """A metric at a device, or its part by a cause."""

    place: JudgedPlace
    metric: Metric
    values: Series
    cause: str | None = None

    @property
    def value(self) -> float:
        """Value as a budget judges it."""
        return self.place.budget.combine(self.values.known())


def figures(report: Report) -> Iterator[JudgedFigure]:
    """Yield all figures of a report: of the plain program if its step time is known, otherwise of the recording.

    A metric's value is the mean of the steps that a budget judges. Causes of idle time, of exposed copies and of
    exposed communication have their own figures, even if they are 0. A device without steps has percentages and
    bandwidths of its window, but no times, since the length of a recording says nothing about the program.
    """
    report = of_program(report)
    for metric in METRICS.values():
        for place in find_places(report, Budget(metric=metric.id), (), {}):
            if place.device is not None and not place.device.steps and metric.unit != "ns":
                rank, device = place.subject.rank, place.device
                places = find_places(report, Budget(metric=metric.id, scope="window"), (), {})
                place = next(each for each in places if each.device is device and each.subject.rank == rank)
            values = series(place.samples, metric, None)
            if place.missing is not None or lacking(metric, None, place.samples, values):
                continue
            yield JudgedFigure(place, metric, values)
            if place.trace is not None and not doubt(place.trace, CAUSES):
                for cause in CAUSES_OF.get(metric.id, ()):
                    yield JudgedFigure(place, metric, series(place.samples, metric, None, cause), cause)


def subjects(report: Report, **narrowed: Any) -> Iterator[tuple[Subject, TraceResult, Device | None]]:
    """Yield every device of every trace; a trace without devices comes once.

    `narrowed` are further fields of the subjects.
    """
    for trace in report.traces:
        for device in trace.devices or (None,):
            number = device.device if device else None
            yield Subject(source=trace.source, rank=trace.rank, device=number, **narrowed), trace, device


def place_words(report: Report, subject: Subject, *, rank: bool = True) -> str:
    """Return what sets a subject apart in this report, cleaned: `rank 3, device 1, range forward, h2d`."""
    parts = []
    if rank and subject.rank is not None:
        parts.append(f"rank {subject.rank}")
    elif rank and len(report.traces) > 1 and subject.source is not None:
        parts.append(clean(PurePath(subject.source).name, 60))
    if rank and subject.device is not None and any(len(trace.devices) > 1 for trace in report.traces):
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


def find_places(
    report: Report, budget: Budget, overrides: Sequence[Override], absent: Mapping[int, str]
) -> Iterator[JudgedPlace]:
    """Yield every place at which to judge a budget. An absent rank is a place that states why it is missing."""
    relevant = tuple(override for override in overrides if override.metric == budget.metric and override.changes)
    finder, anywhere = _PlaceFinder(budget, relevant), False
    for subject, trace, device in subjects(report, scope=budget.scope, direction=budget.direction, phase=budget.phase):
        if replace(budget, range=None).matches(subject):
            anywhere = True
            yield from finder.at(subject, trace, device)
    if not anywhere:
        yield JudgedPlace(budget, Subject(scope=budget.scope), missing="there is no such trace, rank or device")
    if budget.rank is None and budget.trace is None and budget.device is None:
        for rank, reason in absent.items():
            subject = Subject(rank=rank, scope=budget.scope, direction=budget.direction)
            yield JudgedPlace(finder.overridden(subject), subject, missing=reason)


class _PlaceFinder:
    """A budget and its overrides."""

    def __init__(self, budget: Budget, overrides: tuple[Override, ...]) -> None:
        self._budget = budget
        self._overrides = overrides

    def overridden(self, subject: Subject, step: str | None = None) -> Budget:
        """Return the budget that holds at a place, or for one step there. Later overrides win."""
        changed: dict[str, Any] = {}
        pattern, origin = self._budget.step, self._budget.origin
        for override in self._overrides:
            fits = override.step is None or (step is not None and step_fits(step, override.step))
            if fits and override.matches(subject):
                changed |= override.changes
                pattern = override.step or pattern
                origin = f"{origin}, changed by {override.origin}"
        return replace(self._budget, **changed, step=pattern, origin=origin)

    def at(self, subject: Subject, trace: TraceResult, device: Device | None) -> Iterator[JudgedPlace]:
        """Yield the places of one device."""
        budget = self.overridden(subject)
        missing = doubt(trace, budget.what.rests_on)
        if missing is None and budget.what.of_host and budget.phase is not None:
            missing = "the phases of a server without a GPU are unknown"
        elif missing is None and budget.what.of_host:
            if trace.host is None:
                missing = "it is only for programs that do not use a GPU"
            elif budget.scope == "window":
                missing = "it is known only for steps"
            else:
                samples = of_host(trace.host, skip=budget.skip_steps)
                yield from self._steps(JudgedPlace(budget, subject, trace, samples=samples), marked=trace.host.by_steps)
                return
        elif missing is None and device is None:
            missing = "nothing ran on the GPU"
        if missing is not None or device is None:
            yield JudgedPlace(budget, subject, trace, None if budget.what.of_host else device, missing=missing)
        elif budget.range is not None:
            yield from self._ranges(subject, trace, device)
        elif budget.scope == "window":
            samples = of_window(device)
            nothing = None if samples else "all of it is lead-in, which is not judged"
            yield JudgedPlace(budget, subject, trace, device, samples, nothing)
        else:
            samples = of_steps(device, skip=budget.skip_steps, phase=budget.phase)
            yield from self._steps(JudgedPlace(budget, subject, trace, device, samples), marked=bool(device.steps))

    def _ranges(self, subject: Subject, trace: TraceResult, device: Device) -> Iterator[JudgedPlace]:
        anywhere = False
        for name in of_ranges(device):
            ranged = replace(subject, scope=name)
            if self._budget.matches(ranged):
                anywhere = True
                budget = self.overridden(ranged)
                samples = of_ranges(device, skip=budget.skip_steps).get(name, ())
                nothing = None if samples else "it does not occur after the skipped steps"
                yield JudgedPlace(budget, ranged, trace, device, samples, nothing)
        if not anywhere:
            pattern = clean(self._budget.range or "", 80)
            yield JudgedPlace(self._budget, subject, trace, device, missing=f"there is no whole range {pattern}")

    def _steps(self, place: JudgedPlace, *, marked: bool) -> Iterator[JudgedPlace]:
        """Group the steps of a place by the budget that holds for them. `marked`: whether the recording has steps."""
        pattern = place.budget.step
        groups: dict[Budget, list[Sample]] = {}
        for sample in place.samples:
            if pattern is None or step_fits(sample.name, pattern):
                groups.setdefault(self.overridden(place.subject, sample.name), []).append(sample)
        for budget, samples in groups.items():
            subject = replace(place.subject, step=budget.step)
            yield replace(place, budget=budget, subject=subject, samples=tuple(samples))
        if not groups:
            missing = "no step is left after the skipped ones" if marked else NO_STEPS
            if marked and place.budget.phase is not None:
                missing = f"there is no whole step of the phase {place.budget.phase}"
            if place.samples:
                missing = f"there is no step {clean(pattern or '', 80)}"
            yield replace(place, samples=(), missing=missing)
