"""The figures at the head of a report of ranks, each with what it means."""

from __future__ import annotations

from collections.abc import Iterator

from overlapscope.base.words import NOTHING, percent, plural, share, unit_for
from overlapscope.documents.model import Card
from overlapscope.ranks.result import RanksReport
from overlapscope.views.ranks.words import lost, spread, unit_of


def headlines(report: RanksReport) -> tuple[Card, ...]:
    """The most telling first."""
    return (_ranks(report), _waiting(report), *_shares(report), _skew(report), _clocks(report))


def _ranks(report: RanksReport) -> Card:
    here = len({row.rank for row in report.ranks if row.rank is not None}) or len(report.ranks)
    absent = len(report.missing) + len(report.unreadable)
    expected = f"of {report.expected:,}" if report.expected is not None else ""
    beside = ", ".join(filter(None, [expected, f"{absent:,} absent" if absent else ""]))
    return Card("ranks", f"{here:,}", beside, "How many ranks have a trace here that could be read.")


def _waiting(report: RanksReport) -> Card:
    meaning = (
        "What each of the other ranks loses on average because the worst one comes late: it waited in a collective and "
        "computed nothing meanwhile. An upper bound: the next to last may not have come much earlier."
    )
    most = next(iter(report.stragglers), None)
    if most is None or not report.matching.judged:
        return Card("lost to a straggler", NOTHING if not report.matching.judged else "0", "", meaning)
    beside = f"{lost(report, most)}, by rank {most.rank}"
    return Card("lost to a straggler", percent(most.lost_pct), beside, meaning)


def _shares(report: RanksReport) -> Iterator[Card]:
    figures = (
        ("exposed comm share", "exposed comm", "Share of its time in which a rank communicated and computed nothing."),
        ("efficiency", "overlap efficiency", "How much of the possible overlap of copies and kernels happened."),
        ("idle share", "idle", "Share of its time in which nothing ran on a rank's GPU."),
    )
    for key, name, meaning in figures:
        found = spread(report, key)
        if found is not None:
            between = f"{percent(found.min)} to {percent(found.max)}" if found.ranks > 1 else ""
            yield Card(name, percent(found.median), between, f"{meaning} The median rank.")


def _skew(report: RanksReport) -> Card:
    meaning = "How much longer the slowest rank takes for a step than the fastest; the median over steps."
    spreads = sorted((one.spread_ns, one.median_ns) for one in report.steps if one.ranks > 1)
    if not spreads:
        return Card("spread of a step", NOTHING, "no step that two ranks have", meaning)
    ns, median = spreads[(len(spreads) - 1) // 2]
    return Card("spread of a step", share(ns, median), f"of {unit_of(report).text(median)}", meaning)


def _clocks(report: RanksReport) -> Card:
    meaning = "How far the ranks' clocks may be apart after they were set right by the collectives they meet in."
    error = report.clocks.largest_error_ns
    if error is None:
        return Card("clock error", NOTHING, f"clocks {report.clocks.status}", meaning)
    met = plural(report.matching.judged, "collective")
    return Card("clock error", unit_for(error).text(error), f"clocks {report.clocks.status}, {met}", meaning)
