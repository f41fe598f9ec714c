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
    return tuple(_look(one) for one in report.worst[:most])


def _look(one: WorstRank) -> Look:
    why = listed([_WHY[reason] for reason in one.why])
    findings = tuple(f"{clean(found.rule, 60)}: {clean(found.title, 400)}" for found in one.findings)
    title = f"Rank {one.rank} {why}"
    return Look(title, one.source, one.device, _more(one.excess, one.over), _causes(one.top_causes), findings)


def _causes(causes: Sequence[CauseTime]) -> str:
    known = [one for one in causes if one.time_ns]
    unit = unit_for(max((one.time_ns for one in known), default=0))
    told = [f"{_of(one.subject, one.cause)} {unit.text(one.time_ns)}" for one in known]
    return f"Over its whole window: {'; '.join(told)}." if told else ""


def _more(excess: Sequence[Excess], over: str) -> str:
    found = [one for one in excess if one.more_ns > 0]
    if not found:
        return ""
    unit = unit_for(max(one.more_ns for one in found))
    told = [_excess(one, unit) for one in found[:_EXCESSES]]
    of = "the same steps" if over == "steps" else "its window"
    return f"More than the median rank in {of}: {'; '.join(told)}."


def _excess(one: Excess, unit: Unit) -> str:
    what = clean(one.name, 60) if one.kind == "bucket" else _of(one.kind, one.name)
    return f"{what} +{unit.text(one.more_ns)} ({unit.number(one.time_ns)} against {unit.text(one.median_ns)})"


def _of(subject: str, cause: str) -> str:
    return f"{subject.replace('-', ' ')} by {clean(cause, 60)}"
