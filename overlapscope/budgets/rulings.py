"""Rulings on single places, with the reasons for failures; and the verdict on a forbidden rule.

A reason is a cause with its op, call and Python line, and what to change.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import UNSET, Struct
from msgspec.structs import replace

from overlapscope.analysis.average import after_lead_in
from overlapscope.analysis.groups import says_bandwidth
from overlapscope.analysis.results import Device, Evidence
from overlapscope.base.words import bandwidth, clean, duration, plural, size
from overlapscope.budgets.gate import doubt
from overlapscope.budgets.places import JudgedPlace, place_words, subjects
from overlapscope.budgets.quantity import show
from overlapscope.budgets.samples import Measurements, Spent, caused
from overlapscope.budgets.settings import Exemption, Settings
from overlapscope.budgets.verdicts import BudgetVerdict, DeviceVerdict, FailureReason, Level, Status, Subject
from overlapscope.catalog.causes import CAUSES
from overlapscope.catalog.causes import Subject as CauseSubject
from overlapscope.catalog.measures import DIRECTIONS, Blame
from overlapscope.report.model import Report
from overlapscope.rules import RULES
from overlapscope.rules.finding import Finding

# -- Reasons -----------------------------------------------------------------------------------------

MOST = 4
"""Maximum number of reasons to state. The report has the others."""
LEAST_SHARE = 0.02
"""Minimum time of a reason, as a fraction of the longest."""


def reasons_of(report: Report, place: JudgedPlace, now: Spent, before: Spent | None) -> tuple[FailureReason, ...]:
    """Return the reasons at one place, the longest first. Compared with a baseline, only what grew is a reason."""
    if place.trace is None or place.device is None:
        return ()
    at = place.trace.source, place.device.device
    average = place.device.per_step
    # Findings are of the phase that takes most time.
    of_phase = place.budget.phase is None or (average is not None and average.phase == place.budget.phase)
    findings = tuple(finding for finding in report.findings if of_phase and (finding.source, finding.device) == at)
    steps = place.samples.rows if place.budget.sample == "step" else None
    device = after_lead_in(place.device) if steps is None else place.device
    finder = _ReasonFinder(place, device, place.trace.environment.recorder, steps, findings, now, before)
    reasons = [reason for blame in place.budget.what.blames for reason in finder.reasons(blame)]
    if before is not None:
        reasons = [reason for reason in reasons if reason.time_ns > 0]
    reasons.sort(key=lambda reason: (-reason.time_ns, reason.title))
    least = LEAST_SHARE * reasons[0].time_ns if reasons else 0
    return tuple(reason for reason in reasons[:MOST] if reason.time_ns >= least)


def finding_reason(finding: Finding, place: str) -> FailureReason:
    """Return a finding as a reason. Its time is of an average step; `place` is empty if there is only one."""
    where = finding.where
    return FailureReason(
        title=f"{place}: {clean(finding.title, 300)}" if place else clean(finding.title, 300),
        detail=_lines(finding.detail),
        advice=_lines(finding.advice),
        time_ns=finding.mean_cost_ns,
        op=where.op if where else None,
        call=where.call if where else None,
        where=where.line if where else None,
        rule=finding.rule,
    )


def _lines(text: str) -> str:
    return "\n".join(clean(line, 2000) for line in text.split("\n"))


class _ReasonFinder(Struct, frozen=True, eq=False):
    """Search for the reasons at one place."""

    place: JudgedPlace
    device: Device
    recorder: str
    steps: tuple[int, ...] | None
    """Numbers of the judged steps; None if all time after the lead-in is judged."""
    findings: tuple[Finding, ...]
    """Findings of the device."""
    now: Spent
    before: Spent | None
    """Mean times of the baseline; None without comparison."""

    def reasons(self, blame: Blame) -> Iterator[FailureReason]:
        """Yield the reasons of a kind, in no order."""
        match blame:
            case "exposed-copy" | "exposed-comm" | "idle":
                yield from self._causes(blame)
            case "copies":
                yield from self._copies()
            case "kernels" if self.before is not None:
                title, grown_ns = self._took("compute", round(self.now["compute"]), self.before["compute"])
                detail = "`overlapscope diff` of two traces names the kernels."
                yield FailureReason(title=title, detail=detail, time_ns=grown_ns)
            case "kernels":
                yield from self._kernels()

    def _took(self, what: str, each_ns: int, past_ns: float | None) -> tuple[str, int]:
        """Return a title with a length, or with its growth; and the time to rank the reason by."""
        # The budget's value may be a median, and these lengths are means.
        average = " on average" if len(self.place.samples) > 1 else ""
        each = "" if self.place.budget.scope == "window" else f" a step{average}"
        took = f"{what}: {duration(each_ns)}{each}"
        if past_ns is None:
            return took, each_ns
        grown = round(each_ns - past_ns)
        return f"{took}, {duration(grown)} more than in the baseline", grown

    def _causes(self, blame: CauseSubject) -> Iterator[FailureReason]:
        metric = self.place.budget.what
        now = caused(self.now, blame, metric)
        past = None if self.before is None else caused(self.before, blame, metric)
        for cause, mean_ns in now.items():
            each_ns = round(mean_ns)
            if each_ns:
                evidence = self._evidence(blame, cause)
                finding = self._finding(blame, cause, evidence)
                past_ns = None if past is None else past.get(cause, 0.0)
                title, rank_ns = self._took(f"{blame.replace('-', ' ')}, {cause}", each_ns, past_ns)
                # The advice of `exposed-comm` is for the cause that costs most.
                advised = finding is not None and finding.rule != "exposed-comm"
                general = CAUSES[blame].get(cause)
                remedy = general.words.helps(self.recorder)[0] or general.words.meaning if general else ""
                yield FailureReason(
                    title=title,
                    detail=clean(evidence.detail, 500) if evidence else "",
                    advice=_lines(finding.advice) if finding and advised else remedy,
                    cause=cause,
                    time_ns=rank_ns,
                    op=evidence.op if evidence else None,
                    call=evidence.call if evidence else None,
                    where=evidence.where if evidence else None,
                    rule=finding.rule if finding else None,
                )

    def _evidence(self, blame: CauseSubject, cause: str) -> Evidence | None:
        """Return the costliest evidence of a cause in the judged steps."""
        of_cause = {
            evidence: self._total_ns(evidence.time_ns, evidence.by_step.time_ns)
            for evidence in self.device.evidence
            if (evidence.subject, evidence.cause) == (blame, cause)
        }
        return max((evidence for evidence, ns in of_cause.items() if ns), key=of_cause.__getitem__, default=None)

    def _finding(self, blame: CauseSubject, cause: str, evidence: Evidence | None) -> Finding | None:
        """Return a finding of the first of a cause's rules that fired, preferably at the same op."""
        op = evidence.op if evidence else None
        entry = CAUSES[blame].get(cause)
        for rule in entry.explained_by if entry else ():
            fired = [each for each in self.findings if each.rule == rule and each.cost_ns]
            if fired:
                return max(fired, key=lambda each: (each.where is not None and each.where.op == op, each.cost_ns))
        return None

    def _copies(self) -> Iterator[FailureReason]:
        slow = next((each for each in self.findings if each.rule in ("slow-link", "pageable-memory")), None)
        direction = self.place.budget.direction
        # Budgets are about copies between host and device.
        wanted = DIRECTIONS if direction is None else (direction,)
        for group in self.device.copies:
            if group.direction in wanted:
                copies = plural(group.count, "copy")
                rate = f", {bandwidth(group.gb_per_s)} GB/s" if group.gb_per_s and says_bandwidth(group) else ""
                yield FailureReason(
                    title=f"{group.direction} {clean(group.source_kind)} to {clean(group.target_kind)}, stream "
                    f"{group.stream}: {copies}, {size(group.bytes)}{rate}",
                    detail="",
                    advice=_lines(slow.advice) if slow else "",
                    time_ns=self._mean_ns(group.time_ns, group.by_step.time_ns),
                    rule=slow.rule if slow else None,
                )

    def _kernels(self) -> Iterator[FailureReason]:
        if self.place.budget.range is not None:
            # The analysis doesn't count kernels by range.
            return
        for group in self.device.kernels:
            each_ns = self._mean_ns(group.time_ns, group.by_step.time_ns)
            if each_ns and not group.comm:
                title, _ = self._took(f"kernel {clean(group.kernel, 80)}", each_ns, None)
                yield FailureReason(title=title, detail="", time_ns=each_ns, op=group.op, where=group.where)

    def _mean_ns(self, whole_ns: int, by_step_ns: Sequence[int]) -> int:
        """Return the mean time over the judged steps, or the time in the window."""
        return round(self._total_ns(whole_ns, by_step_ns) / max(1, len(self.place.samples)))

    def _total_ns(self, whole_ns: int, by_step_ns: Sequence[int]) -> int:
        return whole_ns if self.steps is None else sum(by_step_ns[number] for number in self.steps)


# -- Rulings ---------------------------------------------------------------------------------------

WORST_FIRST: Final[dict[Status, int]] = {"fail": 0, "unknown": 1, "accepted": 2, "skipped": 3, "pass": 4}


class Ruling(Struct, frozen=True, eq=False, kw_only=True):
    """Judgement of one place; figures are in the metric's unit."""

    subject: Subject
    place: JudgedPlace | None = None
    """Samples that were judged; None for a forbidden rule, which needs none."""
    measured: Measurements | None = None
    """What they were compared with; None without a comparison."""
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

    @property
    def part(self) -> DeviceVerdict:
        """The ruling as a part of its verdict."""
        return DeviceVerdict(
            source=self.subject.source,
            rank=self.subject.rank,
            device=self.subject.device,
            status=self.status,
            value=self.value,
            samples=self.samples,
        )


def counts(status: Status, level: Level, fail_level: Level, *, allow_missing: bool) -> bool:
    """Return whether a verdict can change the outcome of the check."""
    if status in ("unknown", "skipped") and allow_missing:
        return False
    return status in ("fail", "unknown", "skipped") and (level == "error" or fail_level == "warn")


class Exemptions:
    """Exceptions of a check, with a record of those that were needed."""

    def __init__(self, exemptions: Sequence[Exemption], today: datetime.date) -> None:
        self._exemptions = tuple(exemptions)
        self._today = today
        self._met: set[int] = set()
        self._needed: set[int] = set()

    def apply(self, metric: str, budget: str | None, ruling: Ruling) -> Ruling:
        """Return the ruling after exceptions, with a sentence if one matters. Only a failure can be accepted.

        `metric` and `budget` are those of `Exemption.covers`.
        """
        ended = ""
        for number, exemption in enumerate(self._exemptions):
            if not exemption.covers(metric, budget) or not exemption.matches(ruling.subject):
                continue
            self._met.add(number)
            if ruling.status != "fail":
                continue
            self._needed.add(number)
            reason = clean(exemption.reason, 300).rstrip(".")
            if self._today <= exemption.until:
                accepted = f"Accepted until {exemption.until}: {reason}."
                return replace(ruling, status="accepted", exception=accepted)
            ended = f"Its exception ended on {exemption.until}: {reason}."
        return replace(ruling, exception=ended)

    def notes(self) -> Iterator[str]:
        """Yield a sentence about each exception that changed nothing."""
        for number, exemption in enumerate(self._exemptions):
            name = f"{clean(exemption.origin)}: the exception for {clean(exemption.rule or exemption.budget or '', 80)}"
            if number not in self._met:
                yield f"{name} matches nothing that was judged; remove it."
            elif number not in self._needed:
                yield f"{name} is not needed, because nothing fails; remove it."


# -- Forbidden rules -------------------------------------------------------------------------------


def forbidden(rule: str) -> str:
    """Return the name of the budget that forbids a rule."""
    return f"forbid {rule}"


def judge_rule(
    report: Report, rule: str, settings: Settings, absent: Mapping[int, str], exemptions: Exemptions
) -> BudgetVerdict:
    """Return the verdict on a forbidden rule for all traces."""
    rulings = [exemptions.apply(rule, None, ruling) for ruling in _rulings(report, rule, settings.forbid_floor_pct)]
    rulings += [
        Ruling(subject=Subject(rank=rank, scope="window"), status="unknown", sentence=f"rank {rank}: {reason}")
        for rank, reason in absent.items()
    ]
    worst = min(
        rulings,
        key=lambda ruling: (
            WORST_FIRST[ruling.status],
            -max((finding.mean_cost_ns for finding in ruling.findings), default=0),
        ),
    )
    # If the rule fails at one place, the verdict is not about places where its findings are accepted.
    decisive = [ruling for ruling in rulings if worst.status != "fail" or ruling.status == "fail"]
    findings = sorted(
        (finding for ruling in decisive for finding in ruling.findings), key=lambda finding: -finding.mean_cost_ns
    )
    return BudgetVerdict(
        budget=forbidden(rule),
        metric=rule,
        subject=worst.subject,
        status=worst.status,
        level="error",
        value=None if worst.status == "unknown" else len(findings),
        limit=0,
        unit="findings",
        more_is_better=False,
        message=_message(report, rule, worst, findings, settings.forbid_floor_pct),
        parts=tuple(ruling.part for ruling in rulings),
        reasons=tuple(finding_reason(finding, _where(report, finding)) for finding in findings),
        exception=(worst.exception or None) if worst.status in ("accepted", "fail") else None,
        unknown_because=worst.sentence if worst.status == "unknown" else UNSET,
        counts=counts(worst.status, "error", settings.fail_level, allow_missing=settings.allow_missing),
    )


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
