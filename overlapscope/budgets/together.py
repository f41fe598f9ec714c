"""What a budget comes to over all ranks and devices: one verdict, with what each of them had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from statistics import median

from overlapscope.base.words import clean, plural
from overlapscope.budgets.baseline import Baseline
from overlapscope.budgets.judge import Judged, against_limit, compared_with, is_relative
from overlapscope.budgets.pieces import Piece
from overlapscope.budgets.reasons import reasons_of
from overlapscope.budgets.settings import Budget
from overlapscope.budgets.spent import Spent, by_baseline
from overlapscope.budgets.verdicts import Level, Part, Reason, Status, Subject, Verdict
from overlapscope.report.model import Report

WORST_FIRST: dict[Status, int] = {"fail": 0, "unknown": 1, "accepted": 2, "skipped": 3, "pass": 4}


@dataclass(frozen=True, slots=True, eq=False)
class Row:
    """A budget at one place, judged."""

    piece: Piece
    judged: Judged
    note: str
    """What an exception has to say."""


def combine(
    report: Report, budget: Budget, limit: str, rows: Sequence[Row], *, fail_level: Level, baseline: Baseline | None
) -> Verdict:
    """One verdict for some places."""
    order = sorted(rows, key=lambda row: (WORST_FIRST[row.judged.status], -_excess(row.judged, budget, limit)))
    middle = budget.ranks == "median" and len(rows) > 1
    row = _middle(budget, limit, order) if middle else order[0]
    one, piece = row.judged, row.piece
    reasons: tuple[Reason, ...] = ()
    if one.status in ("fail", "accepted") and piece.trace is not None and piece.device is not None:
        reasons = reasons_of(report, piece, _before(report, piece, baseline) if is_relative(limit) else None)
    subject = piece.subject
    if middle:
        subject = Subject(scope=subject.scope, direction=subject.direction, step=subject.step)
    return Verdict(
        budget=budget.title(limit),
        metric=budget.metric,
        subject=subject,
        status=one.status,
        level=budget.level,
        value=one.value,
        limit=one.limit,
        unit=budget.what.unit,
        more_is_better=limit in ("min", "max_decrease_pct"),
        baseline=one.baseline,
        change_low=one.low,
        change_high=one.high,
        samples=one.samples,
        message=_message(report, budget, row, rows, middle=middle),
        parts=tuple(_part(row) for row in rows),
        reasons=reasons,
        exception=row.note or None,
        note=one.note or None,
        counts=counts(one.status, budget.level, fail_level, allow_missing=budget.allow_missing),
    )


def _before(report: Report, piece: Piece, baseline: Baseline | None) -> Spent | None:
    if baseline is None:
        return None
    device = compared_with(baseline, piece, only=len(report.devices) == 1)
    if device is None:
        return None
    return by_baseline(baseline, device, piece.subject.scope, piece.budget.direction, skip=piece.budget.skip_steps)


def counts(status: Status, level: Level, fail_level: Level, *, allow_missing: bool) -> bool:
    """Whether a verdict can change the outcome."""
    if status == "unknown" and allow_missing:
        return False
    return status in ("fail", "unknown") and (level == "error" or fail_level == "warn")


def _part(row: Row) -> Part:
    subject = row.piece.subject
    return Part(
        source=subject.source,
        rank=subject.rank,
        device=subject.device,
        status=row.judged.status,
        value=row.judged.value,
        samples=row.judged.samples,
    )


def _excess(one: Judged, budget: Budget, limit: str) -> float:
    """How far a value is beyond its limit; negative within it."""
    if one.value is None or one.limit is None:
        return 0.0
    return (one.limit - one.value) if limit in ("min", "max_decrease_pct") else (one.value - one.limit)


def _middle(budget: Budget, limit: str, rows: list[Row]) -> Row:
    """The median over the places, which none of them need have. Where one is unknown, it is unknown."""
    unknown = next((row for row in rows if row.judged.value is None), None)
    if unknown is not None:
        return unknown
    value = median(row.judged.value or 0.0 for row in rows)
    bound = median(row.judged.limit or 0.0 for row in rows)
    least = limit in ("min", "max_decrease_pct")
    failing = [row for row in rows if row.judged.status in ("fail", "accepted")]
    # Of a change, half of the places have to show that it is more than noise.
    failed = (value < bound if least else value > bound) and 2 * len(failing) >= len(rows)
    accepted = failed and all(row.judged.status == "accepted" for row in failing)
    open_ = not failed and (value < bound if least else value > bound)
    sentence = against_limit(budget, limit, value, bound, failed=failed)
    judged = Judged(
        status="accepted" if accepted else "fail" if failed else "pass",
        value=value,
        limit=bound,
        baseline=median(row.judged.baseline or 0.0 for row in rows) if is_relative(limit) else None,
        sentence=f"{sentence}; in most places this may be chance" if open_ else sentence,
        note="may be chance" if open_ else "",
    )
    # The worst of them shows the reasons.
    return replace(rows[0], judged=judged, note=rows[0].note if failed else "")


def _message(report: Report, budget: Budget, row: Row, rows: Sequence[Row], *, middle: bool) -> str:
    """The sentence, with its place and how it came about."""
    where = place(report, row.piece.subject, rank=not middle)
    text = f"{where}: {row.judged.sentence}" if where else row.judged.sentence
    return f"{text}{_how(budget, row, rows, middle=middle)}." + (f" {row.note}" if row.note else "")


def _how(budget: Budget, row: Row, rows: Sequence[Row], *, middle: bool) -> str:
    if row.judged.value is None:
        return ""
    samples = row.judged.samples
    if budget.scope == "window" and budget.where.range is None:
        way = "whole window"
    else:
        what = "step" if budget.where.range is None else "occurrence"
        way = f"{budget.aggregate} of {plural(samples, what)}" if samples > 1 else f"one {what}"
    if len(rows) > 1:
        known = [one.piece.subject for one in rows if one.judged.value is not None]
        ranks, traces = {one.rank for one in known}, {one.source for one in known}
        what = "rank" if None not in ranks and len(ranks) == len(known) else "device" if len(traces) == 1 else "trace"
        way += f", {'median' if middle else 'worst'} of {plural(len(known), what)}"
    return f"; {way}"


def place(report: Report, subject: Subject, *, rank: bool = True) -> str:
    """`rank 3, device 1, range forward, h2d`: what sets a subject apart in this report, cleaned."""
    parts = []
    if rank and subject.rank is not None:
        parts.append(f"rank {subject.rank}")
    elif rank and len(report.traces) > 1 and subject.source is not None:
        parts.append(clean(PurePath(subject.source).name, 60))
    if rank and subject.device is not None and any(len(trace.devices) > 1 for trace in report.traces):
        parts.append(f"device {subject.device}")
    if subject.scope not in ("steps", "window"):
        parts.append(f"range {clean(subject.scope, 60)}")
    if subject.step is not None:
        parts.append(f"step {clean(subject.step, 60)}")
    if subject.direction is not None:
        parts.append(subject.direction)
    return ", ".join(parts)
