"""Figures that color and compare ranks, and those at the head of a report, each with its meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from statistics import median_low
from typing import Final, Literal

from msgspec import Struct

from overlapscope.base.words import NOTHING, Unit, percent, plural, share, unit_for
from overlapscope.documents.model import Card
from overlapscope.ranks.frame import rows_of
from overlapscope.ranks.parts import parts
from overlapscope.ranks.result import RankRow, RanksReport
from overlapscope.ranks.verdict import lost, spread
from overlapscope.ranks.verdict import unit_of as unit_of_steps


class RankMetric(Struct, frozen=True):
    """A figure of a rank."""

    key: str
    title: str
    measure: Literal["ns", "pct"]
    meaning: str
    of: Callable[[RankRow], float | None]
    worse: Literal["more", "less"] = "more"
    from_zero: bool = True
    """True if its colors begin at zero. If ranks hardly differ, that makes them all look alike."""

    def text(self, value: float | None, unit: Unit) -> str:
        """Return a value with its unit."""
        if self.measure == "pct":
            return percent(value)
        return unit.text(None if value is None else round(value))


def _step_ns(row: RankRow) -> int | None:
    return row.judged.span_ns if row.judged is not None and row.judged.steps else None


METRICS: Final[dict[str, RankMetric]] = {
    metric.key: metric
    for metric in (
        RankMetric(
            "made-wait",
            "made others wait",
            "ns",
            "How long all other ranks together waited for this rank in an average step, in the collectives in which it "
            "came last.",
            lambda row: row.made_wait_ns,
        ),
        RankMetric(
            "waited",
            "waited",
            "ns",
            "How long its collectives ran in an average step before the last rank arrived.",
            lambda row: row.waited_ns,
        ),
        RankMetric(
            "exposed-comm",
            "exposed communication",
            "pct",
            "Share of its time in which it communicated without computing, including waiting.",
            lambda row: row.exposed_comm_pct,
        ),
        RankMetric(
            "efficiency",
            "overlap efficiency",
            "pct",
            "How much of the possible overlap of copies and kernels happened.",
            lambda row: row.efficiency_pct,
            worse="less",
            from_zero=False,
        ),
        RankMetric("step", "step time", "ns", "Its average step, as recorded.", _step_ns, from_zero=False),
    )
}


def values_of(report: RanksReport, metric: RankMetric) -> list[float]:
    """Return the values of the ranks that have one."""
    return [value for row in rows_of(report) if (value := metric.of(row)) is not None]


def shown(report: RanksReport) -> tuple[RankMetric, ...]:
    """Return the metrics that at least one rank has, the most useful first."""
    return tuple(metric for metric in METRICS.values() if values_of(report, metric))


def first(report: RanksReport) -> RankMetric | None:
    """Return the metric to show first: waiting for others if there is any, otherwise the first that isn't zero."""
    metrics = shown(report)
    return next((metric for metric in metrics if any(values_of(report, metric))), next(iter(metrics), None))


def unit_of(metric: RankMetric, values: Iterable[float]) -> Unit:
    """Return one unit for all values; any unit for percentages."""
    longest = max((abs(value) for value in values), default=0) if metric.measure == "ns" else 0
    return unit_for(round(longest))


# -- Head of a report ------------------------------------------------------------------------------


def headlines(report: RanksReport) -> tuple[Card, ...]:
    """Return the headline figures, the most useful first."""
    of_parts = (card for module, part in parts(report) for card in module.cards(part))
    return (_ranks(report), _waiting(report), *of_parts, *_shares(report), _skew(report), _clocks(report))


def _ranks(report: RanksReport) -> Card:
    here = len({row.rank for row in report.ranks if row.rank is not None}) or len(report.ranks)
    absent = len(report.missing) + len(report.unreadable)
    expected = f"of {report.expected:,}" if report.expected is not None else ""
    beside = ", ".join(filter(None, [expected, f"{absent:,} absent" if absent else ""]))
    return Card("ranks", f"{here:,}", beside, "Number of ranks with a readable trace.")


def _waiting(report: RanksReport) -> Card:
    meaning = (
        "How long each of the other ranks waits for the worst one on average, in a collective and without "
        "computing. It is an upper bound, because the second-to-last rank may not have come much earlier."
    )
    most = next((late for late in report.stragglers[:1] if late.sure_pct), None)
    if most is None or not report.matching.judged:
        return Card("lost to a straggler", NOTHING if not report.matching.judged else "0", "", meaning)
    beside = f"{lost(report, most)}, by rank {most.rank}"
    return Card("lost to a straggler", percent(most.lost_pct), beside, meaning)


def _shares(report: RanksReport) -> Iterator[Card]:
    figures = (
        ("exposed comm share", "exposed comm", "Share of its time in which a rank communicated without computing."),
        ("efficiency", "overlap efficiency", "How much of the possible overlap of copies and kernels happened."),
        ("idle share", "idle", "Share of its time in which nothing ran on a rank's GPU."),
    )
    for key, name, meaning in figures:
        figure = spread(report, key)
        if figure is not None:
            between = f"{percent(figure.min)} to {percent(figure.max)}" if figure.ranks > 1 else ""
            yield Card(name, percent(figure.median), between, f"{meaning} The median rank.")


def _skew(report: RanksReport) -> Card:
    meaning = "How much longer the slowest rank takes for a step than the fastest rank (median over steps)."
    spreads = [(step.spread_ns, step.median_ns) for step in report.steps if step.ranks > 1]
    if not spreads:
        return Card("spread of a step", NOTHING, "no step on two ranks", meaning)
    ns, median = median_low(spreads)
    return Card("spread of a step", share(ns, median), f"of {unit_of_steps(report).text(median)}", meaning)


def _clocks(report: RanksReport) -> Card:
    meaning = "How far apart the clocks of the ranks may be after their alignment at shared collectives."
    error = report.clocks.largest_error_ns
    if error is None:
        return Card("clock error", NOTHING, f"clocks {report.clocks.status}", meaning)
    met = plural(report.matching.judged, "collective")
    return Card("clock error", unit_for(error).text(error), f"clocks {report.clocks.status}, {met}", meaning)
