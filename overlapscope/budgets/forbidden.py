"""A forbidden rule: whether the report has a finding of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from overlapscope.analysis.results import Device, TraceResult
from overlapscope.base.words import plural
from overlapscope.budgets.doubt import doubt
from overlapscope.budgets.exemptions import Exemptions
from overlapscope.budgets.missing import Absent
from overlapscope.budgets.quantity import show
from overlapscope.budgets.reasons import of_finding
from overlapscope.budgets.settings import Settings
from overlapscope.budgets.together import WORST_FIRST, counts, place
from overlapscope.budgets.verdicts import Part, Status, Subject, Verdict, cannot_be_judged
from overlapscope.report.model import Report
from overlapscope.rules import RULES
from overlapscope.rules.finding import Finding


def judge_rule(
    report: Report, rule: str, settings: Settings, absent: Sequence[Absent], exemptions: Exemptions
) -> Verdict:
    """The verdict on one rule over all traces."""
    name = f"forbid {rule}"
    rests_on = RULES[rule].rests_on
    judged: list[tuple[Part, tuple[Finding, ...], str]] = []
    for trace, device in _places(report):
        subject = Subject(
            source=trace.source, rank=trace.rank, device=device.device if device else None, scope="window"
        )
        missing = doubt(trace, rests_on)
        if missing and len(report.traces) > 1:
            missing = f"{place(report, subject)}: {missing}"
        found = () if device is None else _findings(report, trace, device, rule, settings.forbid_floor_pct)
        status: Status = "unknown" if missing else "fail" if found else "pass"
        status, note = exemptions.apply(name, rule, subject, status)
        value = None if missing else len(found)
        judged.append((_part(subject, status, value), found, missing or note))
    judged += [(_part(Subject(rank=a.rank), "unknown", None), (), f"rank {a.rank}: {a.sentence}") for a in absent]
    part, _, note = min(judged, key=lambda row: (WORST_FIRST[row[0].status], -_largest(row[1])))
    # What is accepted in one place does not speak where it fails in another.
    chosen = [found for mine, found, _ in judged if part.status != "fail" or mine.status == "fail"]
    findings = sorted((one for found in chosen for one in found), key=lambda one: -one.bound_ns)
    return Verdict(
        budget=name,
        metric=rule,
        subject=Subject(source=part.source, rank=part.rank, device=part.device, scope="window"),
        status=part.status,
        level="error",
        value=None if part.status == "unknown" else len(findings),
        limit=0,
        unit="findings",
        more_is_better=False,
        message=_message(report, rule, part.status, findings, note, settings.forbid_floor_pct),
        parts=tuple(row[0] for row in judged),
        reasons=tuple(of_finding(one, _where(report, one)) for one in findings),
        exception=note if part.status == "accepted" or (part.status == "fail" and note) else None,
        counts=counts(part.status, "error", settings.fail_level, allow_missing=settings.allow_missing),
    )


def _places(report: Report) -> Iterator[tuple[TraceResult, Device | None]]:
    for trace in report.traces:
        for device in trace.devices or (None,):
            yield trace, device


def _part(subject: Subject, status: Status, value: float | None) -> Part:
    return Part(source=subject.source, rank=subject.rank, device=subject.device, status=status, value=value, samples=0)


def _findings(report: Report, trace: TraceResult, device: Device, rule: str, floor_pct: float) -> tuple[Finding, ...]:
    """Those of one device that cost enough. Information is none, but of a rule that gives nothing else."""
    mine = [f for f in report.findings if (f.rule, f.source, f.device) == (rule, trace.source, device.device)]
    least = floor_pct / 100 * (device.judged.span_ns if device.judged else 0)
    serious = [f for f in mine if f.severity != "info" or _only_informs(rule)]
    return tuple(f for f in serious if f.bound_ns >= least)


def _only_informs(rule: str) -> bool:
    return rule in RULES and RULES[rule].severity == "info"


def _largest(findings: Sequence[Finding]) -> int:
    return max((one.bound_ns for one in findings), default=0)


def _where(report: Report, finding: Finding) -> str:
    """`rank 1, device 0`; empty where there is one device in all."""
    if len(report.devices) < 2:
        return ""
    return place(report, Subject(source=finding.source, rank=finding.rank, device=finding.device, scope="window"))


def _message(
    report: Report, rule: str, status: Status, findings: Sequence[Finding], note: str, floor_pct: float
) -> str:
    """`findings` are sorted, the costliest first."""
    if status == "unknown":
        return f"{cannot_be_judged(rule)}{note}."
    if not findings:
        least = f" that costs {show(floor_pct, 'pct')} of the time or more" if floor_pct else ""
        return f"There is no finding of {rule}{least}."
    worst, where = findings[0], _where(report, findings[0])
    on = f", on {where}" if where else ""
    if len(findings) == 1:
        cost = f", which costs at most {show(worst.bound_ns, 'ns')}" if worst.bound_ns else ""
        said = f"There is 1 finding of {rule}{cost}{on}."
    else:
        cost = f"; the largest costs at most {show(worst.bound_ns, 'ns')}" if worst.bound_ns else ""
        said = f"There are {plural(len(findings), 'finding')} of {rule}{cost}{on}."
    return f"{said} {note}" if note else said
