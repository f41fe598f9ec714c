"""Document of a report of ranks: the verdict, maps, tables, ranks worth a look, and clocks.

However many ranks there are, a table has a few rows: the worst ranks, and how the others spread. The JSON has all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from overlapscope.base.words import (
    NOTHING,
    Unit,
    bare_percent,
    bare_share,
    capital,
    clean,
    clean_lines,
    listed,
    plural,
    unit_for,
)
from overlapscope.catalog.buckets import figure_name
from overlapscope.documents import columns as column
from overlapscope.documents.model import (
    Block,
    Chart,
    Document,
    Heading,
    Items,
    Section,
    Span,
    Text,
    detail,
    panel,
    with_code,
)
from overlapscope.documents.table import Cell, Column, Table, Tone, table_of, words
from overlapscope.ranks import charts
from overlapscope.ranks.comm_words import NAME_LIMIT, collective, dimensions_table, groups_table, meeting_name
from overlapscope.ranks.parts import plugin_parts
from overlapscope.ranks.result import RankRow, RankSpread, RanksReport, Straggler, Waiting, WorstRank, by_steps, rows_of
from overlapscope.ranks.verdict import clocks as sentences_on_clocks
from overlapscope.ranks.verdict import doubts, judge, late_name, row_name, runs, unit_of
from overlapscope.rules.finding import Finding

FEW, NAMED = 5, 3
"""Default maximum number of rows of a list, and of ranks named in a cell."""
MAX_RANK_ROWS = 16
"""Maximum number of ranks with a row each, even where other tables are cut."""
EACH_RANK, MEETINGS = "each", "meetings"
"""Ids of the tables of each rank, and of single collectives."""
_QUARTILES_FROM = 8
"""Minimum number of ranks for which quartiles are shown besides the extremes."""
_WAITS_LONGEST: Final = Column("longest waits", number=False, flexible=True, spare=1)
_TRUST: Final[dict[str, Tone]] = {"degraded": "fair", "unusable": "poor"}


def main_tables(report: RanksReport, *, rows: int = FEW, named: int = NAMED) -> list[Table]:
    """Return the main tables: who delays the others, and a comparison of the ranks, each or in quantiles.

    Lists have up to `rows` rows, cells up to `named` ranks.
    """
    beside = each_rank(report) if len(report.ranks) <= MAX_RANK_ROWS else spreads(report)
    return [table for table in (stragglers(report, rows=rows, named=named), beside) if table.rows]


def other_tables(
    report: RanksReport, *, rows: int = FEW, named: int = NAMED, each: int = MAX_RANK_ROWS
) -> list[tuple[str, Table]]:
    """Return the other tables, each with a short title; up to `each` ranks have a row each."""
    few, all_listed = len(report.ranks) <= MAX_RANK_ROWS, len(report.ranks) <= each
    of_parts = [each for module, part in plugin_parts(report) for each in module.tables(report, part, rows=rows)]
    others = [
        *((each.what, each.table) for each in of_parts if each.leads),
        ("communication by dimension", replace(dimensions_table(report, rows=rows), id="dimensions")),
        ("communication by process group", replace(groups_table(report, rows=rows), id="communication")),
        *((each.what, each.table) for each in of_parts if not each.leads),
        ("collectives", replace(meetings(report, rows=rows, named=named), id=MEETINGS)),
        ("steps", steps(report, rows=rows)),
        *([("how the ranks differ", spreads(report))] if few else []),
        *([("each rank", each_rank(report))] if all_listed and not few else []),
    ]
    return [(what, table) for what, table in others if table.rows]


# -- Waiting ---------------------------------------------------------------------------------------


def stragglers(report: RanksReport, *, rows: int, named: int = NAMED) -> Table:
    """Return the table of ranks that make the others wait, and in which collectives."""
    stragglers = [late for late in report.stragglers if late.sure_pct]
    by_step = all(late.lost_per_step_ns is not None for late in stragglers)
    passed = any(late.passed_on_ns for late in stragglers)

    def name(late: Straggler) -> Cell:
        devices = {row.device for row in report.ranks if row.rank == late.rank}
        return Cell(f"{late.rank}, device {late.device}" if len(devices) > 1 else str(late.rank))

    def mostly(late: Straggler) -> Cell:
        if not late.collectives:
            return Cell(NOTHING)
        return Cell(f"{collective(report, late.collectives[0])} ({plural(late.collectives[0].count, 'time')})")

    def lost_ns(late: Straggler) -> int:
        return late.lost_per_step_ns if by_step and late.lost_per_step_ns is not None else late.lost_ns

    unit = unit_for(max(map(lost_ns, stragglers), default=0))
    total = unit_for(max((late.made_wait_ns for late in stragglers), default=0))
    table = table_of(
        stragglers[:rows],
        (words("rank"), name),
        (Column(f"delay {'a step ' if by_step else ''}{unit.name}"), lambda late: Cell(unit.number(lost_ns(late)))),
        (Column("%"), lambda late: Cell(bare_percent(late.lost_pct))),
        (Column(f"total wait {total.name}"), lambda late: Cell(total.number(late.made_wait_ns))),
        (Column("passed on"), lambda late: Cell(total.number(late.passed_on_ns))) if passed else None,
        (Column("came last", spare=2), lambda late: Cell(f"{late.last_in:,} of {late.meetings:,}")),
        (Column("mostly in", number=False, flexible=True, spare=3), mostly),
        (_WAITS_LONGEST, lambda late: Cell(_waiting(late.waiting, late.waiting_ranks, named))),
        title="Ranks that delay the others",
    )
    note = (
        "Delay: mean wait of each other rank's compute; a fix saves no more. Total wait: of all others "
        "together. Waits within the error of arrivals are ignored."
    )
    if passed:
        note += " Passed on: time that the rank itself had waited for others; it is not part of the delay."
    if len(stragglers) > rows:
        note += f" {plural(len(stragglers) - rows, 'more rank')} also delayed others."
    return replace(table, note=note, id="stragglers")


def _waiting(waiting: Sequence[Waiting], ranks: int, most: int) -> str:
    """Return the ranks that waited longest, each with its time."""
    unit = unit_for(max((rank.waited_ns for rank in waiting), default=0))
    named = [f"{rank.rank} ({unit.text(rank.waited_ns)})" for rank in waiting[:most]]
    others = ranks - len(named)
    return ", ".join([*named, *([f"{others:,} more"] if others > 0 else [])]) or NOTHING


def meetings(report: RanksReport, *, rows: int, named: int = NAMED) -> Table:
    """Return the table of single collectives with the longest waits."""
    meetings = report.meetings
    unit = unit_for(max((meeting.late_ns for meeting in meetings), default=0))
    total = unit_for(max((meeting.waited_ns for meeting in meetings), default=0))
    stepped = Column("step", number=False, flexible=True, spare=2) if any(met.step for met in meetings) else None
    return table_of(
        meetings[:rows],
        (words("collective", flexible=True), lambda meeting: Cell(meeting_name(report, meeting))),
        (stepped, lambda meeting: Cell(clean(meeting.step or NOTHING, NAME_LIMIT))) if stepped else None,
        (words("came last"), lambda meeting: Cell(late_name(meeting))),
        (Column(f"late by {unit.name}"), lambda meeting: Cell(unit.number(meeting.late_ns))),
        (Column(f"total wait {total.name}"), lambda meeting: Cell(total.number(meeting.waited_ns))),
        (Column("exposed"), lambda meeting: Cell(total.number(meeting.waited_exposed_ns))),
        (_WAITS_LONGEST, lambda meeting: Cell(_waiting(meeting.waiting, meeting.waiting_ranks, named))),
        title="Costliest collectives",
    )


# -- Differences -----------------------------------------------------------------------------------


def steps(report: RanksReport, *, rows: int) -> Table:
    """Return the table of steps over all ranks; of many steps, those with the largest spread."""
    steps = [step for step in report.steps if step.ranks > 1]
    shown = steps
    if len(steps) > 2 * rows:
        widest = sorted(range(len(steps)), key=lambda number: (-steps[number].spread_ns, number))[:rows]
        shown = [steps[number] for number in sorted(widest)]
    unit = unit_of(report)
    table = table_of(
        shown,
        (words("step", flexible=True), lambda step: Cell(clean(step.name, NAME_LIMIT))),
        (Column(f"median {unit.name}"), lambda step: Cell(unit.number(step.median_ns))),
        (Column("fastest"), lambda step: Cell(unit.number(step.min_ns))),
        (words("rank"), lambda step: Cell(str(step.fastest_rank))),
        (Column("slowest"), lambda step: Cell(unit.number(step.max_ns))),
        (words("rank"), lambda step: Cell(str(step.slowest_rank))),
        (Column("spread", spare=2), lambda step: Cell(unit.number(step.spread_ns))),
        (Column("%"), lambda step: Cell(bare_share(step.spread_ns, step.median_ns))),
        (Column("ranks", spare=1), lambda step: Cell(f"{step.ranks:,}")),
        title="Steps that differ most between ranks",
    )
    others = len(steps) - len(shown)
    return replace(table, note=f"The {others:,} other steps differ less." if others else "")


def spreads(report: RanksReport) -> Table:
    """Return the table of figures over all ranks."""
    spreads = [spread for spread in report.spreads if spread.ranks > 1 and spread.max]
    quantiles = any(spread.ranks >= _QUARTILES_FROM for spread in spreads)

    def unit(spread: RankSpread) -> Unit:
        return unit_for(round(spread.max))

    def name(spread: RankSpread) -> Cell:
        return Cell(f"{figure_name(spread.name)} {'%' if spread.unit == 'pct' else unit(spread).name}")

    def value(of: Callable[[RankSpread], float]) -> Callable[[RankSpread], Cell]:
        return lambda spread: Cell(
            bare_percent(of(spread)) if spread.unit == "pct" else unit(spread).number(round(of(spread)))
        )

    return table_of(
        spreads,
        (words("figure"), name),
        (Column("least"), value(lambda spread: spread.min)),
        (words("rank"), lambda spread: Cell(str(spread.min_rank))),
        (Column("25%", spare=2), value(lambda spread: spread.p25)) if quantiles else None,
        (Column("median"), value(lambda spread: spread.median)),
        (Column("75%", spare=1), value(lambda spread: spread.p75)) if quantiles else None,
        (Column("95%"), value(lambda spread: spread.p95)) if quantiles else None,
        (Column("most"), value(lambda spread: spread.max)),
        (words("rank"), lambda spread: Cell(str(spread.max_rank))),
        title="How the ranks differ",
    )


# -- Each rank -------------------------------------------------------------------------------------


def each_rank(report: RanksReport) -> Table:
    """Return the table with a row for each rank."""
    rows = rows_of(report)
    unit = unit_for(max((row.span_ns for row in rows), default=0))
    devices, stepped = Counter((row.rank, row.source) for row in rows), by_steps(rows)
    total = "total " if stepped and not report.met_steps else ""
    met, ranked = any(row.meetings for row in rows), any(row.joined for row in rows)
    twice = ranked and any(not row.joined for row in rows)

    def name(row: RankRow) -> str:
        return row_name(row, device=devices[row.rank, row.source] > 1)

    def rank(row: RankRow) -> Cell:
        return Cell(name(row), name(row) if row.rank is None else row.rank)

    def last_in(row: RankRow) -> Cell:
        return Cell(NOTHING if row.last_in is None else f"{row.last_in:,} of {row.meetings:,}", row.last_in)

    width = min(260, 60 + 8 * max((len(name(row)) for row in rows), default=0))
    time = partial(column.time, unit=unit)
    last = Column("came last", id="last", long="came last, collectives", spare=3)
    made = f"{total}made wait"
    table = table_of(
        rows,
        (Column("rank", number=False, flexible=True, id="rank", long="" if ranked else "trace", width=width), rank),
        time(f"{total}delay of others", id="delay", say=lambda row: row.lost_ns, extra=True) if met else None,
        time("step" if stepped else "time", id="step", say=lambda row: row.span_ns),
        column.percent("eff. %", lambda row: row.efficiency_pct, id="efficiency", long="efficiency, %", spare=5),
        time("compute", short="compute", say=lambda row: row.buckets.compute_ns, spare=2),
        time("exposed comm", short="exp. comm", id="comm", say=lambda row: row.buckets.exposed_comm_ns),
        column.percent("exposed comm, %", lambda row: row.exposed_comm_pct, id="share", extra=True),
        time("exposed copy", short="exp. copy", id="copy", say=lambda row: row.buckets.exposed_copy_ns, spare=1),
        time("idle", short="idle", say=lambda row: row.buckets.idle_ns, spare=6),
        time(f"{total}waited", short=f"{total}waited", id="waited", say=lambda row: row.waited_ns) if met else None,
        time(f"{total}made others wait", short=made, id="made", say=lambda row: row.made_wait_ns) if met else None,
        (last, last_in) if met else None,
        column.time("clock offset", unit_for(0), lambda row: row.clock_offset_ns, id="offset", extra=True)
        if met
        else None,
        column.text("trust", lambda row: row.trust, tone=lambda row: _TRUST.get(row.trust, "")),
        column.text("compared", lambda row: "yes" if row.joined else "no", id="joined", when=twice, extra=True),
        title="Each rank",
    )
    return replace(table, id=EACH_RANK, note="An average step of each rank, as recorded." if stepped else "")


_MAX_FINDINGS: Final = 3
MAPS: Final = tuple(f"ranks-{number}" for number in range(len(charts.METRICS)))
"""Ids of the maps of ranks, which have several lines."""
STEPS, BUCKETS = "ranks-steps", "ranks-buckets"
"""Ids of charts with all ranks in one line."""


class Extent(Struct, frozen=True):
    """Extent of a shown report. The JSON has everything."""

    rows: int = FEW
    """Maximum number of rows of a list."""
    each: int = MAX_RANK_ROWS
    """Maximum number of ranks with a row each, even where other tables are cut."""
    named: int = NAMED
    """Maximum number of ranks named in a cell."""
    looks: int | None = None
    """Maximum number of ranks worth a look; None for all."""
    folded: bool = False
    """True if all tables except the main ones are folded."""


TERMINAL: Final = Extent(named=1, looks=4)
MARKDOWN: Final = Extent(folded=True)
PAGE: Final = Extent(rows=10, each=2048)


def document(report: RanksReport, extent: Extent) -> Document:
    """Return the document of a report."""
    ranks = {row.rank for row in report.ranks} - {None}
    sources = {row.source for row in report.ranks}
    title = f"overlapscope ranks: {plural(len(ranks), 'rank') if ranks else plural(len(sources), 'trace')}"
    devices = sorted({clean(row.device_name, 60) for row in report.ranks if row.device_name})
    blocks: list[Block] = [Heading(", ".join((title, *devices[:3])), 1), *head(report)]
    blocks += [*maps(report), *main_tables(report, rows=extent.rows, named=extent.named), *findings(report)]
    blocks += _further(report, extent)
    blocks += detail("the ranks that stand out", stand_outs(report, extent.looks))
    blocks += detail("clocks", clocks(report))
    return Document(title, tuple(blocks))


def clocks(report: RanksReport) -> Iterator[Block]:
    """Yield the panel on the clocks."""
    if report.ranks:
        yield panel("Clocks", Text("\n".join(sentences_on_clocks(report)), tone="muted"))


def head(report: RanksReport) -> Iterator[Block]:
    """Yield the answer, and warnings."""
    verdict = judge(report)
    blocks: list[Block] = [Text(verdict.lead, badge=verdict.level)]
    if verdict.rest:
        blocks.append(Text("\n".join(verdict.rest)))
    yield Section(tuple(blocks), kind="verdict", id="ranks")
    if doubted := doubts(report):
        yield panel("Warnings", Items(doubted, sign="!"))


def maps(report: RanksReport) -> Iterator[Chart]:
    """Yield the charts, all of whose points are ranks."""
    for id, metric in zip(MAPS, charts.metrics_shown(report), strict=False):
        yield Chart(id, capital(metric.title), partial(charts.rank_map, report, metric), note=metric.meaning)
    if steps := charts.drawn_steps(report):
        title, note = "Each step of each rank", charts.step_note(report, len(steps))
        yield Chart(STEPS, title, partial(charts.step_map, report), note, wide=True)
    if charts.has_rank_buckets(report):
        yield Chart(BUCKETS, "Where the time of each rank goes", partial(charts.rank_buckets, report), wide=True)


def _further(report: RanksReport, extent: Extent) -> Iterator[Block]:
    for what, table in other_tables(report, rows=extent.rows, named=extent.named, each=extent.each):
        untitled = replace(table, title="")
        if table.id == EACH_RANK:
            block: Block = panel(table.title, Section((untitled,), f"All {len(table.rows):,}", folded=True))
        else:
            block = Section((untitled,), table.title, folded=True) if extent.folded else table
        yield from detail(what, [block])


def findings(report: RanksReport) -> Iterator[Block]:
    """Yield the findings on the ranks that stand out: each rule once, with its ranks."""
    by_rule: defaultdict[str, list[Finding]] = defaultdict(list)
    for rank in report.worst:
        for finding in rank.findings:
            by_rule[finding.rule].append(finding)
    costliest = {rule: max(findings, key=lambda finding: finding.cost_ns) for rule, findings in by_rule.items()}
    items = []
    for rule, worst in sorted(costliest.items(), key=lambda item: -item[1].cost_ns):
        ranks = sorted({finding.rank for finding in by_rule[rule] if finding.rank is not None})
        of = f"{'ranks' if len(ranks) > 1 else 'rank'} {runs(ranks)}"
        most = f"; figures of rank {worst.rank}" if len(ranks) > 1 else ""
        advice = clean_lines(worst.advice, 400).partition("\n")[0]
        head = Span(f"{clean(rule, 60)} ({of}{most})", strong=True)
        items.append((head, f": {clean(worst.title, 400)}\n", Span(advice, "accent")))
    if items:
        how = Text(with_code("`overlapscope explain RULE` says how to fix each."), "muted")
        yield panel("Findings", Items(tuple(items[:_MAX_FINDINGS])), how)


# -- Ranks worth a look, each with an explanation --------------------------------------------------

_WHY: Final = {
    "makes-others-wait": "delays the others",
    "slowest-steps": "has the slowest steps",
    "least-efficient": "has the least overlap",
}
_MAX_EXCESSES = 4


def stand_outs(report: RanksReport, most: int | None = None) -> Iterator[Block]:
    """Yield a panel for each rank that stands out, below a heading."""
    for number, rank in enumerate(report.worst[:most]):
        if not number:
            yield Heading("Ranks that stand out")
        yield panel(look_title(rank), *(Text(line, tone="muted") for line in look_sentences(rank)))


def look_title(rank: WorstRank) -> str:
    """Return the title of a rank worth a look, such as `Rank 5 delays the others`."""
    return f"Rank {rank.rank} {listed([_WHY[reason] for reason in rank.why])}"


def look_sentences(rank: WorstRank) -> Iterator[str]:
    """Yield the time that it spends beyond the median rank, and causes of its exposed copies and idle time."""
    if longer := [part for part in rank.excess if part.more_ns > 0]:
        unit = unit_for(max(part.more_ns for part in longer))
        times = (
            f"{figure_name(clean(part.name, 60)) if part.kind == 'bucket' else _cause_name(part.kind, part.name)} "
            f"+{unit.text(part.more_ns)} ({unit.number(part.time_ns)} against {unit.text(part.median_ns)})"
            for part in longer[:_MAX_EXCESSES]
        )
        of = "a step" if rank.over == "steps" else "the recording"
        yield f"Takes longer than the median rank in {of}: {'; '.join(times)}."
    if lasting := [cause for cause in rank.top_causes if cause.time_ns]:
        unit = unit_for(max(cause.time_ns for cause in lasting))
        times = (f"{_cause_name(cause.subject, cause.cause)} {unit.text(cause.time_ns)}" for cause in lasting)
        yield f"Why its GPU waits: {'; '.join(times)}."


def _cause_name(subject: str, cause: str) -> str:
    return f"{subject.replace('-', ' ')} by {clean(cause, 60)}"
