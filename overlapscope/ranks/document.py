"""Document of a report of ranks: the verdict, maps, tables, ranks worth a look, and clocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from overlapscope.base.words import capital, clean, clean_lines, listed, plural, unit_for
from overlapscope.catalog.buckets import figure_name
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
from overlapscope.ranks import charts, tables
from overlapscope.ranks.result import RanksReport, WorstRank
from overlapscope.ranks.verdict import clocks as sentences_on_clocks
from overlapscope.ranks.verdict import doubts, judge, runs
from overlapscope.rules.finding import Finding

_MOST_FINDINGS: Final = 3
MAPS: Final = tuple(f"ranks-{number}" for number in range(len(charts.METRICS)))
"""Ids of the maps of ranks, which have several lines."""
STEPS, BUCKETS = "ranks-steps", "ranks-buckets"
"""Ids of charts with all ranks in one line."""


class Extent(Struct, frozen=True):
    """Extent of a shown report. The JSON has everything."""

    rows: int = tables.FEW
    """Maximum number of rows of a list."""
    each: int = tables.MOST_RANK_ROWS
    """Maximum number of ranks with a row each, even where other tables are cut."""
    named: int = tables.NAMED
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
    blocks += [*maps(report), *tables.main_tables(report, rows=extent.rows, named=extent.named), *findings(report)]
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
    for what, table in tables.other_tables(report, rows=extent.rows, named=extent.named, each=extent.each):
        untitled = replace(table, title="")
        if table.id == tables.EACH_RANK:
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
        yield panel("Findings", Items(tuple(items[:_MOST_FINDINGS])), how)


# -- Ranks worth a look, each with an explanation --------------------------------------------------

_WHY: Final = {
    "makes-others-wait": "delays the others",
    "slowest-steps": "has the slowest steps",
    "least-efficient": "has the least overlap",
}
_EXCESSES = 4


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
            for part in longer[:_EXCESSES]
        )
        of = "a step" if rank.over == "steps" else "the recording"
        yield f"Takes longer than the median rank in {of}: {'; '.join(times)}."
    if lasting := [cause for cause in rank.top_causes if cause.time_ns]:
        unit = unit_for(max(cause.time_ns for cause in lasting))
        times = (f"{_cause_name(cause.subject, cause.cause)} {unit.text(cause.time_ns)}" for cause in lasting)
        yield f"Why its GPU waits: {'; '.join(times)}."


def _cause_name(subject: str, cause: str) -> str:
    return f"{subject.replace('-', ' ')} by {clean(cause, 60)}"
