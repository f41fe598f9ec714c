"""All there is to know about one budget: how its figure comes about, where its limit is from, every value behind it."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from fnmatch import fnmatchcase

from overlapscope.base.words import clean, did_you_mean, plural
from overlapscope.budgets.baseline import Baseline
from overlapscope.budgets.check import Job, Ruling
from overlapscope.budgets.judge import Judged, is_relative
from overlapscope.budgets.quantity import show
from overlapscope.budgets.samples import Series, series
from overlapscope.budgets.settings import DEFAULT_FLOOR_PCT, Budget, Settings
from overlapscope.budgets.together import Row, place
from overlapscope.budgets.verdicts import Unit, Verdict
from overlapscope.errors import UsageError
from overlapscope.report.model import Report
from overlapscope.rules import RULES


@dataclass(frozen=True, slots=True)
class Values:
    """What one place had."""

    place: str
    """`rank 3, device 1`; empty where there is only one."""
    judged: Judged
    unit: Unit
    samples: Series
    left_out: int
    """Steps that were recorded and not judged: cut, warm-up, or skipped."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One verdict, and where it comes from."""

    verdict: Verdict
    formula: str
    limit: str
    """Where the limit was written, or why it holds."""
    way: str
    """How the values are put together."""
    values: tuple[Values, ...]


def explain(
    report: Report,
    settings: Settings | None,
    budget: str,
    *,
    baseline: Baseline | None = None,
    today: datetime.date | None = None,
) -> tuple[Explanation, ...]:
    """The explanations of all verdicts whose budget, metric or rule is the one asked for; patterns are understood.

    Raises UsageError where there is none, and as `check` does.
    """
    job = Job(report, settings, baseline, today)
    report, rulings = job.report, list(job.judge())
    known = dict.fromkeys(name for one in rulings for name in (one.verdict.budget, one.verdict.metric))
    wanted = {name for name in known if name == budget or fnmatchcase(name, budget)}
    if not wanted:
        listed = ", ".join(clean(name, 80) for name in dict.fromkeys(one.verdict.budget for one in rulings))
        raise UsageError(f"there is no budget {budget!r}{did_you_mean(budget, known)}; budgets: {listed or 'none'}.")
    by_default = not (settings or Settings()).forbid
    return tuple(
        _explained(report, one, by_default=by_default)
        for one in rulings
        if wanted & {one.verdict.budget, one.verdict.metric}
    )


def _explained(report: Report, ruling: Ruling, *, by_default: bool) -> Explanation:
    verdict, budget = ruling.verdict, ruling.budget
    if budget is None:
        rule = RULES.get(verdict.metric)
        if rule is None:
            formula = "the GPU, software and profiler of the baseline and of the traces are the same"
            if verdict.metric == "job":
                formula = "the traces state one number of ranks, and were recorded within ten minutes of one another"
            return Explanation(verdict, formula, "no difference is allowed", "", ())
        return Explanation(verdict, rule.summary.rstrip("."), *_of_rule(report, verdict, by_default=by_default), ())
    return Explanation(
        verdict=verdict,
        formula=budget.what.formula,
        limit=budget.origin,
        way=_way(budget, ruling.limit),
        values=tuple(_values(report, budget, row) for row in ruling.rows),
    )


def _of_rule(report: Report, verdict: Verdict, *, by_default: bool) -> tuple[str, str]:
    """What a forbidden rule allows, and how it is judged."""
    allowed = "no finding is allowed"
    if by_default:
        least = show(DEFAULT_FLOOR_PCT, "pct")
        allowed = f"the default: findings that cost less than {least} of the time are let pass; --forbid allows none"
    way = "over all ranks and devices at once"
    if verdict.value is None:
        return allowed, way
    every = sum(one.rule == verdict.metric for one in report.findings)
    passed = every - len(verdict.reasons)
    if passed > 0:
        way += f"; {passed} of {plural(every, 'finding')} {'is' if passed == 1 else 'are'} let pass"
    return allowed, way


def _way(budget: Budget, limit: str) -> str:
    """`the median of the steps, of the worst rank and device`."""
    if budget.scope == "window" and budget.where.range is None:
        parts = ["the whole window behind the lead-in"]
    else:
        what = "occurrences of the range" if budget.where.range is not None else "steps"
        parts = [f"{'the ' if budget.aggregate[0] != 'p' else ''}{budget.aggregate} of the {what}"]
    parts.append(
        {"worst": "of the worst rank and device", "median": "the median of the ranks and devices"}.get(
            budget.ranks, "each rank and device by itself"
        )
    )
    if budget.skip_steps:
        parts.append(f"without the first {plural(budget.skip_steps, 'step')}")
    if is_relative(limit):
        parts.append("failed only where the change exceeds the limit and the noise floor and is hardly chance")
    return ", ".join(parts)


def _values(report: Report, budget: Budget, row: Row) -> Values:
    piece = row.piece
    by_steps = budget.scope == "steps" and budget.where.range is None and piece.device is not None
    return Values(
        place=place(report, piece.subject),
        judged=row.judged,
        unit=budget.what.unit,
        samples=series(piece.samples, budget.what, budget.direction),
        left_out=len(piece.device.steps) - len(piece.samples) if by_steps and piece.device else 0,
    )
