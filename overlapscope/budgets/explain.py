"""Explanation of a budget: the computation of its value, and the origin of its limit."""

from __future__ import annotations

import datetime
from fnmatch import fnmatchcase

from msgspec import Struct

from overlapscope.base.words import clean, did_you_mean, plural
from overlapscope.budgets.baseline import Baseline
from overlapscope.budgets.check import Job, Judgement
from overlapscope.budgets.places import place_words
from overlapscope.budgets.quantity import show
from overlapscope.budgets.rulings import Ruling
from overlapscope.budgets.settings import DEFAULT_FLOOR_PCT, Budget, Settings
from overlapscope.budgets.verdicts import BudgetVerdict
from overlapscope.errors import UsageError
from overlapscope.report.model import Report
from overlapscope.rules import RULES
from overlapscope.rules.explained import explanation


class Explanation(Struct, frozen=True):
    """A verdict and how it came about."""

    verdict: BudgetVerdict
    meaning: str
    limit: str
    """Origin of the limit: a place in a file, or a default."""
    way: str
    """Description of how values are aggregated."""
    rulings: tuple[tuple[str, Ruling], ...] = ()
    """Rulings with the names of their places: `rank 3, device 1`, or an empty name if there is a single place."""


def explain(
    report: Report,
    settings: Settings | None,
    budget: str,
    *,
    baseline: Baseline | None = None,
    today: datetime.date | None = None,
) -> tuple[Explanation, ...]:
    """Explain all verdicts whose budget, metric or rule matches a name or pattern.

    Returns:
        One explanation for each verdict.

    Raises:
        UsageError: Nothing matches, or `check` would raise it.
    """
    job = Job(report, settings, baseline, today)
    judged = list(job.judge())
    names = dict.fromkeys(name for ruled in judged for name in (ruled.verdict.budget, ruled.verdict.metric))
    wanted = [
        ruled
        for ruled in judged
        if any(name == budget or fnmatchcase(name, budget) for name in (ruled.verdict.budget, ruled.verdict.metric))
    ]
    if not wanted:
        listed = ", ".join(clean(name, 80) for name in dict.fromkeys(ruled.verdict.budget for ruled in judged))
        raise UsageError(f"there is no budget {budget!r}{did_you_mean(budget, names)}; budgets: {listed or 'none'}.")
    by_default = not (settings or Settings()).forbid
    return tuple(_explained(job.report, ruled, by_default=by_default) for ruled in wanted)


def _explained(report: Report, judged: Judgement, *, by_default: bool) -> Explanation:
    verdict, budget = judged.verdict, judged.budget
    if budget is not None:
        rulings = tuple((place_words(report, ruling.subject), ruling) for ruling in judged.rulings)
        return Explanation(verdict, budget.what.meaning, budget.origin, _way(budget), rulings)
    if verdict.metric in RULES:
        summary = explanation(verdict.metric).summary.rstrip(".")
        return Explanation(verdict, summary, *_of_rule(report, verdict, by_default=by_default))
    meaning = {
        "environment": "the GPU, software and profiler of the baseline and of the traces are the same",
        "program": "the baseline and the traces have most kernels in common, or nearly all families of kernels, or "
        "many kernels if their script has the same name",
        "verdict": "the verdict of the report on each device is not poor",
        "devices": "as many devices worked as in the baseline",
        "job": "the traces state the same number of ranks, each is of another rank, and they were recorded within ten "
        "minutes of each other",
    }
    return Explanation(verdict, meaning[verdict.metric], "no difference is allowed", "")


def _of_rule(report: Report, verdict: BudgetVerdict, *, by_default: bool) -> tuple[str, str]:
    """Return the limit of a forbidden rule and how it is judged."""
    allowed = "no finding is allowed"
    if by_default:
        least = show(DEFAULT_FLOOR_PCT, "pct")
        allowed = f"the default: findings that cost less than {least} of the time pass; --forbid allows none"
    way = "over all ranks and devices at once"
    count = sum(finding.rule == verdict.metric for finding in report.findings)
    passed = count - len(verdict.reasons)
    if passed > 0 and verdict.value is not None:
        way += f"; {passed} of {plural(count, 'finding')} {'passes' if passed == 1 else 'pass'}"
    return allowed, way


def _way(budget: Budget) -> str:
    """Return `the median of the steps, of the worst rank and device`."""
    if budget.sample == "window":
        parts = ["the whole window after the lead-in"]
    else:
        samples = "occurrences of the range" if budget.sample == "occurrence" else "steps"
        parts = [f"{'the ' if budget.aggregate[0] != 'p' else ''}{budget.aggregate} of the {samples}"]
    ranks = {"worst": "of the worst rank and device", "median": "the median of the ranks and devices"}
    parts.append(ranks.get(budget.ranks, "each rank and device separately"))
    if budget.skip_steps:
        parts.append(f"without the first {plural(budget.skip_steps, 'step')}")
    if budget.relative:
        parts.append("it fails only if the change exceeds the limit and the noise floor, and is unlikely to be chance")
    return ", ".join(parts)
