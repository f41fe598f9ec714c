"""What a budget comes to over all ranks and devices: one verdict, with what each of them had."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from overlapscope.base.words import plural
from overlapscope.budgets.baseline import Baseline
from overlapscope.budgets.judge import against_limit, spent_before, spent_now
from overlapscope.budgets.places import place_words
from overlapscope.budgets.reasons import reasons_of
from overlapscope.budgets.rulings import WORST_FIRST, Ruling, counts
from overlapscope.budgets.settings import Budget
from overlapscope.budgets.verdicts import Level, Reason, Subject, Verdict
from overlapscope.report.model import Report


def combine(
    report: Report, budget: Budget, rulings: Sequence[Ruling], *, fail_level: Level, baseline: Baseline | None
) -> Verdict:
    """One verdict for some places."""
    order = sorted(rulings, key=lambda one: (WORST_FIRST[one.status], -_excess(one, budget)))
    middle = budget.ranks == "median" and len(rulings) > 1
    decisive = _middle(budget, order) if middle else order[0]
    subject = decisive.subject
    if middle:
        subject = Subject(scope=subject.scope, direction=subject.direction, step=subject.step)
    return Verdict(
        budget=budget.title,
        metric=budget.metric,
        subject=subject,
        status=decisive.status,
        level=budget.level,
        value=decisive.value,
        limit=decisive.limit,
        unit=budget.what.unit,
        more_is_better=budget.at_least,
        baseline=decisive.baseline,
        change_low=decisive.low,
        change_high=decisive.high,
        samples=decisive.samples,
        message=_message(report, budget, decisive, rulings, middle=middle),
        parts=tuple(ruling.part for ruling in rulings),
        reasons=_reasons(report, budget, decisive, baseline),
        exception=decisive.exception or None,
        note=decisive.note or None,
        counts=counts(decisive.status, budget.level, fail_level, allow_missing=budget.allow_missing),
    )


def _reasons(report: Report, budget: Budget, ruling: Ruling, baseline: Baseline | None) -> tuple[Reason, ...]:
    place = ruling.place
    if ruling.status not in ("fail", "accepted") or place is None or place.device is None:
        return ()
    before = None
    if budget.relative and baseline is not None:
        before = spent_before(place, baseline, only=len(report.devices) == 1)
    return reasons_of(report, place, spent_now(place), before)


def _excess(ruling: Ruling, budget: Budget) -> float:
    """How far a value is beyond its limit; negative within it."""
    if ruling.value is None or ruling.limit is None:
        return 0.0
    return (ruling.limit - ruling.value) if budget.at_least else (ruling.value - ruling.limit)


def _middle(budget: Budget, worst_first: list[Ruling]) -> Ruling:
    """The median over the places, which none of them need have. Where one is unknown, it is unknown."""
    unknown = next((ruling for ruling in worst_first if ruling.value is None), None)
    if unknown is not None:
        return unknown
    value = median(ruling.value or 0.0 for ruling in worst_first)
    bound = median(ruling.limit or 0.0 for ruling in worst_first)
    failing = [ruling for ruling in worst_first if ruling.status in ("fail", "accepted")]
    beyond = value < bound if budget.at_least else value > bound
    # Of a change, half of the places have to show that it is more than noise.
    failed = beyond and 2 * len(failing) >= len(worst_first)
    accepted = failed and all(ruling.status == "accepted" for ruling in failing)
    by_chance = beyond and not failed
    sentence = against_limit(budget, value, bound, failed=failed)
    # The worst of them shows the reasons.
    return Ruling(
        subject=worst_first[0].subject,
        place=worst_first[0].place,
        status="accepted" if accepted else "fail" if failed else "pass",
        value=value,
        limit=bound,
        baseline=median(ruling.baseline or 0.0 for ruling in worst_first) if budget.relative else None,
        sentence=f"{sentence}; in most places this may be chance" if by_chance else sentence,
        note="may be chance" if by_chance else "",
        exception=worst_first[0].exception if failed else "",
    )


def _message(report: Report, budget: Budget, decisive: Ruling, rulings: Sequence[Ruling], *, middle: bool) -> str:
    """The sentence, with its place and how it came about."""
    where = place_words(report, decisive.subject, rank=not middle)
    text = f"{where}: {decisive.sentence}" if where else decisive.sentence
    return f"{text}{_how(budget, decisive, rulings, middle=middle)}. {decisive.exception}".rstrip()


def _how(budget: Budget, decisive: Ruling, rulings: Sequence[Ruling], *, middle: bool) -> str:
    """`; median of 8 steps, worst of 2 ranks`."""
    if decisive.value is None:
        return ""
    if budget.scope == "window" and budget.where.range is None:
        way = "whole window"
    else:
        what = "step" if budget.where.range is None else "occurrence"
        way = f"{budget.aggregate} of {plural(decisive.samples, what)}" if decisive.samples > 1 else f"one {what}"
    if len(rulings) > 1:
        known = [ruling.subject for ruling in rulings if ruling.value is not None]
        ranks, traces = {subject.rank for subject in known}, {subject.source for subject in known}
        what = "rank" if None not in ranks and len(ranks) == len(known) else "device" if len(traces) == 1 else "trace"
        way += f", {'median' if middle else 'worst'} of {plural(len(known), what)}"
    return f"; {way}"
