"""What a report of ranks consists of when it is shown: the answer, maps, tables, ranks worth a look, clocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from overlapscope.base.words import clean, plural
from overlapscope.documents.model import Block, Cards, Chart, Document, Heading, Items, Section, Text, panel
from overlapscope.ranks import charts, tables
from overlapscope.ranks.looks import looks
from overlapscope.ranks.metrics import headlines, shown
from overlapscope.ranks.result import RanksReport
from overlapscope.ranks.verdict import capital, clocks, doubts, judge, step_note


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of a report is shown; the JSON has all."""

    rows: int = tables.FEW
    """Of a list."""
    each: int = tables.EVERY_RANK
    """Up to so many ranks have a row each, also where others are listed."""
    named: int = tables.NAMED
    """Ranks that are named in a cell."""
    looks: int | None = None
    """Ranks worth a look."""
    open: int | None = None
    """Tables that are not folded away."""


TERMINAL: Final = Extent(named=1, looks=4)
MARKDOWN: Final = Extent(open=2)
PAGE: Final = Extent(rows=10, each=2048)


def document(report: RanksReport, extent: Extent) -> Document:
    """The report from top to bottom."""
    title = f"overlapscope ranks: {_how_many(report)}"
    devices = sorted({clean(row.device_name, 60) for row in report.ranks if row.device_name})
    blocks: list[Block] = [Heading(", ".join((title, *devices[:3])), 1), _answer(report)]
    if doubted := doubts(report):
        blocks.append(panel("Mind this", Items(doubted, sign="!")))
    blocks += [*_charts(report), *_tables(report, extent), *_looks(report, extent.looks)]
    if report.ranks:
        blocks.append(panel("Clocks", Text("\n".join(clocks(report)), tone="muted")))
    return Document(title, tuple(blocks))


def _how_many(report: RanksReport) -> str:
    ranks = {row.rank for row in report.ranks} - {None}
    return plural(len(ranks), "rank") if ranks else plural(len({row.source for row in report.ranks}), "trace")


def _answer(report: RanksReport) -> Section:
    verdict = judge(report)
    blocks: list[Block] = [Text(verdict.first, badge=verdict.level)]
    if verdict.rest:
        blocks.append(Text("\n".join(verdict.rest)))
    if report.ranks:
        blocks.append(Cards(headlines(report)))
    return Section(tuple(blocks), kind="verdict")


def _charts(report: RanksReport) -> Iterator[Chart]:
    for number, metric in enumerate(shown(report)):
        drawn = partial(charts.rank_map, report, metric)
        yield Chart(f"ranks-{number}", capital(metric.title), drawn, note=metric.meaning)
    if steps := charts.drawn_steps(report):
        title, note = "Each step of each rank", step_note(report, len(steps))
        yield Chart("ranks-steps", title, partial(charts.step_map, report), note, wide=True)
    if charts.has_rank_buckets(report):
        title = "Where the time of each rank goes"
        yield Chart("ranks-buckets", title, partial(charts.rank_buckets, report), wide=True)


def _tables(report: RanksReport, extent: Extent) -> Iterator[Block]:
    found = tables.all_tables(report, rows=extent.rows, named=extent.named, each=extent.each)
    for number, table in enumerate(found):
        untitled = replace(table, title="")
        if table.id == tables.EACH and len(table.rows) > tables.EVERY_RANK:
            yield panel(table.title, Section((untitled,), f"All {len(table.rows):,}", folded=True))
        elif extent.open is not None and number >= extent.open:
            yield Section((untitled,), table.title, folded=True)
        else:
            yield table


def _looks(report: RanksReport, most: int | None) -> Iterator[Block]:
    found = looks(report, most=most)
    if found:
        yield Heading("Ranks worth a look")
    for look in found:
        said = [Text(sentence, tone="muted") for sentence in look.sentences]
        yield panel(look.title, *said, *([Items(look.findings, tone="muted")] if look.findings else []))
