"""The figures by which ranks are coloured and compared, each with what it means and which way it gets worse."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from overlapscope.base.words import Unit, percent, unit_for
from overlapscope.ranks.result import RankRow, RanksReport


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a rank."""

    key: str
    title: str
    measure: Literal["ns", "pct"]
    worse: Literal["more", "less"]
    from_zero: bool
    """Whether its colours begin at zero; where ranks hardly differ that would make them all alike."""
    meaning: str
    of: Callable[[RankRow], float | None]

    def text(self, value: float | None, unit: Unit) -> str:
        """A value with its unit."""
        if self.measure == "pct":
            return percent(value)
        return unit.text(None if value is None else round(value))


METRICS: Final[dict[str, Metric]] = {
    metric.key: metric
    for metric in (
        Metric(
            "made-wait",
            "made others wait",
            "ns",
            "more",
            True,
            "What all others together waited for this rank, in the collectives in which it came last.",
            lambda row: row.made_wait_ns,
        ),
        Metric(
            "waited",
            "waited",
            "ns",
            "more",
            True,
            "How long its collectives ran before the last rank had come.",
            lambda row: row.waited_ns,
        ),
        Metric(
            "exposed-comm",
            "exposed communication",
            "pct",
            "more",
            True,
            "Share of its time in which it communicated and computed nothing, waiting included.",
            lambda row: row.exposed_comm_pct,
        ),
        Metric(
            "efficiency",
            "overlap efficiency",
            "pct",
            "less",
            False,
            "How much of the overlap of copies and kernels that was possible happened.",
            lambda row: row.efficiency_pct,
        ),
        Metric(
            "step",
            "step time",
            "ns",
            "more",
            False,
            "Its median step.",
            lambda row: row.median_step_ns,
        ),
    )
}


def known(report: RanksReport, metric: Metric) -> list[float]:
    """The values of the ranks that have one."""
    return [value for row in report.ranks if (value := metric.of(row)) is not None]


def shown(report: RanksReport) -> tuple[Metric, ...]:
    """Those of which at least one rank has a value, the most telling first."""
    return tuple(metric for metric in METRICS.values() if known(report, metric))


def first(report: RanksReport) -> Metric | None:
    """The one to look at first: who makes others wait where anybody does, else the first that says anything."""
    found = shown(report)
    return next((one for one in found if any(known(report, one))), next(iter(found), None))


def unit_of(metric: Metric, values: Iterable[float]) -> Unit:
    """One unit for all values; for percentages any."""
    longest = max((abs(value) for value in values), default=0) if metric.measure == "ns" else 0
    return unit_for(round(longest))
