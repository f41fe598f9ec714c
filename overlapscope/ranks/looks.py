"""The ranks worth a look, each with what explains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from overlapscope.base.words import Unit, clean, listed, unit_for
from overlapscope.ranks.result import CauseTime, Excess, RanksReport, WorstRank

_WHY: Final = {
    "makes-others-wait": "makes the others wait",
    "slowest-steps": "has the slowest steps",
    "least-efficient": "overlaps least",
}
_EXCESSES = 4


@dataclass(frozen=True, slots=True)
class Look:
    """One of them, in words."""

    title: str
    """`Rank 5 makes the others wait`."""
    source: str
    device: int
    more: str
    """What it has more of than the median rank; empty where there is nothing."""
    causes: str
    """What its exposed copies and idle time are due to; empty where it has none."""
    findings: tuple[str, ...]
    """Each with its rule and what it costs."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """What stands between the title and the findings."""
        return tuple(filter(None, (self.more, self.causes)))


def looks(report: RanksReport, *, most: int | None = None) -> tuple[Look, ...]:
    """In the report's order, up to `most`."""
    return tuple(_look(rank) for rank in report.worst[:most])


def _look(rank: WorstRank) -> Look:
    why = listed([_WHY[reason] for reason in rank.why])
    findings = tuple(f"{clean(finding.rule, 60)}: {clean(finding.title, 400)}" for finding in rank.findings)
    title = f"Rank {rank.rank} {why}"
    return Look(title, rank.source, rank.device, _more(rank.excess, rank.over), _causes(rank.top_causes), findings)


def _causes(causes: Sequence[CauseTime]) -> str:
    known = [cause for cause in causes if cause.time_ns]
    unit = unit_for(max((cause.time_ns for cause in known), default=0))
    told = [f"{_of(cause.subject, cause.cause)} {unit.text(cause.time_ns)}" for cause in known]
    return f"Over its whole window: {'; '.join(told)}." if told else ""


def _more(excess: Sequence[Excess], over: str) -> str:
    parts = [part for part in excess if part.more_ns > 0]
    if not parts:
        return ""
    unit = unit_for(max(part.more_ns for part in parts))
    told = [_excess(part, unit) for part in parts[:_EXCESSES]]
    of = "the same steps" if over == "steps" else "its window"
    return f"More than the median rank in {of}: {'; '.join(told)}."


def _excess(excess: Excess, unit: Unit) -> str:
    what = clean(excess.name, 60) if excess.kind == "bucket" else _of(excess.kind, excess.name)
    return f"{what} +{unit.text(excess.more_ns)} ({unit.number(excess.time_ns)} against {unit.text(excess.median_ns)})"


def _of(subject: str, cause: str) -> str:
    return f"{subject.replace('-', ' ')} by {clean(cause, 60)}"
