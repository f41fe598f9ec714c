"""The ranks worth a look, each with what explains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from overlapscope.ranks.result import Excess, RanksReport, WorstRank
from overlapscope.views.ranks.words import listed
from overlapscope.words import Unit, clean, unit_for

_WHY: Final = {
    "makes-others-wait": "makes the others wait",
    "slowest-steps": "has the slowest steps",
    "waits-most": "waits most",
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
    """What it has more of than the median rank: empty where there is nothing."""
    findings: tuple[str, ...]
    """Each with its rule and what it costs."""


def looks(report: RanksReport, *, most: int | None = None) -> tuple[Look, ...]:
    """In the report's order, up to `most`."""
    return tuple(_look(one) for one in report.worst[:most])


def _look(one: WorstRank) -> Look:
    why = listed([_WHY[reason] for reason in one.why])
    findings = tuple(f"{clean(found.rule, 60)}: {clean(found.title, 400)}" for found in one.findings)
    return Look(f"Rank {one.rank} {why}", one.source, one.device, _more(one.excess, one.over), findings)


def _more(excess: Sequence[Excess], over: str) -> str:
    found = [one for one in excess if one.more_ns > 0]
    if not found:
        return ""
    unit = unit_for(max(one.more_ns for one in found))
    told = [_excess(one, unit) for one in found[:_EXCESSES]]
    of = "the same steps" if over == "steps" else "its window"
    return f"More than the median rank in {of}: {'; '.join(told)}."


def _excess(one: Excess, unit: Unit) -> str:
    name = clean(one.name, 60)
    what = name if one.kind == "bucket" else f"{one.kind.replace('-', ' ')} by {name}"
    return f"{what} +{unit.text(one.more_ns)} ({unit.number(one.time_ns)} against {unit.text(one.median_ns)})"
