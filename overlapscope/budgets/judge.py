"""Judgement of a budget with a single limit, first at each place and then for all ranks and devices together."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median

import numpy as np
from msgspec.structs import replace

from overlapscope.base.words import plural
from overlapscope.budgets.baseline import STEPS, Baseline
from overlapscope.budgets.places import JudgedPlace, place_words
from overlapscope.budgets.quantity import difference, distinct, show
from overlapscope.budgets.reasons import reasons_of
from overlapscope.budgets.rulings import WORST_FIRST, Ruling, can_count, verdict
from overlapscope.budgets.samples import MetricSamples, Series, lacking, noise_floor, series, spent
from overlapscope.budgets.settings import Budget, Settings, step_fits
from overlapscope.budgets.verdicts import BudgetVerdict
from overlapscope.compare.noise import F64, FEWEST, draw, interval
from overlapscope.report.model import Report


def judge(place: JudgedPlace, baseline: Baseline | None, *, only: bool) -> Ruling:
    """Judge a budget at one place.

    Args:
        place: The budget, with a single limit, and its samples.
        baseline: Figures that a relative limit compares with.
        only: Whether the report has a single device. It is compared with a single device of the baseline even if
            their ranks or numbers differ.

    Returns:
        The judgement. Its status is `unknown` if a figure is missing.
    """
    if place.missing is not None:
        return _unknown(place, place.missing)
    budget = place.budget
    values = series(place.samples, budget.what, budget.direction)
    lack = lacking(budget.what, budget.direction, place.samples, values)
    if budget.relative and baseline is not None:
        ruling = _against_baseline(place, values, lack, baseline, only=only)
    else:
        ruling = _unknown(place, lack) if lack else _absolute(place, values)
    return replace(ruling, samples=len(values.numbers))


def _against_limit(budget: Budget, value: float, bound: float, *, failed: bool) -> str:
    """Return `step_time is 3.4 ms, but at most 3 ms is allowed`."""
    value_text, bound_text = distinct((value, bound), budget.what.unit)
    return f"{budget.metric} is {value_text}, {'but ' if failed else ''}{_demand(budget, bound_text)}"


def _demand(budget: Budget, bound: str) -> str:
    return f"at least {bound} is required" if budget.at_least else f"at most {bound} is allowed"


def _unknown(place: JudgedPlace, reason: str) -> Ruling:
    sentence = f"{place.budget.metric} is unknown: {reason}"
    return Ruling(subject=place.subject, place=place, status="unknown", sentence=sentence)


def _absolute(place: JudgedPlace, values: Series) -> Ruling:
    budget = place.budget
    value, bound = budget.combine(values), float(budget.bound)
    failed = budget.excess(value, bound) > 0
    return Ruling(
        subject=place.subject,
        place=place,
        status="fail" if failed else "pass",
        value=value,
        limit=bound,
        sentence=_against_limit(budget, value, bound, failed=failed),
    )


# -- Comparison with the baseline -------------------------------------------------------------------


def _against_baseline(
    place: JudgedPlace, values: Series, lack: str | None, baseline: Baseline, *, only: bool
) -> Ruling:
    """Find the baseline's samples and judge the change, unless either side has too few samples."""
    budget, number = place.budget, place.subject.device
    device = None if number is None else baseline.device_for(place.subject.rank, number, only=only)
    if device is None:
        return _unknown(place, "the baseline has no such device")
    average = place.device.per_step if place.device is not None else None
    # Steps of a server are compared with those of the same phase.
    phase = budget.phase or (average.phase if average is not None else None) or None
    steps, samples = (
        baseline.samples(device, scope, skip=budget.skip_steps, phase=phase) for scope in (STEPS, place.subject.scope)
    )
    if samples is None:
        return _unknown(place, f"the baseline has no such {'step' if budget.range is None else 'range'}")
    before = series(samples, budget.what, budget.direction)
    if budget.step is not None and budget.range is None:
        before = before.take([number for number, name in enumerate(before.names) if step_fits(name, budget.step)])
    if lack is not None:
        return replace(_unknown(place, lack), nothing=not any(before.numbers))
    whole, before, now = fmean(values.wholes), before.known(), values.known()
    for owner, side in (("", now), ("the baseline has ", before)):
        if len(side.numbers) < FEWEST:
            count = plural(len(side.numbers), budget.sample)
            return _unknown(place, f"not enough data: {owner}{count} to compare; {FEWEST} are needed")
    ruling = _relative(place, now, before, _noise_floor(place, samples, steps, whole, budget.combine(before)))
    return replace(ruling, before=samples)


def _relative(place: JudgedPlace, now: Series, before: Series, floor: float) -> Ruling:
    """Judge a change.

    It fails if it exceeds both the allowed percentage and the noise floor, and is unlikely to be chance. The limit is
    the baseline's value plus the larger of the allowed change and the floor.

    Returns:
        The judgement, with the interval of the change.
    """
    budget = place.budget
    sign = -1 if budget.what.more_is_better else 1
    value, base = budget.combine(now), budget.combine(before)
    allowed = base * float(budget.bound) / 100
    bound = base + sign * max(allowed, floor)
    low, high = (float(end[0]) for end in interval(_drawn(budget, before)[:, None], _drawn(budget, now)[:, None]))
    beyond, certain = budget.excess(value, bound) > 0, min(sign * low, sign * high) > 0
    doubt = note = ""
    if beyond and not certain:
        doubt, note = "; the steps vary so much that this may be chance", f"{_change(value, base)}, may be chance"
    elif not beyond and sign * (value - base) > allowed:
        note = f"{_change(value, base)}, within noise"
    return Ruling(
        subject=place.subject,
        place=place,
        status="fail" if beyond and certain else "pass",
        value=value,
        limit=bound,
        baseline=base,
        low=low,
        high=high,
        sentence=_comparison(budget, value, base, bound, floor if floor > allowed else None) + doubt,
        note=note,
    )


def _comparison(budget: Budget, value: float, base: float, bound: float, floor: float | None) -> str:
    """Return `step_time is 12.6 ms, 21.3% more than the baseline's 10.4 ms (at most 10.9 ms is allowed)`.

    `floor` is given if the noise floor decides the limit.
    """
    value_text, base_text, bound_text = distinct((value, base, bound), budget.what.unit)
    if value == base:
        return f"{budget.metric} is {value_text}, as in the baseline"
    demand = _demand(budget, bound_text)
    if floor is not None:
        demand += f", because up to {difference(floor, budget.what.unit)} is noise"
    return f"{budget.metric} is {value_text}, {_change(value, base)} than the baseline's {base_text} ({demand})"


def _change(value: float, base: float) -> str:
    """Return `21.3% more`."""
    percentage = f"{show(100 * abs(value - base) / base, 'pct')} " if base else ""
    return f"{percentage}{'more' if value > base else 'less'}"


def _noise_floor(
    place: JudgedPlace, before: MetricSamples, steps: MetricSamples | None, whole: float, base: float
) -> float:
    """Return the minimum change that counts, in the metric's unit.

    Args:
        place: The place to judge.
        before: The baseline's samples.
        steps: The baseline's steps, even if ranges are judged.
        whole: The mean divisor of a percentage.
        base: The baseline's value.
    """
    budget, metric = place.budget, place.budget.what
    if budget.noise_floor is not None:
        return budget.noise_floor
    if budget.noise_floor_pct is not None:
        return budget.noise_floor_pct / 100 * (median(steps.facts["span"].tolist()) if steps else 0.0)
    return noise_floor(metric, spent(before, budget.direction), place.spent, whole, base)


def _drawn(budget: Budget, values: Series) -> F64:
    """Return the aggregate of each bootstrap sample of the steps, of shape (draws,)."""
    rows = draw(values.spans_ns)
    drawn: F64 = np.array(values.numbers, np.float64)[rows]
    if budget.aggregate == "median":
        return np.asarray(np.median(drawn, axis=1), np.float64)
    if budget.aggregate == "mean":
        wholes = np.array(values.wholes, np.float64)[rows]
        return np.asarray((drawn * wholes).sum(axis=1) / wholes.sum(axis=1), np.float64)
    place = budget.place_of(drawn.shape[1])
    return np.asarray(np.sort(drawn, axis=1)[:, place], np.float64)


# -- All places together ----------------------------------------------------------------------------


def combine(report: Report, rulings: Sequence[Ruling], budget: Budget, settings: Settings) -> BudgetVerdict:
    """Return one verdict for several places: that of the worst."""
    decisive = min(rulings, key=lambda ruling: (WORST_FIRST[ruling.status], -_excess(ruling, budget)))
    failed = decisive.status in ("fail", "accepted")
    return verdict(
        decisive,
        rulings,
        budget=budget.title,
        metric=budget.metric,
        message=_message(report, budget, decisive, rulings),
        unit=budget.what.unit,
        level=budget.level,
        more_is_better=budget.at_least,
        reasons=reasons_of(report, decisive.place, decisive.before) if failed else (),
        counts=can_count(decisive.status, budget.level, settings, allow_missing=budget.allow_missing),
    )


def _excess(ruling: Ruling, budget: Budget) -> float:
    """Return the distance of a value beyond its limit; negative within it."""
    if ruling.value is None or ruling.limit is None:
        return 0.0
    return budget.excess(ruling.value, ruling.limit)


def _message(report: Report, budget: Budget, decisive: Ruling, rulings: Sequence[Ruling]) -> str:
    """Return the sentence with its place and the way in which its value was computed."""
    where = place_words(report, decisive.subject)
    prefix = f"{where}: " if where else ""
    way = f"{budget.aggregate} of {plural(decisive.samples, budget.sample)}"
    if decisive.samples <= 1:
        way = f"one {budget.sample}"
    ways = [] if decisive.value is None else ["whole window" if budget.sample == "window" else way]
    if ways and len(rulings) > 1:
        ways.append(f"worst of {_places_words(rulings)}")
    way = f"; {', '.join(ways)}" if ways else ""
    return f"{prefix}{decisive.sentence}{way}. {decisive.exception}".rstrip()


def _places_words(rulings: Sequence[Ruling]) -> str:
    """Return `2 ranks`, or devices or traces if ranks don't set the judged places apart."""
    subjects = [ruling.subject for ruling in rulings if ruling.value is not None]
    ranks = {subject.rank for subject in subjects}
    if None not in ranks and len(ranks) == len(subjects):
        kind = "rank"
    else:
        kind = "device" if len({subject.source for subject in subjects}) == 1 else "trace"
    return plural(len(subjects), kind)
