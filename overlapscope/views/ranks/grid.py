"""Every rank of a report as a table to be sorted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from overlapscope.base.words import NOTHING, Unit, unit_for
from overlapscope.documents.table import Cell, Column, Table, table_of
from overlapscope.ranks.result import RankRow, RanksReport
from overlapscope.report.grids import percent_cell, time_cell
from overlapscope.views.ranks.words import row_name

Told = tuple[Column, Callable[[tuple[RankRow, str]], Cell]]
"""A column, and what it says of a row with its name."""


def every_rank(report: RanksReport) -> Table:
    """One row for each of the report's, in its order."""
    unit = unit_for(max((row.span_ns for row in report.ranks), default=0))
    several = Counter((row.rank, row.source) for row in report.ranks)
    names = [row_name(row, device=several[row.rank, row.source] > 1) for row in report.ranks]
    longest = max(map(len, names), default=0)
    met = any(row.meetings for row in report.ranks)

    def time(id: str, title: str, width: int, ns: Callable[[RankRow], int | None], of: Unit = unit) -> Told:
        return Column(f"{title}, {of.name}", id=id, width=width), lambda pair: time_cell(ns(pair[0]), of)

    def percent(id: str, title: str, width: int, value: Callable[[RankRow], float | None]) -> Told:
        return Column(title, id=id, width=width), lambda pair: percent_cell(value(pair[0]))

    def word(id: str, title: str, text: Callable[[RankRow], str]) -> Told:
        return Column(title, False, id=id, width=95), lambda pair: Cell(text(pair[0]), text(pair[0]))

    return table_of(
        zip(report.ranks, names, strict=True),
        (Column("rank", False, id="rank", width=min(260, 60 + 8 * longest)), _named),
        time("made", "made others wait", 120, lambda row: row.made_wait_ns) if met else None,
        time("waited", "waited", 100, lambda row: row.waited_ns) if met else None,
        (Column("last in, collectives", id="last", width=110), _last_in) if met else None,
        time("step", "median step", 105, lambda row: row.median_step_ns),
        percent("efficiency", "efficiency, %", 100, lambda row: row.efficiency_pct),
        time("compute", "compute", 100, lambda row: row.buckets.compute_ns),
        time("comm", "exposed comm", 110, lambda row: row.exposed_comm_ns),
        percent("share", "exposed comm, %", 110, lambda row: row.exposed_comm_pct),
        time("copy", "exposed copy", 105, lambda row: row.buckets.exposed_copy_ns),
        time("idle", "idle", 90, lambda row: row.buckets.idle_ns),
        time("span", "span", 95, lambda row: row.span_ns),
        time("offset", "clock offset", 110, lambda row: row.clock_offset_ns, unit_for(0)),
        word("trust", "trust", lambda row: row.trust),
        None
        if all(row.joined for row in report.ranks)
        else word("joined", "compared", lambda row: "yes" if row.joined else "no"),
    )


def _named(pair: tuple[RankRow, str]) -> Cell:
    row, name = pair
    return Cell(name, name if row.rank is None else row.rank)


def _last_in(pair: tuple[RankRow, str]) -> Cell:
    row = pair[0]
    return Cell(NOTHING if row.last_in is None else f"{row.last_in:,} of {row.meetings:,}", row.last_in)
