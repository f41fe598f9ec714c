"""One limit of one budget, judged at each place: the value, the status, and what to say of it; and the one verdict that
all ranks and devices come to together."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import fmean, median

import numpy as np
from msgspec.structs import replace

from overlapscope.base.words import plural
from overlapscope.budgets.baseline import STEPS, Baseline, BaselineDevice
from overlapscope.budgets.metrics import METRICS
from overlapscope.budgets.missing import lacking
from overlapscope.budgets.places import Place, place_words
from overlapscope.budgets.quantity import distinct, show
from overlapscope.budgets.reasons import reasons_of
from overlapscope.budgets.rulings import WORST_FIRST, Ruling, counts
from overlapscope.budgets.samples import Measured, Series, Spent, noise_floor, series, spent
from overlapscope.budgets.settings import Budget, step_fits
from overlapscope.budgets.verdicts import Level, Reason, Subject, Verdict
from overlapscope.compare.noise import F64, FEWEST, draw, interval
from overlapscope.report.model import Report


def judge(place: Place, baseline: Baseline | None, *, only: bool) -> Ruling:
    """A budget with one limit, at one place. `only`: whether the report has a single device, which needs no name to be
    compared."""
    if place.missing is not None:
        return _unknown(place, place.missing)
    budget = place.budget
    values = series(place.samples, budget.what, budget.direction)
    lack = lacking(budget.what, budget.direction, place.samples, values)
    if budget.relative and baseline is not None:
        ruling = _compared(place, values, lack, baseline, only=only)
    else:
        ruling = _unknown(place, lack) if lack else _absolute(place, values)
    return replace(ruling, samples=len(values.numbers))


def _spent_now(place: Place) -> Spent:
    """What the samples of a place spent; there is at least one."""
    return spent(partial(series, place.samples), place.budget.direction)


def _against_limit(budget: Budget, value: float, bound: float, *, failed: bool) -> str:
    """`step_time is 3.4 ms, but at most 3 ms is allowed`."""
    said, allowed = distinct((value, bound), budget.what.unit)
    return f"{budget.metric} is {said}, {'but ' if failed else ''}{_demand(budget, allowed)}"


def _demand(budget: Budget, bound: str) -> str:
    return f"at least {bound} is required" if budget.at_least else f"at most {bound} is allowed"


def _unknown(place: Place, why: str) -> Ruling:
    sentence = f"{place.budget.metric} is unknown: {why}"
    return Ruling(subject=place.subject, place=place, status="unknown", sentence=sentence)


def _absolute(place: Place, values: Series) -> Ruling:
    budget = place.budget
    value, bound = budget.combine(values.numbers), float(budget.bound)
    failed = value < bound if budget.at_least else value > bound
    return Ruling(
        subject=place.subject,
        place=place,
        status="fail" if failed else "pass",
        value=value,
        limit=bound,
        sentence=_against_limit(budget, value, bound, failed=failed),
    )


# -- against the baseline -------------------------------------------------------------------------


def _device_before(place: Place, baseline: Baseline, *, only: bool) -> BaselineDevice | None:
    number = place.subject.device
    return None if number is None else baseline.device_for(place.subject.rank, number, only=only)


def _compared(place: Place, values: Series, lack: str | None, baseline: Baseline, *, only: bool) -> Ruling:
    budget = place.budget
    device = _device_before(place, baseline, only=only)
    if device is None:
        return _unknown(place, "the baseline has no such device")
    measured = baseline.measured(device, place.subject.scope, skip=budget.skip_steps)
    if measured is None:
        return _unknown(place, f"the baseline has no such {'step' if budget.where.range is None else 'range'}")
    before = measured(budget.what, budget.direction)
    if budget.step is not None and budget.where.range is None:
        before = before.take([number for number, name in enumerate(before.names) if step_fits(name, budget.step)])
    if lack is not None:
        return replace(_unknown(place, lack), nothing=not any(before.numbers))
    before, now = before.known(), values.known()
    for whose, side in (("", now), ("the baseline has ", before)):
        if len(side.numbers) < FEWEST:
            what = plural(len(side.numbers), "step" if budget.where.range is None else "occurrence")
            return _unknown(place, f"not enough data: {whose}{what} to compare; {FEWEST} are needed")
    steps = baseline.measured(device, STEPS, skip=budget.skip_steps)
    return _relative(place, now, before, _floor(place, measured, steps, budget.combine(before.numbers)))


def _relative(place: Place, now: Series, before: Series, floor: float) -> Ruling:
    """A change counts where it exceeds its percentage and the noise floor, and chance would hardly make it.

    The limit is the baseline's value and the larger of the two.
    """
    budget = place.budget
    sign = -1 if budget.what.more_is_better else 1
    value, base = budget.combine(now.numbers), budget.combine(before.numbers)
    allowed = base * float(budget.bound) / 100
    bound = base + sign * max(allowed, floor)
    low, high = (float(end[0]) for end in interval(_drawn(budget, before)[:, None], _drawn(budget, now)[:, None]))
    beyond, certain = sign * (value - bound) > 0, min(sign * low, sign * high) > 0
    but = note = ""
    if beyond and not certain:
        but, note = "; the steps vary so much that this may be chance", f"{_much(value, base)}, may be chance"
    elif not beyond and sign * (value - base) > allowed:
        note = f"{_much(value, base)}, within noise"
    return Ruling(
        subject=place.subject,
        place=place,
        status="fail" if beyond and certain else "pass",
        value=value,
        limit=bound,
        baseline=base,
        low=low,
        high=high,
        sentence=_change(budget, value, base, bound, floor if floor > allowed else None) + but,
        note=note,
    )


def _change(budget: Budget, value: float, base: float, bound: float, floor: float | None) -> str:
    """`step_time is 12.6 ms, 21.3% more than the baseline's 10.4 ms (at most 10.9 ms is allowed)`; `floor` where the
    limit is due to it."""
    said, was, allowed = distinct((value, base, bound), budget.what.unit)
    if value == base:
        return f"{budget.metric} is {said}, as in the baseline"
    demand = _demand(budget, allowed)
    if floor is not None:
        # Of a percentage, the floor is not a percentage.
        demand += f", because up to {show(floor, budget.what.unit).replace('%', ' points')} is noise"
    return f"{budget.metric} is {said}, {_much(value, base)} than the baseline's {was} ({demand})"


def _much(value: float, base: float) -> str:
    """`21.3% more`."""
    much = f"{show(100 * abs(value - base) / base, 'pct')} " if base else ""
    return f"{much}{'more' if value > base else 'less'}"


def _floor(place: Place, before: Measured, steps: Measured | None, base: float) -> float:
    """The least change that counts, in the metric's unit. `steps`: those of the baseline, whatever is judged."""
    own, metric, direction = place.budget.noise_floor, place.budget.what, place.budget.direction
    if own is not None and not own.share_of_step:
        return own.value
    if own is not None:
        spans = steps(METRICS["step_time"], None).numbers if steps is not None else ()
        return own.value / 100 * (median(spans) if spans else 0.0)
    whole = 0.0
    if metric.unit == "pct" and metric.whole is not None:
        whole = fmean(metric.whole(sample, direction) for sample in place.samples)
    return noise_floor(metric, spent(before, direction), _spent_now(place), whole, base)


def _drawn(budget: Budget, values: Series) -> F64:
    """The aggregate of each draw of steps: (draws,)."""
    drawn: F64 = np.array(values.numbers, np.float64)[draw(values.spans_ns)]
    if budget.aggregate == "median":
        return np.asarray(np.median(drawn, axis=1), np.float64)
    if budget.aggregate == "mean":
        return np.asarray(drawn.mean(axis=1), np.float64)
    place = budget.place_of(drawn.shape[1])
    return np.asarray(np.sort(drawn, axis=1)[:, place], np.float64)


# -- all places together ----------------------------------------------------------------------------


def combine(
    report: Report, budget: Budget, rulings: Sequence[Ruling], *, fail_level: Level, baseline: Baseline | None
) -> Verdict:
    """One verdict for some places."""
    order = sorted(rulings, key=lambda ruling: (WORST_FIRST[ruling.status], -_excess(ruling, budget)))
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
        device = _device_before(place, baseline, only=len(report.devices) == 1)
        if device is not None:
            measured = baseline.measured(device, place.subject.scope, skip=place.budget.skip_steps)
            before = None if measured is None else spent(measured, place.budget.direction)
    return reasons_of(report, place, _spent_now(place), before)


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
    sentence = _against_limit(budget, value, bound, failed=failed)
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
