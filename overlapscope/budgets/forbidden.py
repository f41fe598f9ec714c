"""A forbidden rule: whether the report has a finding of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from overlapscope.analysis.results import Device, TraceResult
from overlapscope.budgets.exemptions import Exemptions
from overlapscope.budgets.missing import Absent, doubt
from overlapscope.budgets.quantity import show
from overlapscope.budgets.reasons import of_finding
from overlapscope.budgets.settings import Settings
from overlapscope.budgets.together import WORST_FIRST, counts
from overlapscope.budgets.verdicts import Part, Status, Subject, Verdict
from overlapscope.report import Report
from overlapscope.rules.finding import Finding
from overlapscope.words import plural


def judge_rule(
    report: Report, rule: str, settings: Settings, absent: Sequence[Absent], exemptions: Exemptions
) -> Verdict:
    """The verdict on one rule over all traces."""
    name = f"forbid {rule}"
    judged: list[tuple[Part, tuple[Finding, ...], str]] = []
    for trace, device in _places(report):
        subject = Subject(
            source=trace.source, rank=trace.rank, device=device.device if device else None, scope="window"
        )
        missing = doubt(trace, rests_on_host=True)
        found = () if device is None else _findings(report, trace, device, rule, settings.forbid_floor_pct)
        status: Status = "unknown" if missing else "fail" if found else "pass"
        status, note = exemptions.apply(name, rule, subject, status)
        value = None if missing else len(found)
        judged.append((_part(subject, status, value), found, missing or note))
    judged += [(_part(Subject(rank=a.rank), "unknown", None), (), f"rank {a.rank}: {a.sentence}") for a in absent]
    part, _, note = min(judged, key=lambda row: WORST_FIRST[row[0].status])
    findings = [one for _, found, _ in judged for one in found]
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
        message=_message(rule, part.status, findings, note),
        parts=tuple(row[0] for row in judged),
        reasons=tuple(map(of_finding, findings)),
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
    return tuple(f for f in serious if f.cost_ns >= least)


def _only_informs(rule: str) -> bool:
    from overlapscope.rules import all_rules

    return any(one.id == rule and one.severity == "info" for one in all_rules())


def _message(rule: str, status: Status, findings: Sequence[Finding], note: str) -> str:
    if status == "unknown":
        return f"{rule} cannot be judged: {note}."
    if not findings:
        return f"There is no finding of {rule}."
    worst = max(findings, key=lambda one: one.cost_ns)
    devices = len({(one.source, one.device) for one in findings})
    where = f" on {devices} devices" if devices > 1 else ""
    cost = f", which costs at most {show(worst.cost_ns, 'ns')}" if worst.cost_ns else ""
    said = f"There {'is' if len(findings) == 1 else 'are'} {plural(len(findings), 'finding')} of {rule}{where}{cost}."
    return f"{said} {note}" if note else said
