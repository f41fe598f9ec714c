"""Rulings on single places, and the verdict that combines them; the verdict on a forbidden rule."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import UNSET, Struct
from msgspec.structs import replace

from overlapscope.analysis.results import Device
from overlapscope.base.words import clean, duration, plural
from overlapscope.budgets.gate import doubt
from overlapscope.budgets.places import JudgedPlace, place_words, subjects
from overlapscope.budgets.quantity import show
from overlapscope.budgets.reasons import finding_reason
from overlapscope.budgets.samples import MetricSamples
from overlapscope.budgets.settings import Exemption, Settings
from overlapscope.budgets.verdicts import BudgetVerdict, DeviceVerdict, Level, Status, Subject
from overlapscope.report.model import Report
from overlapscope.rules import RULES
from overlapscope.rules.finding import Finding

WORST_FIRST: Final[dict[Status, int]] = {"fail": 0, "unknown": 1, "accepted": 2, "skipped": 3, "pass": 4}
ALL_TRACES: Final = Subject(scope="window")
"""Subject of a verdict on all traces together."""


class Ruling(Struct, frozen=True, eq=False, kw_only=True):
    """Judgement of one place; figures are in the metric's unit."""

    subject: Subject = ALL_TRACES
    place: JudgedPlace | None = None
    """Samples that were judged; None for anything but a budget."""
    before: MetricSamples | None = None
    """The baseline's samples that they were compared with; None without a comparison."""
    status: Status
    value: float | None = None
    samples: int = 0
    """Number of samples that have a value. A percentage of nothing has none."""
    limit: float | None = None
    baseline: float | None = None
    low: float | None = None
    high: float | None = None
    sentence: str = ""
    """The result without its place and full stop: `step_time is 3.4 ms, but at most 3 ms is allowed`."""
    note: str = ""
    """Reason why a change beyond the allowed percentage passes: `18% more, within noise`."""
    nothing: bool = False
    """True if both sides of a comparison have nothing to measure."""
    exception: str = ""
    """Sentence about the exception that applies, or that has ended."""
    findings: tuple[Finding, ...] = ()
    """Findings of a forbidden rule."""


def verdict(decisive: Ruling, rulings: Sequence[Ruling] = (), **stated: Any) -> BudgetVerdict:
    """Return the verdict of the ruling that decides over all.

    `stated` are fields of the verdict that rulings don't have. By default, it is an error that counts differences.
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
        samples=decisive.samples,
        parts=tuple(map(_part, rulings)),
        note=decisive.note or None,
        exception=decisive.exception or None,
        **others,
    )


def _part(ruling: Ruling) -> DeviceVerdict:
    on = ruling.subject
    status, value, samples = ruling.status, ruling.value, ruling.samples
    return DeviceVerdict(source=on.source, rank=on.rank, device=on.device, status=status, value=value, samples=samples)


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

    def apply(self, metric: str, budget: str | None, ruling: Ruling) -> Ruling:
        """Return the ruling after exceptions, with a sentence if one matters. Only a failure can be accepted.

        `metric` and `budget` are those of `Exemption.covers`.
        """
        ended = ""
        for number, exemption in enumerate(self._exemptions):
            if not exemption.covers(metric, budget) or not exemption.matches(ruling.subject):
                continue
            if ruling.status != "fail":
                self._useless[number] = self._useless[number] and "is not needed, because nothing fails"
                continue
            self._useless[number] = ""
            reason = clean(exemption.reason, 300).rstrip(".")
            if self._today <= exemption.until:
                accepted = f"Accepted until {exemption.until}: {reason}."
                return replace(ruling, status="accepted", exception=accepted)
            ended = f"Its exception ended on {exemption.until}: {reason}."
        return replace(ruling, exception=ended)

    def notes(self) -> Iterator[str]:
        """Yield a sentence about each exception that changed nothing."""
        for exemption, useless in zip(self._exemptions, self._useless, strict=True):
            if useless:
                name = clean(exemption.rule or exemption.budget or "", 80)
                yield f"{clean(exemption.origin)}: the exception for {name} {useless}; remove it."


# -- Forbidden rules -------------------------------------------------------------------------------


def judge_rule(
    report: Report, rule: str, settings: Settings, absent: Mapping[int, str], exemptions: Exemptions
) -> BudgetVerdict:
    """Return the verdict on a forbidden rule for all traces."""
    floor_pct = settings.forbid_floor_pct
    rulings = [exemptions.apply(rule, None, ruling) for ruling in _rulings(report, rule, floor_pct)]
    rulings += [
        Ruling(subject=Subject(rank=rank, scope="window"), status="unknown", sentence=f"rank {rank}: {reason}")
        for rank, reason in absent.items()
    ]
    worst = min(
        rulings, key=lambda ruling: (WORST_FIRST[ruling.status], -max(map(_mean_ns, ruling.findings), default=0))
    )
    # If the rule fails at one place, the verdict is not about places where its findings are accepted.
    decisive = [ruling for ruling in rulings if worst.status != "fail" or ruling.status == "fail"]
    findings = sorted((finding for ruling in decisive for finding in ruling.findings), key=_mean_ns, reverse=True)
    unknown = worst.status == "unknown"
    return verdict(
        replace(worst, value=None if unknown else len(findings), limit=0),
        rulings,
        budget=f"forbid {rule}",
        metric=rule,
        unit="findings",
        message=_message(report, rule, worst, findings, floor_pct),
        reasons=tuple(finding_reason(finding, _where(report, finding)) for finding in findings),
        unknown_because=worst.sentence if unknown else UNSET,
        counts=can_count(worst.status, "error", settings, allow_missing=settings.allow_missing),
    )


def _mean_ns(finding: Finding) -> int:
    return finding.mean_cost_ns


def _rulings(report: Report, rule: str, floor_pct: float) -> list[Ruling]:
    """Return a ruling on each device."""
    rests_on = RULES[rule].rests_on
    rulings = []
    for subject, trace, device in subjects(report, scope="window"):
        where = place_words(report, subject) if len(report.traces) > 1 else ""
        findings = () if device is None else _findings(report, trace.source, device, rule, floor_pct)
        missing = doubt(trace, rests_on)
        if device is not None and any(_stands(each, device, floor_pct) for each in findings):
            # What is lost may hide more, but takes nothing back.
            missing = None
        elif findings and not missing:
            missing = "how much of the cost is the profiler's is not known; `overlapscope run` measures it"
        status: Status = "unknown" if missing else "fail" if findings else "pass"
        rulings.append(
            Ruling(
                subject=subject,
                status=status,
                value=None if missing else len(findings),
                sentence=f"{where}: {missing}" if missing and where else missing or "",
                findings=findings,
            )
        )
    return rulings


def _findings(report: Report, source: str, device: Device, rule: str, floor_pct: float) -> tuple[Finding, ...]:
    """Return a device's findings that cost enough. Good news counts only if the rule has nothing else."""
    least = floor_pct / 100 * (device.per_step or device.judged or device).span_ns
    only_informs = RULES[rule].severity == "info"
    return tuple(
        finding
        for finding in report.findings
        if (finding.rule, finding.source, finding.device) == (rule, source, device.device)
        and (finding.cost_ns or only_informs)
        and finding.mean_cost_ns >= least
    )


def _stands(finding: Finding, device: Device, floor_pct: float) -> bool:
    """Return whether a finding costs enough without what may be the profiler's."""
    alone, idle_ns = device.alone, round(finding.idle_ns / max(1, finding.steps))
    if alone is None:
        return True
    least_ns = finding.mean_cost_ns - min(alone.high_ns - alone.low_ns, idle_ns)
    return least_ns >= floor_pct / 100 * alone.low_ns


def _where(report: Report, finding: Finding) -> str:
    """Return `rank 1, device 0`; empty if the report has a single device."""
    if len(report.devices) < 2:
        return ""
    return place_words(report, Subject(source=finding.source, rank=finding.rank, device=finding.device, scope="window"))


def _message(report: Report, rule: str, worst: Ruling, findings: Sequence[Finding], floor_pct: float) -> str:
    """Return the verdict as a sentence. `findings` are sorted, the costliest first."""
    if worst.status == "unknown":
        return f"{rule} cannot be judged: {worst.sentence}."
    if not findings:
        least = f" that costs {show(floor_pct, 'pct')} of the time or more" if floor_pct else ""
        return f"There is no finding of {rule}{least}."
    costliest, where = findings[0], _where(report, findings[0])
    on = f", on {where}" if where else ""
    there_are, largest = "There is 1 finding", ", which"
    if len(findings) > 1:
        there_are, largest = f"There are {plural(len(findings), 'finding')}", "; the largest"
    a_step = " a step" if costliest.steps else ""
    cost = f"{largest} costs {duration(costliest.mean_cost_ns)}{a_step}" if costliest.cost_ns else ""
    return f"{there_are} of {rule}{cost}{on}. {worst.exception}".rstrip()
