"""Check of a report: verdicts on all budgets and forbidden rules, and what explains each."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final

from msgspec.structs import replace

from overlapscope.base.words import capital, clean, did_you_mean, duration, listed, plural
from overlapscope.budgets.baseline import Baseline
from overlapscope.budgets.judge import WORST_FIRST, Exemptions, combine, judge, judge_rule, verdict
from overlapscope.budgets.places import JudgedPlace, find_places
from overlapscope.budgets.quantity import show
from overlapscope.budgets.settings import DEFAULT_ORIGIN, Budget, Settings
from overlapscope.budgets.verdicts import BudgetVerdict, CheckResult, Outcome, Status
from overlapscope.compare.doubts import (
    Obstacle,
    absence_notes,
    absent_devices,
    absent_ranks,
    differences,
    doubt,
    fingerprint,
    is_plain,
    mixed,
    mixed_notes,
    other_program,
    program_of,
    refuse_predicted,
)
from overlapscope.errors import UsageError
from overlapscope.report.model import Report, of_program
from overlapscope.report.page import Page
from overlapscope.report.verdict import judge as verdict_on
from overlapscope.rules import RULES
from overlapscope.trace.lost import PARTS_FOR_FIGURES, PARTS_FOR_HOST

ExplainedVerdict = tuple[Budget, BudgetVerdict, Sequence[JudgedPlace]]
"""A budget, a verdict on it, and the places that it combines."""

_DATA_LOST = ("events-readable", "durations", "copy-sizes", "copy-directions", "dropped-ops")
"""Trust checks whose warnings mean that figures may be wrong."""
_MAX_NAMED_BUDGETS = 3


def check(
    report: Report,
    settings: Settings | None = None,
    *,
    baseline: Baseline | None = None,
    today: datetime.date | None = None,
    promises: Sequence[BudgetVerdict] = (),
    promised: str = "",
) -> CheckResult:
    """Judge a report by budgets; without budgets, by its verdict and `DEFAULT_FORBID`.

    With a baseline and without budgets, it is judged by `DEFAULT_RELATIVE`.

    Args:
        baseline: Figures that relative budgets compare with.
        today: The day by which exceptions expire; by default that of this machine's clock.
        promises: Verdicts on a contract, which are added.
        promised: What the contract promises, in a few words.

    Returns:
        The outcome, and the verdict on each budget at each place.

    Raises:
        UsageError: A trace was predicted.
    """
    job = Job(report, settings, baseline, today)
    promises, budgets = [*map(job.exemptions.excepted, promises)], list(job.judge())
    # The worst first.
    ordered = tuple(
        sorted(
            [*promises, *budgets],
            key=lambda verdict: (verdict.status == "pass", not verdict.counts, WORST_FIRST[verdict.status]),
        )
    )
    passed = [f"{plural(len(promises), 'promise')} ({promised})"] if promises else []
    passed += [f"{plural(len(budgets), 'budget')} ({job.words(budgets)})"] if budgets else []
    return CheckResult(
        outcome=_outcome(ordered),
        summary=_summary(ordered, "the baseline" if baseline else "a baseline, because there is none", passed),
        program=_program_words(job.report),
        sources=tuple(trace.source for trace in job.report.traces),
        verdicts=ordered,
        warnings=tuple(job.warnings()),
    )


class Job:
    """A report with everything that it is judged by. Raises UsageError as `check` does."""

    def __init__(
        self, report: Report, settings: Settings | None, baseline: Baseline | None, today: datetime.date | None
    ) -> None:
        refuse_predicted(report)
        recorded = baseline is not None and not is_plain(baseline.environment)
        # A baseline made from a recording must be compared with the recording, not with the plain program.
        self.report = report if recorded else of_program(report)
        """The judged report: that of the plain program if its step time is known (`report.of_program`)."""
        of_host = not report.devices and all(trace.host is not None for trace in report.traces)
        self._settings = (settings or Settings()).completed(with_baseline=baseline is not None, of_host=of_host)
        self._baseline = baseline
        self.exemptions = Exemptions(self._settings.exceptions, today or datetime.datetime.now().astimezone().date())
        self._obstacles: list[Obstacle] = []
        """Reasons why nothing can be compared with the baseline, or not everything."""
        if baseline is not None:
            if not self._settings.other_program:
                self._obstacles += other_program(baseline, program_of(self.report.traces), "the baseline")
            devices = Counter(device.rank for device in baseline.devices)
            for trace in self.report.traces:
                self._obstacles += absent_devices(trace, devices[trace.rank], "the baseline")
        obstacles = {obstacle.metric for obstacle in self._obstacles}
        beside = list(_beside(self.report, baseline, other_program="program" in obstacles, recorded=recorded))
        self._not_comparable = next((reason for reason, _ in beside if reason), "")
        """Reason why nothing is compared with a baseline; empty if something is."""
        self._warnings = [warning for _, warning in beside]
        self._absent = absent_ranks(self.report, baseline.ranks if baseline else (), "the baseline")

    def warnings(self) -> Iterator[str]:
        """Yield the warnings of the check. Call this after `judge`, since exceptions are counted there."""
        if self._baseline is not None or any(budget.relative for budget in self._settings.budgets):
            yield from self._warnings
        yield from map(clean, self.report.notes)
        yield from mixed_notes(self.report)
        yield from absence_notes(self._absent)
        for trace in self.report.traces:
            for trust_check in trace.trust.checks:
                if trust_check.id in _DATA_LOST and trust_check.status != "ok":
                    yield f"{clean(trace.source)}: {clean(trust_check.detail)}"
        yield from self.exemptions.notes()

    def words(self, verdicts: Sequence[BudgetVerdict]) -> str:
        """Return what passed in a few words: `verdict fair, no finding of 21 rules costs 5% of the time`."""
        rules = [verdict for verdict in verdicts if verdict.metric in RULES]
        parts = [f"verdict {verdict.note}" for verdict in verdicts if verdict.metric == "verdict"]
        least = self._settings.forbid_floor_pct
        costs = f" costs {show(least, 'pct')} of the time" if least else ""
        parts += [f"no finding of {plural(len(rules), 'rule')}{costs}"] if rules else []
        others = [verdict for verdict in verdicts if verdict.metric not in RULES and verdict.metric != "verdict"]
        return ", ".join((*parts, *filter(None, [_named(others)])))

    def judge(self) -> Iterator[BudgetVerdict]:
        """Yield every verdict."""
        for obstacle in (*mixed(self.report), *self._obstacles):
            yield obstacle_verdict(obstacle, allowed=self._settings.allow_missing)
        yield from (verdict for _, verdict, _ in self.judge_budgets())
        if self._settings.verdict:
            yield self.exemptions.excepted(_verdict_on_report(self.report))
        for rule in self._settings.forbid:
            yield judge_rule(self.report, rule, self._settings, self._absent, self.exemptions)

    def judge_budgets(self) -> Iterator[ExplainedVerdict]:
        """Yield verdicts on budgets with the places that each combines.

        A budget has a verdict for each range, and for each rank if it asks for that.
        """
        for budget in self._settings.budgets:
            by_scope: dict[str, list[JudgedPlace]] = {}
            for place in find_places(self.report, budget, self._absent):
                if budget.relative and self._not_comparable:
                    sentence = f"{budget.metric} is not compared: {self._not_comparable}"
                    judged = replace(place, status="skipped", sentence=sentence)
                else:
                    judged = judge(budget, place, self._baseline, only=len(self.report.devices) == 1)
                # A default budget is dropped if neither the traces nor the baseline have anything to compare.
                if not (judged.nothing and budget.origin == DEFAULT_ORIGIN):
                    judged = self.exemptions.apply(budget.metric, budget.title, judged)
                    by_scope.setdefault(place.subject.scope, []).append(judged)
            for of_scope in by_scope.values():
                for places in [[place] for place in of_scope] if budget.ranks == "each" else [of_scope]:
                    yield budget, combine(self.report, places, budget, self._settings), places


# -- Comparison with a baseline ----------------------------------------------------------------------


def _beside(
    report: Report, baseline: Baseline | None, *, other_program: bool, recorded: bool
) -> Iterator[tuple[str, str]]:
    """Yield the reasons why nothing is compared with a baseline, the first of which is stated, and a warning for each.

    A reason is empty if there is only a warning. `recorded`: whether the baseline is of a recording.
    """
    if baseline is None:
        yield (
            "there is no baseline",
            "There is no baseline, so budgets on a change are not compared. `overlapscope check TRACE "
            "--write-baseline` writes one.",
        )
        return
    if other_program:
        yield (
            "the baseline is of another program",
            "Nothing is compared with a baseline of another program: write one of this, or pass --other-program.",
        )
    if recorded and of_program(report) is not report:
        yield (
            "",
            "The baseline was made from a recording, so the recorded figures are judged, not those of the program "
            "without the profiler; write the baseline again.",
        )
    here = fingerprint(report)
    elsewhere = ", ".join(
        f"{difference.what} {clean(difference.before, 80)}, here {clean(difference.after, 80)}"
        for difference in differences(baseline.environment, here)
        # Drivers are updated often, and budgets find what an update changes.
        if difference.what != "driver"
    )
    if not recorded and not is_plain(here):
        yield (
            "the baseline is of the program without the profiler",
            "The baseline is of the program without the profiler, whose step time this trace does not have, so "
            "nothing is compared with the baseline. Record with `overlapscope run --plain-steps 10`, or pass the "
            "step time as --plain-step.",
        )
    elif elsewhere:
        why = f"the baseline was made elsewhere ({elsewhere})"
        yield why, f"{capital(why)}, so nothing is compared with it. Run the check there, or write a baseline here."


# -- Verdicts on all traces together -----------------------------------------------------------------


def obstacle_verdict(obstacle: Obstacle, *, allowed: bool) -> BudgetVerdict:
    """Return the verdict that something can't be judged. `allowed`: whether that passes."""
    return verdict(
        JudgedPlace(status="unknown", limit=0),
        budget=obstacle.name,
        metric=obstacle.metric,
        message=obstacle.sentence,
        counts=obstacle.metric == "program" or not allowed,
    )


def _verdict_on_report(report: Report) -> BudgetVerdict:
    """Return the verdict on the report's verdicts, of which the worst decides."""
    verdicts = []
    for section in Page(report).sections():
        judged = verdict_on(section)
        # Its figures may be wrong.
        if lost := doubt(section.trace, PARTS_FOR_FIGURES if section.device is not None else PARTS_FOR_HOST):
            judged = replace(judged, level="unknown", lead=f"Unknown: {lost}.", why="", remedy="")
        verdicts.append(judged)
    worst = min(verdicts, key=lambda verdict: _WORST.index(verdict.level))
    poor = sum(verdict.level == "poor" for verdict in verdicts)
    status: Status = "fail" if poor else "unknown" if worst.level in ("unknown", "unusable") else "pass"
    message = clean((worst.text if len(verdicts) > 1 else worst.answer).replace("\n", " "), 1000)
    ruling = JudgedPlace(status=status, value=poor, limit=0, note=worst.level)
    return verdict(ruling, budget="verdict", metric="verdict", message=message, unit="devices", counts=status != "pass")


_WORST: Final = ("poor", "unusable", "unknown", "fair", "good", "recorded")
"""Levels of verdicts, the worst first."""


def _program_words(report: Report) -> str | None:
    """Return a sentence if the check judges the plain program."""
    plain = next((device.plain for device in report.devices if device.plain is not None), None)
    if plain is None or not is_plain(fingerprint(report)):
        return None
    return (
        f"Figures are of the program without the profiler, where a step takes {plain.words}; in the recording it takes "
        f"{duration(plain.recorded_step_ns)}."
    )


def _outcome(verdicts: tuple[BudgetVerdict, ...]) -> Outcome:
    counted = {verdict.status for verdict in verdicts if verdict.counts}
    if "fail" in counted:
        return "fail"
    if counted & {"unknown", "skipped"} or all(verdict.status == "skipped" for verdict in verdicts):
        return "inconclusive"
    return "pass"


def _summary(verdicts: tuple[BudgetVerdict, ...], baseline: str, passed: Sequence[str]) -> str:
    """Return the outcome of all budgets and promises.

    `baseline` is what changes are compared with, and `passed` is what was judged, in words.

    Example: `2 of 5 budgets failed: efficiency_pct >= 80%, forbid pageable-memory.`
    """
    total = f"{len(verdicts):,} promises and budgets" if len(passed) > 1 else plural(len(verdicts), "budget")
    if all(verdict.status == "skipped" for verdict in verdicts):
        return f"Nothing could be compared with {baseline}." if verdicts else "There was nothing to judge."
    ways: dict[Status, tuple[str, str]] = {
        "accepted": ("", "accepted for now"),
        "fail": ("failed", "with a warning"),
        "unknown": ("could not be judged", "without data, as allowed"),
        "skipped": (f"could not be compared with {baseline}", "not compared"),
    }
    counted, rest = [], []
    for status, (against, though) in ways.items():
        some = [verdict for verdict in verdicts if verdict.status == status]
        rest += [f"{len(some)} {though}"] if some else []
        if named := [verdict for verdict in some if verdict.counts]:
            of = f"{len(named)} of {total}" if len(verdicts) > 1 else "The budget"
            counted.append(f"{of} {against}: {_named(named)}")
    if counted:
        return "; ".join(counted) + "."
    if rest:
        passed_count = sum(verdict.status == "pass" for verdict in verdicts)
        return f"{passed_count} of {total} passed, {', '.join(rest)}."
    return f"Passed: {'; '.join(passed)}."


def _named(verdicts: list[BudgetVerdict]) -> str:
    """Return the names of the first few budgets, each once."""
    return listed(dict.fromkeys(clean(verdict.budget, 80) for verdict in verdicts), _MAX_NAMED_BUDGETS)


# -- Explanations ------------------------------------------------------------------------------------


def explain(
    report: Report,
    settings: Settings | None,
    budget: str,
    *,
    baseline: Baseline | None = None,
    today: datetime.date | None = None,
) -> tuple[Report, list[ExplainedVerdict]]:
    """Return the judged report, and `Job.judge_budgets` of budgets whose name or metric matches a name or pattern.

    Raises:
        UsageError: Nothing matches, or `check` would raise it.
    """
    job = Job(report, settings, baseline, today)
    judged = list(job.judge_budgets())
    names = dict.fromkeys(name for _, verdict, _ in judged for name in (verdict.budget, verdict.metric))
    matching = {name for name in names if name == budget or fnmatchcase(name, budget)}
    wanted = [each for each in judged if not matching.isdisjoint((each[1].budget, each[1].metric))]
    if not wanted:
        listed = ", ".join(dict.fromkeys(clean(verdict.budget, 80) for _, verdict, _ in judged))
        raise UsageError(
            f"there is no budget {budget!r}{did_you_mean(budget, names)}; budgets: {listed or 'none'}. "
            "`overlapscope explain` explains rules."
        )
    return job.report, wanted
