"""Every rank of a report as a table to be sorted."""

from __future__ import annotations

from collections import Counter

from overlapscope.base.words import NOTHING, Unit, bare_percent, clean, unit_for
from overlapscope.ranks.result import RankRow, RanksReport
from overlapscope.report.grids import Cell, Field, Grid, Row
from overlapscope.views.ranks.words import row_name


def every_rank(report: RanksReport) -> Grid:
    """One row for each of the report's, in its order."""
    unit = unit_for(max((row.span_ns for row in report.ranks), default=0))
    several = Counter((row.rank, row.source) for row in report.ranks)
    names = [row_name(row, device=several[row.rank, row.source] > 1) for row in report.ranks]
    longest = max(map(len, names), default=0)
    met = any(row.meetings for row in report.ranks)
    twice = any(not row.joined for row in report.ranks)
    fields = (
        Field("rank", "rank", number=False, width=min(260, 60 + 8 * longest)),
        *(_met_fields(unit) if met else ()),
        Field("step", f"median step, {unit.name}", width=105),
        Field("efficiency", "efficiency, %", width=100),
        Field("compute", f"compute, {unit.name}", width=100),
        Field("comm", f"exposed comm, {unit.name}", width=110),
        Field("share", "exposed comm, %", width=110),
        Field("copy", f"exposed copy, {unit.name}", width=105),
        Field("idle", f"idle, {unit.name}", width=90),
        Field("span", f"span, {unit.name}", width=95),
        Field("offset", "clock offset, us", width=110),
        Field("trust", "trust", number=False, width=95),
        *([Field("joined", "compared", number=False, width=95)] if twice else []),
    )
    rows = (
        Row(
            (
                Cell(name if row.rank is None else row.rank, name),
                *(_met(row, unit) if met else ()),
                _time(row.median_step_ns, unit),
                Cell(row.efficiency_pct, bare_percent(row.efficiency_pct)),
                _time(row.buckets.compute_ns, unit),
                _time(row.exposed_comm_ns, unit),
                Cell(row.exposed_comm_pct, bare_percent(row.exposed_comm_pct)),
                _time(row.buckets.exposed_copy_ns, unit),
                _time(row.buckets.idle_ns, unit),
                _time(row.span_ns, unit),
                _time(row.clock_offset_ns, unit_for(0)),
                Cell(row.trust, row.trust),
                *([Cell("yes", "yes") if row.joined else Cell("no", "no")] if twice else []),
            )
        )
        for row, name in zip(report.ranks, names, strict=True)
    )
    return Grid(fields, tuple(rows))


def _met_fields(unit: Unit) -> tuple[Field, ...]:
    return (
        Field("made", f"made others wait, {unit.name}", width=120),
        Field("waited", f"waited, {unit.name}", width=100),
        Field("last", "last in, collectives", width=110),
    )


def _met(row: RankRow, unit: Unit) -> tuple[Cell, ...]:
    last = NOTHING if row.last_in is None else f"{row.last_in:,} of {row.meetings:,}"
    return _time(row.made_wait_ns, unit), _time(row.waited_ns, unit), Cell(row.last_in, clean(last))


def _time(ns: int | None, unit: Unit) -> Cell:
    return Cell(None if ns is None else ns / unit.ns, unit.number(ns))
