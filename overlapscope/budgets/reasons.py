"""Reasons for failures: a cause with its op, call and Python line, and what to change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from overlapscope.analysis.average import after_lead_in
from overlapscope.analysis.results import Device, Evidence, TraceResult
from overlapscope.base.words import bandwidth, clean, clean_lines, duration, plural, size
from overlapscope.budgets.places import JudgedPlace, blamed, spent
from overlapscope.budgets.settings import Budget
from overlapscope.budgets.verdicts import FailureReason
from overlapscope.catalog.causes import CAUSES, Subject
from overlapscope.catalog.measures import DIRECTIONS, Blame
from overlapscope.report.model import Report
from overlapscope.rules.finding import Finding

MAX_REASONS = 4
"""Maximum number of reasons to state. The report has the others."""
MIN_SHARE = 0.02
"""Minimum time of a reason, as a fraction of the longest."""


def reasons_of(report: Report, budget: Budget, place: JudgedPlace) -> tuple[FailureReason, ...]:
    """Return the reasons at one place, the longest first. Compared with a baseline, only what grew is a reason."""
    if place.trace is None or place.device is None:
        return ()
    finder = _ReasonFinder(report, budget, place, place.trace, place.device)
    reasons = [reason for blame in budget.measure.blames for reason in finder.reasons(blame)]
    if place.before is not None:
        reasons = [reason for reason in reasons if reason.time_ns > 0]
    reasons.sort(key=lambda reason: (-reason.time_ns, reason.title))
    least = MIN_SHARE * reasons[0].time_ns if reasons else 0
    return tuple(reason for reason in reasons[:MAX_REASONS] if reason.time_ns >= least)


def finding_reason(finding: Finding, place: str) -> FailureReason:
    """Return a finding as a reason. Its time is of an average step; `place` is empty if there is only one."""
    where = finding.where
    return FailureReason(
        title=f"{place}: {clean(finding.title, 300)}" if place else clean(finding.title, 300),
        detail=clean_lines(finding.detail),
        advice=clean_lines(finding.advice),
        time_ns=finding.mean_cost_ns,
        op=where.op if where else None,
        call=where.call if where else None,
        where=where.line if where else None,
        rule=finding.rule,
    )


class _ReasonFinder:
    """Search for the reasons at one place."""

    def __init__(self, report: Report, budget: Budget, place: JudgedPlace, trace: TraceResult, device: Device) -> None:
        self._budget, self._count, self._recorder = budget, len(place.samples), trace.environment.recorder
        self._steps = place.samples.rows if budget.sample == "step" else None
        """Numbers of the judged steps; None if all time after the lead-in is judged."""
        self._device = after_lead_in(device) if self._steps is None else device
        # Findings are of the phase that takes most time.
        of_phase = budget.phase is None or (device.per_step is not None and device.per_step.phase == budget.phase)
        at = trace.source, device.device
        self._findings = [each for each in report.findings if of_phase and (each.source, each.device) == at]
        self._now = place.spent
        self._before = None if place.before is None else spent(place.before, budget.direction)
        """Mean times of the baseline; None without comparison."""

    def reasons(self, blame: Blame) -> Iterator[FailureReason]:
        """Yield the reasons of a kind, in no order."""
        match blame:
            case "exposed-copy" | "exposed-comm" | "idle":
                yield from self._causes(blame)
            case "copies":
                yield from self._copies()
            case "kernels" if self._before is not None:
                title, grown_ns = self._took("compute", round(self._now["compute"]), self._before["compute"])
                detail = "`overlapscope diff` of two traces names the kernels."
                yield FailureReason(title=title, detail=detail, time_ns=grown_ns)
            case "kernels":
                yield from self._kernels()

    def _took(self, what: str, each_ns: int, past_ns: float | None) -> tuple[str, int]:
        """Return a title with a length, or with its growth; and the time to rank the reason by."""
        # The budget's value may be a median, and these lengths are means.
        average = " on average" if self._count > 1 else ""
        each = "" if self._budget.scope == "window" else f" a step{average}"
        took = f"{what}: {duration(each_ns)}{each}"
        if past_ns is None:
            return took, each_ns
        grown = round(each_ns - past_ns)
        return f"{took}, {duration(grown)} more than in the baseline", grown

    def _causes(self, blame: Subject) -> Iterator[FailureReason]:
        for name in blamed(self._budget.measure):
            subject, _, cause = name.partition(":")
            mean_ns = self._now[name] if subject == blame else 0.0
            each_ns = round(mean_ns)
            if each_ns:
                evidence = self._evidence(blame, cause)
                finding = self._finding(blame, cause, evidence)
                past_ns = None if self._before is None else self._before[name]
                title, rank_ns = self._took(f"{blame.replace('-', ' ')}, {cause}", each_ns, past_ns)
                # The advice of `exposed-comm` is for the cause that costs most.
                advised = finding is not None and finding.rule != "exposed-comm"
                general = CAUSES[blame].get(cause)
                remedy = general.words.helps(self._recorder)[0] or general.words.meaning if general else ""
                yield FailureReason(
                    title=title,
                    detail=clean(evidence.detail, 500) if evidence else "",
                    advice=clean_lines(finding.advice) if finding and advised else remedy,
                    cause=cause,
                    time_ns=rank_ns,
                    rule=finding.rule if finding else None,
                    **({"op": evidence.op, "call": evidence.call, "where": evidence.where} if evidence else {}),
                )

    def _evidence(self, blame: Subject, cause: str) -> Evidence | None:
        """Return the costliest evidence of a cause in the judged steps."""
        of_cause = {
            evidence: self._total_ns(evidence.time_ns, evidence.by_step.time_ns)
            for evidence in self._device.evidence
            if (evidence.subject, evidence.cause) == (blame, cause)
        }
        return max((evidence for evidence, ns in of_cause.items() if ns), key=of_cause.__getitem__, default=None)

    def _finding(self, blame: Subject, cause: str, evidence: Evidence | None) -> Finding | None:
        """Return a finding of the first of a cause's rules that fired, preferably at the same op."""
        op = evidence.op if evidence else None
        waits = [each for each in self._device.host_stalls if evidence and each.call == evidence.call]
        if waits:
            # The evidence has the op that resumed, not the one that waited.
            op = max(waits, key=lambda stall: stall.idle_caused_ns).op
        entry = CAUSES[blame].get(cause)
        rules = entry.explained_by if entry else ()
        for rule in rules:
            fired = [each for each in self._findings if each.rule == rule and each.cost_ns]
            here = [each for each in fired if each.where is not None and each.where.op == op]
            # A copy explains a wait only if it waits itself.
            explaining = here or ([] if waits and cause in rules and rule != cause else fired)
            if explaining:
                return max(explaining, key=lambda finding: finding.cost_ns)
        return None

    def _copies(self) -> Iterator[FailureReason]:
        slow = next((each for each in self._findings if each.rule in ("slow-link", "pageable-memory")), None)
        direction = self._budget.direction
        # Budgets are about copies between host and device.
        wanted = DIRECTIONS if direction is None else (direction,)
        for group in self._device.copies:
            if group.direction in wanted:
                copies = plural(group.count, "copy")
                rate = f", {bandwidth(group.gb_per_s)} GB/s" if group.gb_per_s and group.says_bandwidth else ""
                yield FailureReason(
                    title=f"{group.direction} {clean(group.source_kind)} to {clean(group.target_kind)}, stream "
                    f"{group.stream}: {copies}, {size(group.bytes)}{rate}",
                    detail="",
                    advice=clean_lines(slow.advice) if slow else "",
                    time_ns=self._mean_ns(group.time_ns, group.by_step.time_ns),
                    rule=slow.rule if slow else None,
                )

    def _kernels(self) -> Iterator[FailureReason]:
        if self._budget.range is not None:
            # The analysis doesn't count kernels by range.
            return
        for group in self._device.kernels:
            each_ns = self._mean_ns(group.time_ns, group.by_step.time_ns)
            if each_ns and not group.comm:
                title, _ = self._took(f"kernel {clean(group.kernel, 80)}", each_ns, None)
                yield FailureReason(title=title, detail="", time_ns=each_ns, op=group.op, where=group.where)

    def _mean_ns(self, whole_ns: int, by_step_ns: Sequence[int]) -> int:
        """Return the mean time over the judged steps, or the time in the window."""
        return round(self._total_ns(whole_ns, by_step_ns) / max(1, self._count))

    def _total_ns(self, whole_ns: int, by_step_ns: Sequence[int]) -> int:
        return whole_ns if self._steps is None else sum(by_step_ns[number] for number in self._steps)
