"""A report and settings -> verdicts."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from overlapscope.analysis.jobs import mixture
from overlapscope.base.words import clean, listed, plural
from overlapscope.budgets import pieces
from overlapscope.budgets.baseline import Baseline
from overlapscope.budgets.doubt import refuse_predicted
from overlapscope.budgets.exemptions import Exemptions
from overlapscope.budgets.forbidden import judge_rule
from overlapscope.budgets.judge import Judged, is_relative, judge
from overlapscope.budgets.missing import absence_notes, absent_ranks, mixed_notes
from overlapscope.budgets.pieces import Piece
from overlapscope.budgets.quantity import show
from overlapscope.budgets.settings import DEFAULT_ORIGIN, LIMITS, Budget, Settings
from overlapscope.budgets.together import WORST_FIRST, Row, combine
from overlapscope.budgets.verdicts import CheckResult, Outcome, Subject, Verdict
from overlapscope.compare import environment
from overlapscope.errors import UsageError
from overlapscope.report.model import Report, of_program

_DATA_LOST = ("events-readable", "durations", "copy-sizes", "dropped-ops")
"""Trust checks whose warning means that figures may be off."""
_NAMED = 3


def check(
    report: Report,
    settings: Settings | None = None,
    *,
    baseline: Baseline | None = None,
    today: datetime.date | None = None,
) -> CheckResult:
    """Judge a report by budgets; without any by `DEFAULT_FORBID`, or against the baseline by `DEFAULT_RELATIVE`.

    `today` decides whether an exception still holds; by default it is what this machine's clock says.

    Raises UsageError where a budget needs a baseline and none is given, and where a trace was predicted, unless the
    settings allow it.
    """
    job = Job(report, settings, baseline, today)
    verdicts = [one.verdict for one in job.judge()]
    ordered = tuple(sorted(verdicts, key=lambda one: (one.status == "pass", not one.counts, WORST_FIRST[one.status])))
    return CheckResult(
        outcome=(outcome := _outcome(ordered)),
        summary=_summary(ordered, outcome),
        program=_program_words(job.report),
        sources=tuple(trace.source for trace in job.report.traces),
        verdicts=ordered,
        warnings=tuple(job.warnings()),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Ruling:
    """A verdict, and the budget at its places that it was combined of; none for a rule or the environment."""

    verdict: Verdict
    budget: Budget | None = None
    limit: str = ""
    rows: tuple[Row, ...] = ()


class Job:
    """One report, and what it is judged by. Raises UsageError as `check` does."""

    def __init__(
        self, report: Report, settings: Settings | None, baseline: Baseline | None, today: datetime.date | None
    ) -> None:
        if settings is None or not settings.allow_predicted:
            refuse_predicted(report)
        spoken = of_program(report)
        recorded = baseline is not None and not environment.is_plain(baseline.environment)
        self._recorded_alone = recorded and spoken is not report
        # Like is compared with like: a baseline of a recording judges the recording.
        report = report if recorded else spoken
        self._report = report
        self._settings = (settings or Settings()).completed(with_baseline=baseline is not None)
        self._baseline = baseline
        self._exemptions = Exemptions(self._settings.exceptions, today or datetime.datetime.now().astimezone().date())
        for budget in self._settings.budgets:
            if baseline is None and any(map(is_relative, budget.limits)):
                raise UsageError(
                    f"{budget.origin or budget.metric}: a change needs something to compare with; give "
                    "--baseline FILE, which `overlapscope baseline write` makes."
                )
        here = environment.fingerprint(report)
        unlike = environment.differences(baseline.environment, here) if baseline else ()
        # Drivers are renewed under a program all the time; what they change is for the budgets to find.
        self._differences = tuple(one for one in unlike if one.what != "driver")
        self._unknown_here = (
            baseline is not None and environment.is_plain(baseline.environment) and not environment.is_plain(here)
        )
        self._absent = absent_ranks(report, baseline)

    @property
    def report(self) -> Report:
        """What is judged: of the plain program where its step is known (`report.of_program`)."""
        return self._report

    def warnings(self) -> Iterator[str]:
        """What has to be said beside the verdicts, once all are made."""
        if self._baseline is not None and environment.is_predicted(self._baseline.environment):
            yield "The baseline is of a predicted timeline, not of a recording."
        if self._recorded_alone:
            yield (
                "The baseline is of a recording, so this recording is judged, not the plain program; write the "
                "baseline again."
            )
        if self._unknown_here:
            yield (
                "The baseline is of the plain program, and what a step takes here while nothing is recorded is not "
                "known, so nothing is compared with it. Record with plain steps (`overlapscope run --plain-steps 10`), "
                "or tell the length with --plain-step."
            )
        elif self._differences:
            yield (
                f"The baseline was made elsewhere ({self._elsewhere()}), so nothing is compared with it. Check where "
                "it was made, or write a baseline for here."
            )
        yield from map(clean, self._report.notes)
        yield from mixed_notes(self._report)
        yield from absence_notes(self._absent)
        for trace in self._report.traces:
            for one in trace.trust.checks:
                if one.id in _DATA_LOST and one.status != "ok":
                    yield f"{clean(trace.source)}: {clean(one.detail)}"
        yield from self._exemptions.notes()

    def _elsewhere(self) -> str:
        return ", ".join(f"{d.what} {clean(d.before, 80)}, here {clean(d.after, 80)}" for d in self._differences)

    def judge(self) -> Iterator[Ruling]:
        """Every verdict."""
        if self._settings.strict_env and self._baseline is not None:
            yield Ruling(self._environment())
        if unlike := mixture(self._report.traces):
            yield Ruling(self._of_one_job(unlike))
        for budget, limit, rows in self._rows():
            verdict = combine(
                self._report, budget, limit, rows, fail_level=self._settings.fail_level, baseline=self._baseline
            )
            yield Ruling(verdict, budget, limit, tuple(rows))
        for rule in self._settings.forbid:
            yield Ruling(judge_rule(self._report, rule, self._settings, self._absent, self._exemptions))

    def _environment(self) -> Verdict:
        differ = f"The baseline was made elsewhere: {self._elsewhere()}." if self._differences else None
        return Verdict(
            budget="environment",
            metric="environment",
            subject=Subject(scope="window"),
            status="fail" if differ else "pass",
            level="error",
            value=len(self._differences),
            limit=0,
            unit="differences",
            more_is_better=False,
            message=differ or "This was made where the baseline was made.",
            counts=bool(differ),
        )

    def _of_one_job(self, unlike: Sequence[str]) -> Verdict:
        return Verdict(
            budget="traces of one job",
            metric="job",
            subject=Subject(scope="window"),
            status="unknown",
            level="error",
            value=None,
            limit=0,
            unit="differences",
            more_is_better=False,
            message=f"{' '.join(unlike)} Name the traces of one job, or check each job by itself.",
            counts=not self._settings.allow_missing,
        )

    def _rows(self) -> Iterator[tuple[Budget, str, list[Row]]]:
        """A budget as it holds at some places, one of its limits, and the places; several where overrides or ranges set
        places apart."""
        for budget in self._settings.budgets:
            changed = [one.changes.get(budget.metric, {}) for one in self._settings.overrides]
            for limit in LIMITS:
                if limit in budget.limits or any(limit in changes for changes in changed):
                    yield from ((resolved, limit, rows) for resolved, rows in self._limited(budget, limit))

    def _limited(self, budget: Budget, limit: str) -> Iterator[tuple[Budget, list[Row]]]:
        overrides = [one.only(limit) for one in self._settings.overrides]
        groups: dict[tuple[Budget, str], list[Piece]] = {}
        for piece in pieces.find(self._report, budget.only(limit), overrides, self._absent):
            groups.setdefault((piece.budget, piece.subject.scope), []).append(piece)
        for (resolved, _), mine in groups.items():
            # An override may set a limit for some places alone.
            rows = self._judged(resolved, limit, mine) if limit in resolved.limits else []
            if resolved.ranks == "each":
                yield from ((resolved, [row]) for row in rows)
            elif rows:
                yield resolved, rows

    def _judged(self, budget: Budget, limit: str, mine: list[Piece]) -> list[Row]:
        rows = []
        for piece in mine:
            one = self._one(budget, limit, piece)
            # Of what is compared by default, nothing is missing that the baseline does not have either.
            if not (one.nothing and budget.origin == DEFAULT_ORIGIN):
                applied = self._exemptions.apply(budget.title(limit), budget.metric, piece.subject, one.status)
                rows.append(Row(piece, replace(one, status=applied[0]), applied[1]))
        return rows

    def _one(self, budget: Budget, limit: str, piece: Piece) -> Judged:
        if is_relative(limit) and self._differences:
            why = "is of the plain program" if self._unknown_here else f"was made elsewhere ({self._elsewhere()})"
            return Judged(status="skipped", sentence=f"{budget.metric} is not compared: the baseline {why}")
        only = len(self._report.devices) == 1
        return judge(budget, limit, piece, self._baseline, only=only)


def _program_words(report: Report) -> str | None:
    """That the plain program is judged, or a prediction, where it is."""
    predicted = [clean(trace.source, 200) for trace in report.traces if trace.predicted_by is not None]
    if predicted:
        return f"What is judged was predicted by `overlapscope whatif`, and not recorded: {', '.join(predicted)}."
    plain = next((one.plain for one in report.devices if one.plain is not None), None)
    if plain is None or not environment.is_plain(environment.fingerprint(report)):
        return None
    return (
        f"The plain program is judged: a step takes {show(plain.step_ns, 'ns')} while nothing is recorded "
        f"({plain.origin}), and {show(plain.recorded_step_ns, 'ns')} in the recording."
    )


def _outcome(verdicts: tuple[Verdict, ...]) -> Outcome:
    if any(one.status == "fail" and one.counts for one in verdicts):
        return "fail"
    if any(one.status == "unknown" and one.counts for one in verdicts):
        return "inconclusive"
    return "inconclusive" if all(one.status == "skipped" for one in verdicts) else "pass"


def _summary(verdicts: tuple[Verdict, ...], outcome: Outcome) -> str:
    """`2 of 5 budgets failed: efficiency_pct >= 80%, forbid pageable-copy.`"""
    total = plural(len(verdicts), "budget")
    parts = [
        f"{len(mine)} of {total} {words}: {_named(mine)}"
        for words, mine in (
            ("failed", [one for one in verdicts if one.status == "fail" and one.counts]),
            ("could not be judged", [one for one in verdicts if one.status == "unknown" and one.counts]),
        )
        if mine
    ]
    if parts:
        return "; ".join(parts) + "."
    if outcome == "inconclusive":
        return "Nothing could be compared with the baseline." if verdicts else "There was nothing to judge."
    rest = [
        f"{len(mine)} {words}"
        for words, mine in (
            ("accepted for now", [one for one in verdicts if one.status == "accepted"]),
            ("only warned of", [one for one in verdicts if one.status == "fail"]),
            ("without data, as allowed", [one for one in verdicts if one.status == "unknown"]),
            ("not compared", [one for one in verdicts if one.status == "skipped"]),
        )
        if mine
    ]
    kept = sum(one.status == "pass" for one in verdicts)
    all_kept = f"All {total} kept." if len(verdicts) > 1 else "The budget is kept."
    return f"{kept} of {total} kept, {', '.join(rest)}." if rest else all_kept


def _named(verdicts: list[Verdict]) -> str:
    """The first few, each once."""
    return listed(dict.fromkeys(clean(one.budget, 80) for one in verdicts), _NAMED)
