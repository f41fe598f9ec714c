"""Judgement of budgets and forbidden rules: first at each place, then of all ranks and devices together."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean, median
from typing import Any, Final

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from overlapscope.analysis.results import Device
from overlapscope.base.words import clean, duration, plural
from overlapscope.budgets.baseline import STEPS, Baseline
from overlapscope.budgets.places import JudgedPlace, Series, aggregated, lacking, place_words, series, spent, subjects
from overlapscope.budgets.quantity import difference, distinct, show
from overlapscope.budgets.reasons import finding_reason, reasons_of
from overlapscope.budgets.settings import Budget, Exemption, Settings
from overlapscope.budgets.verdicts import BudgetVerdict, DeviceVerdict, Level, Status, Subject
from overlapscope.compare.doubts import doubt
from overlapscope.compare.noise import F64, MIN_STEPS_FOR_BOOTSTRAP, draw, interval, noise_floor
from overlapscope.report.model import Report
from overlapscope.rules import RULES
from overlapscope.rules.finding import Finding
from overlapscope.trace.lost import GPU_OPS

WORST_FIRST: Final[dict[Status, int]] = {"fail": 0, "unknown": 1, "accepted": 2, "skipped": 3, "pass": 4}


def verdict(decisive: JudgedPlace, places: Sequence[JudgedPlace] = (), **stated: Any) -> BudgetVerdict:
    """Return the verdict of the place that decides over all.

    `stated` are fields of the verdict that places don't have. By default, it is an error that counts differences.
    """
    others: dict[str, Any] = {"unit": "differences", "level": "error", "more_is_better": False} | stated
    return BudgetVerdict(
        subject=decisive.subject,
        status=decisive.status,
        value=decisive.value,
        limit=decisive.limit,
        baseline=decisive.baseline,
        change_low=decisive.low,
        change_high=decisive.high,
        samples=decisive.known,
        parts=tuple(
            DeviceVerdict(each.source, each.rank, each.device, place.status, place.value, place.known)
            for place in places
            for each in (place.subject,)
        ),
        note=decisive.note or None,
        exception=decisive.exception or None,
        **others,
    )


def can_count(status: Status, level: Level, settings: Settings, *, allow_missing: bool) -> bool:
    """Return whether a verdict can change the outcome of the check."""
    if status in ("unknown", "skipped") and allow_missing:
        return False
    return status in ("fail", "unknown", "skipped") and (level == "error" or settings.fail_level == "warn")


class Exemptions:
    """Exceptions of a check, with a record of those that were not needed."""

    def __init__(self, exemptions: Sequence[Exemption], today: datetime.date) -> None:
        self._exemptions, self._today = exemptions, today
        self._useless = ["matches nothing that was judged"] * len(exemptions)
        """Reason why each exception changed nothing; empty if it did."""

    def apply(self, metric: str, budget: str | None, place: JudgedPlace) -> JudgedPlace:
        """Return the place after exceptions, with a sentence if one matters. Only a failure can be accepted.

        `metric` and `budget` are those of `Exemption.covers`.
        """
        ended = ""
        for number, exemption in enumerate(self._exemptions):
            if not exemption.covers(metric, budget) or not exemption.matches(place.subject):
                continue
            if place.status != "fail":
                self._useless[number] = self._useless[number] and "is not needed, because nothing fails"
                continue
            self._useless[number] = ""
            reason = clean(exemption.reason, 300).rstrip(".")
            if self._today <= exemption.until:
                accepted = f"Accepted until {exemption.until}: {reason}."
                return replace(place, status="accepted", exception=accepted)
            ended = f"Its exception ended on {exemption.until}: {reason}."
        return replace(place, exception=ended)

    def excepted(self, verdict: BudgetVerdict) -> BudgetVerdict:
        """Return a verdict that is about no budget of the settings, after exceptions."""
        judged = JudgedPlace(subject=verdict.subject, status=verdict.status)
        place = self.apply(verdict.metric, verdict.budget, judged)
        counts = verdict.counts and place.status != "accepted"
        return replace(verdict, status=place.status, exception=place.exception or None, counts=counts)

    def notes(self) -> Iterator[str]:
        """Yield a sentence about each exception that changed nothing."""
        for exemption, useless in zip(self._exemptions, self._useless, strict=True):
            if useless:
                name = clean(exemption.rule or exemption.budget or "", 80)
                yield f"{clean(exemption.origin)}: the exception for {name} {useless}; remove it."


# -- Budgets at one place ---------------------------------------------------------------------------


def judge(budget: Budget, place: JudgedPlace, baseline: Baseline | None, *, only: bool) -> JudgedPlace:
    """Judge a budget at one place.

    Args:
        budget: The budget, with a single limit.
        baseline: Figures that a relative limit compares with.
        only: Whether the report has a single device. It is compared with a single device of the baseline even if
            their ranks or numbers differ.

    Returns:
        The place with the judgement. Its status is `unknown` if a figure is missing.
    """
    if place.status == "unknown":
        return _unknown(budget, place, place.sentence)
    values = series(place.samples, budget.measure, budget.direction)
    lack = lacking(budget.measure, budget.direction, place.samples, values)
    place = replace(place, known=len(values.numbers))
    if budget.relative and baseline is not None:
        return _against_baseline(budget, place, values, lack, baseline, only=only)
    if lack:
        return _unknown(budget, place, lack)
    value, bound = aggregated(budget, values), float(budget.bound)
    failed = budget.excess(value, bound) > 0
    value_text, bound_text = distinct((value, bound), budget.measure.unit)
    sentence = f"{budget.metric} is {value_text}, {'but ' if failed else ''}{_demand(budget, bound_text)}"
    return replace(place, status="fail" if failed else "pass", value=value, limit=bound, sentence=sentence)


def _unknown(budget: Budget, place: JudgedPlace, reason: str) -> JudgedPlace:
    return place.unknown(f"{budget.metric} is unknown: {reason}")


def _demand(budget: Budget, bound: str) -> str:
    return f"at least {bound} is required" if budget.at_least else f"at most {bound} is allowed"


# -- Comparison with the baseline -------------------------------------------------------------------


def _against_baseline(
    budget: Budget, place: JudgedPlace, values: Series, lack: str | None, baseline: Baseline, *, only: bool
) -> JudgedPlace:
    """Find the baseline's samples and judge the change, unless either side has too few samples."""
    number = place.subject.device
    device = None if number is None else baseline.device_for(place.subject.rank, number, only=only)
    if device is None:
        return _unknown(budget, place, "the baseline has no such device")
    average = place.device.per_step if place.device is not None else None
    # Steps of a server are compared with those of the same phase.
    phase = budget.phase or (average.phase if average is not None else None) or None
    sampled = partial(baseline.samples, device, skip=budget.skip_steps, phase=phase)
    samples = sampled(place.subject.scope)
    if samples is None:
        return _unknown(budget, place, f"the baseline has no such {'step' if budget.range is None else 'range'}")
    samples = samples.named(None if budget.range is not None else budget.step)
    before = series(samples, budget.measure, budget.direction)
    if lack is not None:
        return replace(_unknown(budget, place, lack), nothing=not any(before.numbers))
    whole, before, now = fmean(values.wholes), before.known(), values.known()
    for owner, side in (("", now), ("the baseline has ", before)):
        if len(side.numbers) < MIN_STEPS_FOR_BOOTSTRAP:
            count = plural(len(side.numbers), budget.sample)
            return _unknown(
                budget, place, f"not enough data: {owner}{count} to compare; {MIN_STEPS_FOR_BOOTSTRAP} are needed"
            )
    floor = budget.noise_floor
    if budget.noise_floor_pct is not None:
        steps = sampled(STEPS)
        floor = budget.noise_floor_pct / 100 * (median(steps.facts["span"].tolist()) if steps else 0.0)
    elif floor is None:
        lengths = spent(samples, budget.direction), place.spent
        floor = noise_floor(budget.measure, lengths, whole=whole, base=aggregated(budget, before))
    return _relative(budget, replace(place, before=samples), now, before, floor)


def _relative(budget: Budget, place: JudgedPlace, now: Series, before: Series, floor: float) -> JudgedPlace:
    """Judge a change.

    It fails if it exceeds both the allowed percentage and the noise floor, and is unlikely to be chance. The limit is
    the baseline's value plus the larger of the allowed change and the floor.

    Returns:
        The place with the judgement and the interval of the change.
    """
    sign = -1 if budget.measure.more_is_better else 1
    value, base = aggregated(budget, now), aggregated(budget, before)
    allowed = base * float(budget.bound) / 100
    bound = base + sign * max(allowed, floor)
    low, high = (float(end[0]) for end in interval(_drawn(budget, before)[:, None], _drawn(budget, now)[:, None]))
    beyond, is_certain = budget.excess(value, bound) > 0, min(sign * low, sign * high) > 0
    doubt = note = ""
    if beyond and not is_certain:
        doubt, note = "; the steps vary so much that this may be chance", f"{_change(value, base)}, may be chance"
    elif not beyond and sign * (value - base) > allowed:
        note = f"{_change(value, base)}, within noise"
    return replace(
        place,
        status="fail" if beyond and is_certain else "pass",
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
    value_text, base_text, bound_text = distinct((value, base, bound), budget.measure.unit)
    if value == base:
        return f"{budget.metric} is {value_text}, as in the baseline"
    demand = _demand(budget, bound_text)
    if floor is not None:
        demand += f", because up to {difference(floor, budget.measure.unit)} is noise"
    return f"{budget.metric} is {value_text}, {_change(value, base)} than the baseline's {base_text} ({demand})"


def _change(value: float, base: float) -> str:
    """Return `21.3% more`."""
    percentage = f"{show(100 * abs(value - base) / base, 'pct')} " if base else ""
    return f"{percentage}{'more' if value > base else 'less'}"


def _drawn(budget: Budget, values: Series) -> F64:
    """Return the aggregate of each bootstrap sample of the steps, of shape (draws,)."""
    rows = draw(values.spans_ns)
    drawn: F64 = np.array(values.numbers, np.float64)[rows]
    if budget.aggregate == "median":
        return np.asarray(np.median(drawn, axis=1), np.float64)
    if budget.aggregate == "mean":
        wholes = np.array(values.wholes, np.float64)[rows]
        return np.asarray((drawn * wholes).sum(axis=1) / wholes.sum(axis=1), np.float64)
    return np.asarray(np.sort(drawn, axis=1)[:, budget.place_of(drawn.shape[1])], np.float64)


# -- All places together ----------------------------------------------------------------------------


def combine(report: Report, places: Sequence[JudgedPlace], budget: Budget, settings: Settings) -> BudgetVerdict:
    """Return one verdict for several places: that of the worst."""

    def excess(place: JudgedPlace) -> float:
        return 0.0 if place.value is None or place.limit is None else budget.excess(place.value, place.limit)

    decisive = min(places, key=lambda place: (WORST_FIRST[place.status], -excess(place)))
    where, ways = place_words(report, decisive.subject), []
    if decisive.value is not None:
        few = "whole window" if budget.sample == "window" else f"one {budget.sample}"
        several = decisive.known > 1 and budget.sample != "window"
        ways.append(f"{budget.aggregate} of {plural(decisive.known, budget.sample)}" if several else few)
        ways += [f"worst of {_places_words(places)}"] if len(places) > 1 else []
    sentence = f"{where}: {decisive.sentence}" if where else decisive.sentence
    return verdict(
        decisive,
        places,
        budget=budget.title,
        metric=budget.metric,
        # The sentence with its place and the way in which its value was computed.
        message=f"{'; '.join(filter(None, (sentence, ', '.join(ways))))}. {decisive.exception}".rstrip(),
        unit=budget.measure.unit,
        level=budget.level,
        more_is_better=budget.at_least,
        reasons=reasons_of(report, budget, decisive) if decisive.status in ("fail", "accepted") else (),
        counts=can_count(decisive.status, budget.level, settings, allow_missing=budget.allow_missing),
    )


def _places_words(places: Sequence[JudgedPlace]) -> str:
    """Return `2 ranks`, or devices or traces if ranks don't set the judged places apart."""
    subjects = [place.subject for place in places if place.value is not None]
    ranks = {subject.rank for subject in subjects}
    if None not in ranks and len(ranks) == len(subjects):
        kind = "rank"
    else:
        kind = "device" if len({subject.source for subject in subjects}) == 1 else "trace"
    return plural(len(subjects), kind)


# -- Forbidden rules -------------------------------------------------------------------------------


def judge_rule(
    report: Report, rule: str, settings: Settings, absent: Mapping[int, str], exemptions: Exemptions
) -> BudgetVerdict:
    """Return the verdict on a forbidden rule for all traces."""
    floor_pct = settings.forbid_floor_pct
    places = [exemptions.apply(rule, None, place) for place in _rule_places(report, rule, floor_pct)]
    places += [
        JudgedPlace(subject=Subject(rank=rank, scope="window")).unknown(f"rank {rank}: {reason}")
        for rank, reason in absent.items()
    ]
    worst = min(
        places,
        key=lambda place: (WORST_FIRST[place.status], -max((each.mean_cost_ns for each in place.findings), default=0)),
    )
    # If the rule fails at one place, the verdict is not about places where its findings are accepted.
    decisive = [place for place in places if worst.status != "fail" or place.status == "fail"]
    found = [
        (finding, place_words(report, place.subject) if len(report.devices) > 1 else "")
        for place in decisive
        for finding in place.findings
    ]
    found.sort(key=lambda each: each[0].mean_cost_ns, reverse=True)
    unknown = worst.status == "unknown"
    return verdict(
        replace(worst, value=None if unknown else len(found), limit=0),
        places,
        budget=f"forbid {rule}",
        metric=rule,
        unit="findings",
        message=f"{rule} cannot be judged: {worst.sentence}."
        if unknown
        else f"{_found_words(rule, found, floor_pct)} {worst.exception}".rstrip(),
        reasons=tuple(finding_reason(finding, where) for finding, where in found),
        unknown_because=worst.sentence if unknown else UNSET,
        counts=can_count(worst.status, "error", settings, allow_missing=settings.allow_missing),
    )


def _rule_places(report: Report, rule: str, floor_pct: float) -> Iterator[JudgedPlace]:
    """Yield a place for each device, with its findings that cost enough."""
    for subject, trace, device in subjects(report, scope="window"):
        place = JudgedPlace(subject=subject)
        missing = doubt(trace, RULES[rule].rests_on)
        if device is not None:
            least = floor_pct / 100 * (device.per_step or device.judged or device).span_ns
            findings = tuple(
                finding
                for finding in report.findings
                if (finding.rule, finding.source, finding.device) == (rule, trace.source, device.device)
                # Good news counts only if the rule has nothing else.
                and (finding.cost_ns or RULES[rule].severity == "info")
                and finding.mean_cost_ns >= least
            )
            place = replace(place, status="fail" if findings else "pass", findings=findings)
            if any(_stands(each, device, floor_pct) for each in findings):
                # Lost records of the host may hide more, but take nothing back. Beside a lost op, nothing was exposed.
                lost = doubt(trace, RULES[rule].rests_on & GPU_OPS)
                missing = lost and f"it was found, but {lost}"
            elif findings and not missing:
                missing = "how much of the cost is the profiler's is not known; `overlapscope run` measures it"
        where = place_words(report, subject) if len(report.traces) > 1 else ""
        if missing:
            yield place.unknown(f"{where}: {missing}" if where else missing)
        else:
            yield replace(place, value=len(place.findings))


def _stands(finding: Finding, device: Device, floor_pct: float) -> bool:
    """Return whether a finding costs enough without what may be the profiler's."""
    alone, idle_ns = device.alone, round(finding.idle_ns / max(1, finding.steps))
    if alone is None:
        return True
    least_ns = finding.mean_cost_ns - min(alone.high_ns - alone.low_ns, idle_ns)
    return least_ns >= floor_pct / 100 * alone.low_ns


def _found_words(rule: str, found: Sequence[tuple[Finding, str]], floor_pct: float) -> str:
    """Return a sentence about findings with their places, the costliest first."""
    if not found:
        least = f" that costs {show(floor_pct, 'pct')} of the time or more" if floor_pct else ""
        return f"There is no finding of {rule}{least}."
    costliest, where = found[0]
    count_words, largest = "There is 1 finding", ", which"
    if len(found) > 1:
        count_words, largest = f"There are {plural(len(found), 'finding')}", "; the largest"
    a_step = " a step" if costliest.steps else ""
    cost = f"{largest} costs {duration(costliest.mean_cost_ns)}{a_step}" if costliest.cost_ns else ""
    return f"{count_words} of {rule}{cost}{f', on {where}' if where else ''}."
