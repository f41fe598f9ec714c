"""What a report of ranks consists of when it is shown: the answer, maps, tables, ranks worth a look, clocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from overlapscope.base.words import Unit, clean, listed, plural, unit_for
from overlapscope.documents.model import Block, Cards, Chart, Document, Heading, Items, Section, Text, panel
from overlapscope.ranks import charts, tables
from overlapscope.ranks.metrics import headlines, shown
from overlapscope.ranks.result import CauseTime, Excess, RanksReport, WorstRank
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


# -- ranks worth a look, each with what explains it --------------------------------------------------

_WHY: Final = {
    "makes-others-wait": "makes the others wait",
    "slowest-steps": "has the slowest steps",
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
    """What it has more of than the median rank; empty where there is nothing."""
    causes: str
    """What its exposed copies and idle time are due to; empty where it has none."""
    findings: tuple[str, ...]
    """Each with its rule and what it costs."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """What stands between the title and the findings."""
        return tuple(filter(None, (self.more, self.causes)))


def looks(report: RanksReport, *, most: int | None = None) -> tuple[Look, ...]:
    """In the report's order, up to `most`."""
    return tuple(_look(rank) for rank in report.worst[:most])


def _look(rank: WorstRank) -> Look:
    why = listed([_WHY[reason] for reason in rank.why])
    findings = tuple(f"{clean(finding.rule, 60)}: {clean(finding.title, 400)}" for finding in rank.findings)
    title = f"Rank {rank.rank} {why}"
    return Look(title, rank.source, rank.device, _more(rank.excess, rank.over), _causes(rank.top_causes), findings)


def _causes(causes: Sequence[CauseTime]) -> str:
    known = [cause for cause in causes if cause.time_ns]
    unit = unit_for(max((cause.time_ns for cause in known), default=0))
    told = [f"{_of(cause.subject, cause.cause)} {unit.text(cause.time_ns)}" for cause in known]
    return f"Over its whole window: {'; '.join(told)}." if told else ""


def _more(excess: Sequence[Excess], over: str) -> str:
    parts = [part for part in excess if part.more_ns > 0]
    if not parts:
        return ""
    unit = unit_for(max(part.more_ns for part in parts))
    told = [_excess(part, unit) for part in parts[:_EXCESSES]]
    of = "the same steps" if over == "steps" else "its window"
    return f"More than the median rank in {of}: {'; '.join(told)}."


def _excess(excess: Excess, unit: Unit) -> str:
    what = clean(excess.name, 60) if excess.kind == "bucket" else _of(excess.kind, excess.name)
    return f"{what} +{unit.text(excess.more_ns)} ({unit.number(excess.time_ns)} against {unit.text(excess.median_ns)})"


def _of(subject: str, cause: str) -> str:
    return f"{subject.replace('-', ' ')} by {clean(cause, 60)}"
