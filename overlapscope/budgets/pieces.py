"""Where a budget applies: the devices, ranges and steps that it is for, each under the overrides that hold there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from overlapscope.analysis.results import Device, TraceResult
from overlapscope.base.words import clean
from overlapscope.budgets.doubt import doubt
from overlapscope.budgets.metrics import Sample
from overlapscope.budgets.missing import Absent
from overlapscope.budgets.samples import of_host, of_ranges, of_steps, of_window
from overlapscope.budgets.settings import Budget, Override, step_fits
from overlapscope.budgets.verdicts import Subject
from overlapscope.report.model import Report
from overlapscope.trace.lost import HOST

NO_STEPS = (
    "there are no whole steps in it: mark them with prof.step() or overlapscope.step(), or judge the whole recording "
    'with scope = "window"'
)


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """What a budget is judged on at one place: some samples of one device."""

    budget: Budget
    """As overridden for this place."""
    subject: Subject
    trace: TraceResult | None = None
    device: Device | None = None
    samples: tuple[Sample, ...] = ()
    missing: str | None = None
    """Why there is nothing to judge."""


def find(report: Report, budget: Budget, overrides: Sequence[Override], absent: Sequence[Absent]) -> Iterator[Piece]:
    """Every place at which a budget is to be judged; what is absent is a piece with the reason."""
    finder = _Finder(budget, tuple(one for one in overrides if budget.metric in one.changes))
    anywhere = False
    for trace in report.traces:
        for device in trace.devices or (None,):
            subject = Subject(
                source=trace.source,
                rank=trace.rank,
                device=device.device if device else None,
                scope=budget.scope,
                direction=budget.direction,
            )
            if replace(budget.where, range=None).match(subject):
                anywhere = True
                yield from finder.at(subject, trace, device)
    if not anywhere:
        yield Piece(budget, Subject(scope=budget.scope), missing="there is no such trace, rank or device")
    where = budget.where
    if where.rank is None and where.trace is None and where.device is None:
        for one in absent:
            subject = Subject(rank=one.rank, scope=budget.scope, direction=budget.direction)
            yield Piece(finder.overridden(subject), subject, missing=one.sentence)


class _Finder:
    """One budget and what may change it."""

    def __init__(self, budget: Budget, overrides: tuple[Override, ...]) -> None:
        self._budget = budget
        self._overrides = overrides

    def overridden(self, subject: Subject, step: str | None = None) -> Budget:
        """The budget as it holds at a place; with `step`, for that step. Later overrides win."""
        changed: dict[str, Any] = {}
        pattern, origin = self._budget.step, self._budget.origin
        for one in self._overrides:
            fits = one.step is None or (step is not None and step_fits(step, one.step))
            if fits and one.where.match(subject):
                changed |= one.changes[self._budget.metric]
                pattern = one.step or pattern
                origin = f"{origin}, changed by {one.origin}"
        return replace(self._budget, **changed, step=pattern, origin=origin)

    def at(self, subject: Subject, trace: TraceResult, device: Device | None) -> Iterator[Piece]:
        """The pieces of one device."""
        budget = self.overridden(subject)
        if budget.what.of_host:
            yield from self._host(subject, trace)
            return
        missing = doubt(trace, budget.what.rests_on)
        if device is None or missing is not None:
            yield Piece(budget, subject, trace, device, missing=missing or "nothing ran on the GPU")
        elif budget.where.range is not None:
            yield from self._ranges(subject, trace, device)
        elif budget.scope == "window":
            samples = of_window(device)
            nothing = None if samples else "all of it is lead-in, of which nothing can be said"
            yield Piece(budget, subject, trace, device, samples, nothing)
        else:
            yield from self._steps(subject, trace, device)

    def _host(self, subject: Subject, trace: TraceResult) -> Iterator[Piece]:
        base, host = self.overridden(subject), trace.host
        missing = doubt(trace, HOST)
        if missing is None and host is None:
            missing = "it is of programs that do nothing on a GPU"
        if missing is None and base.scope == "window":
            missing = "it is of steps alone"
        if missing is not None or host is None:
            yield Piece(base, subject, trace, missing=missing)
        else:
            yield from self._grouped(subject, trace, None, of_host(host, skip=base.skip_steps), host.by_steps)

    def _ranges(self, subject: Subject, trace: TraceResult, device: Device) -> Iterator[Piece]:
        anywhere = False
        for name in of_ranges(device):
            mine = msgspec.structs.replace(subject, scope=name)
            if self._budget.where.match(mine):
                anywhere = True
                budget = self.overridden(mine)
                samples = of_ranges(device, skip=budget.skip_steps).get(name, ())
                nothing = None if samples else "it does not occur behind the steps that are skipped"
                yield Piece(budget, mine, trace, device, samples, nothing)
        if not anywhere:
            pattern = clean(self._budget.where.range or "", 80)
            yield Piece(self._budget, subject, trace, device, missing=f"there is no whole range {pattern}")

    def _steps(self, subject: Subject, trace: TraceResult, device: Device) -> Iterator[Piece]:
        samples = of_steps(device, skip=self.overridden(subject).skip_steps)
        yield from self._grouped(subject, trace, device, samples, bool(device.steps))

    def _grouped(
        self, subject: Subject, trace: TraceResult, device: Device | None, samples: tuple[Sample, ...], marked: bool
    ) -> Iterator[Piece]:
        """Steps by the budget that holds for each; `marked`: whether any was recorded."""
        base = self.overridden(subject)
        groups: dict[Budget, list[Sample]] = {}
        for sample in samples:
            if base.step is None or step_fits(sample.name, base.step):
                groups.setdefault(self.overridden(subject, sample.name), []).append(sample)
        if not groups:
            if samples:
                missing = f"there is no step {clean(base.step or '', 80)}"
            else:
                missing = "no step is left behind those that are skipped" if marked else NO_STEPS
            yield Piece(base, subject, trace, device, missing=missing)
        for budget, mine in groups.items():
            named = msgspec.structs.replace(subject, step=budget.step)
            yield Piece(budget, named, trace, device, tuple(mine))
