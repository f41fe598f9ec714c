"""Why a budget fails: the causes behind the figure, with the op, the call and the line, and what to change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from overlapscope.analysis.results import Device, Evidence
from overlapscope.base.words import bandwidth, clean, plural, size
from overlapscope.budgets.metrics import Direction
from overlapscope.budgets.pieces import Piece
from overlapscope.budgets.quantity import show
from overlapscope.budgets.spent import Spent
from overlapscope.budgets.verdicts import Reason
from overlapscope.catalog.causes import CAUSES, STALL_CAUSES, Cause, Subject
from overlapscope.report.model import Report
from overlapscope.rules.finding import Finding

MOST = 4
"""Reasons that are given; the rest is in the report."""
LEAST_SHARE = 0.02
"""Of the longest, which a further one must reach."""


def reasons_of(report: Report, piece: Piece, before: Spent | None = None) -> tuple[Reason, ...]:
    """What lies behind a budget's figure at one place, the longest first; against a baseline what has grown, the most
    grown first."""
    found = list(_Finder(report, piece, before).all())
    if before is not None:
        found = [one for one in found if one.time_ns > 0]
    found.sort(key=lambda one: (-one.time_ns, one.title))
    least = LEAST_SHARE * found[0].time_ns if found else 0
    return tuple(one for one in found[:MOST] if one.time_ns >= least)


def of_finding(finding: Finding, place: str) -> Reason:
    """A finding as a reason; its time is of the window. `place` is empty where there is only one."""
    where = finding.where
    return Reason(
        title=f"{place}: {clean(finding.title, 300)}" if place else clean(finding.title, 300),
        detail=_lines(finding.detail),
        advice=_lines(finding.advice),
        time_ns=finding.bound_ns,
        op=where.op if where else None,
        call=where.call if where else None,
        where=where.line if where else None,
        rule=finding.rule,
    )


def _lines(text: str) -> str:
    return "\n".join(clean(line, 2000) for line in text.split("\n"))


class _Finder:
    """The reasons at one place."""

    def __init__(self, report: Report, piece: Piece, before: Spent | None) -> None:
        device, trace = piece.device, piece.trace
        self._device: Device | None = device
        self._piece = piece
        self._before = before
        self._findings = [
            one
            for one in report.findings
            if device is not None and trace is not None and (one.source, one.device) == (trace.source, device.device)
        ]

    def all(self) -> Iterator[Reason]:
        """In no order."""
        if self._device is None:
            return
        metric, direction = self._piece.budget.what, self._piece.budget.direction
        only = STALL_CAUSES if metric.id == "host_stall_time" else None
        for blame in metric.blames:
            match blame:
                case "kernels" if self._before is not None:
                    yield from self._compute(self._before)
                case "exposed-copy":
                    yield from self._causes("exposed-copy", None)
                case "idle":
                    yield from self._causes("idle", only)
                case "exposed-comm":
                    yield from self._communication()
                case "copies":
                    yield from self._copies(self._device, direction)
                case "kernels":
                    yield from self._kernels(self._device)

    def _per_sample(self, total_ns: float) -> int:
        return round(total_ns / max(1, len(self._piece.samples)))

    def _each(self) -> str:
        """`a step on average`: the budget's own value may be a median."""
        average = " on average" if len(self._piece.samples) > 1 else ""
        if self._piece.budget.where.range is not None:
            return f" each time{average}"
        return "" if self._piece.budget.scope == "window" else f" a step{average}"

    def _took(self, what: str, each_ns: int, past_ns: float | None) -> tuple[str, int]:
        """What took how long, or how much longer than before; and the length that ranks it."""
        took = f"{what}: {show(each_ns, 'ns')}{self._each()}"
        if past_ns is None:
            return took, each_ns
        grown = round(each_ns - past_ns)
        return f"{took}, {show(grown, 'ns')} more than in the baseline", grown

    def _causes(self, subject: Subject, only: Sequence[str] | None) -> Iterator[Reason]:
        spent: dict[str, int] = {}
        for sample in self._piece.samples:
            figures = sample.figures
            by_cause = figures.exposed_copy_by_cause if subject == "exposed-copy" else figures.idle_by_cause
            for cause, ns in by_cause.items():
                if only is None or cause in only:
                    spent[cause] = spent.get(cause, 0) + ns
        what, past = "idle", self._before.idle if self._before else None
        if subject == "exposed-copy":
            what, past = "exposed copy", self._before.exposed_copy if self._before else None
        for cause, total in spent.items():
            each_ns = self._per_sample(total)
            if each_ns:
                evidence = self._evidence(subject, cause)
                finding = self._finding(CAUSES[subject].get(cause), evidence)
                past_ns = None if past is None else past.get(cause, 0.0)
                title, rank_ns = self._took(f"{what}, {cause}", each_ns, past_ns)
                yield Reason(
                    title=title,
                    detail=clean(evidence.detail, 500) if evidence else "",
                    advice=_lines(finding.advice) if finding else "",
                    cause=cause,
                    time_ns=rank_ns,
                    op=evidence.op if evidence else None,
                    call=evidence.call if evidence else None,
                    where=evidence.where if evidence else None,
                    rule=finding.rule if finding else None,
                )

    def _evidence(self, subject: str, cause: str) -> Evidence | None:
        mine = [e for e in (self._device.evidence if self._device else ()) if (e.subject, e.cause) == (subject, cause)]
        return max(mine, key=lambda e: e.time_ns, default=None)

    def _finding(self, cause: Cause | None, evidence: Evidence | None) -> Finding | None:
        """The finding that answers for a cause: of its rules the first that fired, at the same op if there is one."""
        for rule in cause.explained_by if cause else ():
            mine = [one for one in self._findings if one.rule == rule and one.severity != "info"]
            if mine:
                op = evidence.op if evidence else None
                return max(mine, key=lambda one: (one.where is not None and one.where.op == op, one.bound_ns))
        return None

    def _communication(self) -> Iterator[Reason]:
        each_ns = self._per_sample(sum(sample.figures.buckets.exposed_comm_ns for sample in self._piece.samples))
        if each_ns:
            finding = next((one for one in self._findings if one.rule == "exposed-communication"), None)
            where = finding.where if finding else None
            past = None if self._before is None else self._before.exposed_comm
            title, rank_ns = self._took("exposed communication", each_ns, past)
            yield Reason(
                title=title,
                detail=_lines(finding.detail) if finding else "",
                advice=_lines(finding.advice) if finding else "",
                time_ns=rank_ns,
                op=where.op if where else None,
                call=where.call if where else None,
                where=where.line if where else None,
                rule=finding.rule if finding else None,
            )

    def _copies(self, device: Device, direction: Direction | None) -> Iterator[Reason]:
        steps = self._steps(device)
        slow = next((one for one in self._findings if one.rule in ("slow-link", "pageable-copy")), None)
        for group in device.copies:
            if direction in (None, group.direction):
                copies = plural(group.count, "copy")
                rate = f", {bandwidth(group.gb_per_s)} GB/s" if group.gb_per_s else ""
                spent = group.time_ns if steps is None else sum(group.by_step.time_ns[number] for number in steps)
                yield Reason(
                    title=f"{group.direction} {clean(group.source_kind)} to {clean(group.target_kind)}, stream "
                    f"{group.stream}: {copies}, {size(group.bytes)}{rate}",
                    detail="",
                    advice=_lines(slow.advice) if slow else "",
                    time_ns=self._per_sample(spent),
                    rule=slow.rule if slow else None,
                )

    def _compute(self, before: Spent) -> Iterator[Reason]:
        each_ns = self._per_sample(sum(sample.figures.buckets.compute_ns for sample in self._piece.samples))
        title, rank_ns = self._took("compute", each_ns, before.compute)
        yield Reason(title=title, detail="`overlapscope diff` of two traces names the kernels.", time_ns=rank_ns)

    def _kernels(self, device: Device) -> Iterator[Reason]:
        if self._piece.budget.where.range is not None:
            # Which kernels ran in a range is not counted.
            return
        steps = self._steps(device)
        for group in [one for one in device.kernels if not one.comm]:
            spent = group.time_ns if steps is None else sum(group.by_step.time_ns[number] for number in steps)
            if spent:
                each_ns = self._per_sample(spent)
                title, _ = self._took(f"kernel {clean(group.kernel, 80)}", each_ns, None)
                yield Reason(title=title, detail="", time_ns=each_ns, op=group.op)

    def _steps(self, device: Device) -> list[int] | None:
        """The numbers of the steps that are judged; None where the whole window is."""
        if self._piece.budget.scope == "window" or self._piece.budget.where.range is not None:
            return None
        judged = {id(sample.figures) for sample in self._piece.samples}
        return [number for number, step in enumerate(device.steps) if id(step) in judged]
