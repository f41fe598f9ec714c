"""The tables of a report of ranks as text cells, for any view to lay out.

However many ranks there are, a table has a few rows: the worst, and how the others spread. The JSON has all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from overlapscope.base.words import NOTHING, Unit, bare_percent, clean, plural, unit_for
from overlapscope.ranks.result import Meeting, RankRow, RanksReport, Spread, StepSkew, Straggler, Waiting
from overlapscope.views.old_tables import FEW, Column, Table, text
from overlapscope.views.ranks.words import NAME_LIMIT, collective, late_name, meeting_name, row_name, unit_of

EVERY_RANK = 16
"""Up to so many ranks each has a row of its own, also where only a few rows are wanted."""
EACH = "Each rank"
"""The title of their table."""
_QUARTILES_FROM = 8
"""With fewer ranks quantiles say no more than the extremes do."""
_NAMED = 3
"""Ranks that are named in a cell."""

_WHO, _STEP, _COPY, _LAST, _COMPUTE, _MEDIAN, _MOSTLY, _EFF, _IDLE, _SPREAD, _RANKS = (
    "who waits longest",
    "step",
    "exp. copy",
    "last in",
    "compute",
    "median step",
    "mostly in",
    "eff. %",
    "idle",
    "spread",
    "ranks",
)
DROPPABLE: Final = (_WHO, _COPY, _COMPUTE, "75 %", "25 %", _LAST, _STEP, _MEDIAN, _MOSTLY, _RANKS, _SPREAD, _EFF, _IDLE)
"""Titles of columns that a table can do without where there is not enough room, in this order."""

TRUST_TONES: Final = {"degraded": "fair", "unusable": "poor"}


def all_tables(report: RanksReport, *, most: int = FEW, named: int = _NAMED) -> list[Table]:
    """Those that have rows, in the order in which they answer; lists have up to `most` rows, cells up to `named`
    ranks."""
    found = [
        stragglers(report, most=most, named=named),
        meetings(report, most=most, named=named),
        steps(report, most=most),
        spreads(report),
        each(report, most=EVERY_RANK),
    ]
    return [table for table in found if table.rows]


# -- who waits for whom ---------------------------------------------------------------------------


def stragglers(report: RanksReport, *, most: int, named: int = _NAMED) -> Table:
    """Who makes the others wait, and whom in what."""
    found = [one for one in report.stragglers if one.made_wait_ns]
    by_step = all(one.lost_per_step_ns is not None for one in found)
    passed = any(one.passed_on_ns for one in found)
    losses = [one.lost_per_step_ns if by_step and one.lost_per_step_ns is not None else one.lost_ns for one in found]
    unit = unit_for(max(losses, default=0))
    total = unit_for(max((one.made_wait_ns for one in found), default=0))
    columns = [
        text("rank"),
        Column(f"lost {'a step ' if by_step else ''}{unit.name}"),
        Column("%"),
        Column(f"all waited {total.name}"),
        *([Column("passed on")] if passed else []),
        Column(_LAST),
        text(_MOSTLY, flexible=True),
        text(_WHO, flexible=True),
    ]
    rows = tuple(
        (
            _straggler_name(report, one),
            unit.number(one.lost_per_step_ns if by_step else one.lost_ns),
            bare_percent(one.lost_pct),
            total.number(one.made_wait_ns),
            *([total.number(one.passed_on_ns)] if passed else []),
            f"{one.last_in:,} of {one.meetings:,}",
            _mostly(one),
            _waiting(one.waiting, one.waiting_ranks, named),
        )
        for one in found[:most]
    )
    note = (
        "Lost is what each of the others, on average, waited while it computed nothing: at most that would be gained. "
        "Waited is all that all of them waited. Who is late by less than the clocks' error made nobody wait."
    )
    if passed:
        note += " Passed on is what a rank had itself waited before, for others; it is no part of what is lost."
    return Table("Who makes the others wait", tuple(columns), rows, _noted(note, len(found) - len(rows), "more rank"))


def _straggler_name(report: RanksReport, one: Straggler) -> str:
    devices = {row.device for row in report.ranks if row.rank == one.rank}
    return f"{one.rank}, device {one.device}" if len(devices) > 1 else str(one.rank)


def _mostly(one: Straggler) -> str:
    if not one.collectives:
        return NOTHING
    most = one.collectives[0]
    return f"{collective(most)} ({plural(most.count, 'time')})"


def _waiting(waiting: Sequence[Waiting], ranks: int, most: int) -> str:
    """The ranks that waited longest, each with how long."""
    unit = unit_for(max((one.waited_ns for one in waiting), default=0))
    named = [f"{one.rank} ({unit.text(one.waited_ns)})" for one in waiting[:most]]
    left = ranks - len(named)
    return ", ".join([*named, *([f"{left:,} more"] if left > 0 else [])]) or NOTHING


def meetings(report: RanksReport, *, most: int, named: int = _NAMED) -> Table:
    """The single collectives in which most was waited."""
    found = report.meetings
    unit = unit_for(max((one.late_ns for one in found), default=0))
    total = unit_for(max((one.waited_ns for one in found), default=0))
    stepped = any(one.step for one in found)
    columns = [
        text("collective", flexible=True),
        *([text(_STEP, flexible=True)] if stepped else []),
        text("came last"),
        Column(f"late by {unit.name}"),
        Column(f"all waited {total.name}"),
        Column("exposed"),
        text(_WHO, flexible=True),
    ]
    rows = tuple(_meeting(one, unit, total, stepped, named) for one in found[:most])
    return Table("The collectives in which waiting cost most", tuple(columns), rows)


def _meeting(one: Meeting, unit: Unit, total: Unit, stepped: bool, named: int) -> tuple[str, ...]:
    return (
        meeting_name(one),
        *([clean(one.step or NOTHING, NAME_LIMIT)] if stepped else []),
        late_name(one),
        unit.number(one.late_ns),
        total.number(one.waited_ns),
        total.number(one.waited_exposed_ns),
        _waiting(one.waiting, one.waiting_ranks, named),
    )


# -- how they differ ------------------------------------------------------------------------------


def steps(report: RanksReport, *, most: int) -> Table:
    """Each step over all ranks; of many those that spread most."""
    found = [one for one in report.steps if one.ranks > 1]
    shown = found
    if len(found) > 2 * most:
        widest = sorted(range(len(found)), key=lambda number: (-found[number].spread_ns, number))[:most]
        shown = [found[number] for number in sorted(widest)]
    unit = unit_of(report)
    columns = (
        text("step of all ranks", flexible=True),
        Column(f"median {unit.name}"),
        Column("fastest"),
        text("rank"),
        Column("slowest"),
        text("rank"),
        Column(_SPREAD),
        Column("%"),
        Column(_RANKS),
    )
    rows = tuple(_step(one, unit) for one in shown)
    note = f"The {len(found) - len(shown):,} other steps spread less." if len(shown) < len(found) else ""
    return Table("Steps over all ranks", columns, rows, note)


def _step(one: StepSkew, unit: Unit) -> tuple[str, ...]:
    return (
        clean(one.name, NAME_LIMIT),
        unit.number(one.median_ns),
        unit.number(one.min_ns),
        str(one.fastest_rank),
        unit.number(one.max_ns),
        str(one.slowest_rank),
        unit.number(one.spread_ns),
        bare_percent(100 * one.spread_ns / one.median_ns if one.median_ns else None),
        f"{one.ranks:,}",
    )


def spreads(report: RanksReport) -> Table:
    """Each figure over all ranks."""
    found = [one for one in report.spreads if one.ranks > 1 and one.max]
    quantiles = any(one.ranks >= _QUARTILES_FROM for one in found)
    between = [Column("25 %"), Column("median"), Column("75 %"), Column("95 %")] if quantiles else [Column("median")]
    columns = (text("over all ranks"), Column("least"), text("rank"), *between, Column("most"), text("rank"))
    return Table("How the ranks differ", columns, tuple(_spread(one, quantiles) for one in found))


def _spread(one: Spread, quantiles: bool) -> tuple[str, ...]:
    unit = unit_for(round(one.max)) if one.unit == "ns" else None

    def number(value: float) -> str:
        return bare_percent(value) if unit is None else unit.number(round(value))

    between = (one.p25, one.median, one.p75, one.p95) if quantiles else (one.median,)
    return (
        f"{one.name} {'%' if unit is None else unit.name}",
        number(one.min),
        str(one.min_rank),
        *map(number, between),
        number(one.max),
        str(one.max_rank),
    )


# -- each rank ------------------------------------------------------------------------------------


def each(report: RanksReport, *, most: int | None = None) -> Table:
    """A row for each rank; none where there are more than `most`, which no one would read."""
    shown = report.ranks if most is None or len(report.ranks) <= most else ()
    unit = unit_for(max((row.span_ns for row in shown), default=0))
    by_device = len({(row.rank, row.source) for row in shown}) < len(shown)
    stepped = any(row.median_step_ns is not None for row in shown)
    met = any(row.meetings for row in shown)
    columns = (
        text("rank", flexible=True),
        Column(f"span {unit.name}"),
        *([Column(_MEDIAN)] if stepped else []),
        Column(_EFF),
        Column(_COMPUTE),
        Column("exp. comm"),
        Column(_COPY),
        Column(_IDLE),
        *([Column("waited"), Column("made wait"), Column(_LAST)] if met else []),
        text("trust"),
    )
    rows = tuple(
        (
            row_name(row, device=by_device),
            unit.number(row.span_ns),
            *([unit.number(row.median_step_ns)] if stepped else []),
            bare_percent(row.efficiency_pct),
            *map(unit.number, _buckets(row)),
            *(_met(row, unit) if met else ()),
            row.trust,
        )
        for row in shown
    )
    return Table(EACH, columns, rows)


def _buckets(row: RankRow) -> tuple[int, ...]:
    parts = row.buckets
    return parts.compute_ns, parts.exposed_comm_ns, parts.exposed_copy_ns, parts.idle_ns


def _met(row: RankRow, unit: Unit) -> tuple[str, str, str]:
    last = NOTHING if row.last_in is None else f"{row.last_in:,} of {row.meetings:,}"
    return unit.number(row.waited_ns), unit.number(row.made_wait_ns), last


def _noted(note: str, left: int, noun: str) -> str:
    return f"{note} {plural(left, noun)} did so as well." if left > 0 else note
