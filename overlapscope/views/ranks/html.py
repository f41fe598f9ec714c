"""A report of ranks as one HTML file that needs nothing else: the answer, maps of all ranks, then the tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from overlapscope.base.words import clean, plural
from overlapscope.ranks.result import RanksReport
from overlapscope.views.charts.rank_buckets import rank_buckets
from overlapscope.views.charts.rank_maps import drawn_steps, rank_map, step_map
from overlapscope.views.html import document
from overlapscope.views.html.charts import Titled
from overlapscope.views.html.document import Chart, Document
from overlapscope.views.html.parts import items, level, panel, paragraphs, table
from overlapscope.views.ranks import tables
from overlapscope.views.ranks.headline import headlines
from overlapscope.views.ranks.metrics import shown
from overlapscope.views.ranks.words import capital, clocks, doubts, judge, step_note
from overlapscope.views.ranks.worst import looks

MOST_ROWS = 2048
"""Ranks that are listed one by one; the JSON has all."""
_LISTED = 10
_STYLE = (
    ".maps { grid-template-columns: repeat(auto-fit, minmax(min(100%, 34rem), 1fr)); } .wide { grid-column: 1 / -1; }"
    "td.flexible { min-width: 11rem; } summary { cursor: pointer; color: var(--accent); width: fit-content; }"
)


def render(report: RanksReport) -> str:
    """The report as one document. Raises MissingPackage where Plotly is not installed."""
    document.require_plotly()
    charts = {f"ranks-{number}": chart for number, chart in enumerate(_charts(report))}
    body = [*_head(report), *_plots(charts), *_tables(report), *_worst(report), *_each(report), *_clocks(report)]
    return document.render(
        Document(
            f"overlapscope ranks: {_how_many(report)}",
            body,
            charts={name: chart.titled.chart for name, chart in charts.items()},
            styles=[document.asset("report.css"), _STYLE],
        )
    )


def _head(report: RanksReport) -> Iterator[str]:
    verdict = judge(report)
    yield f'<header class="top"><p class="muted">overlapscope ranks</p><h1>{escape(_title(report))}</h1></header>'
    yield f'<div class="panel verdict"><p>{level(verdict.level)}<b>{escape(verdict.first)}</b> '
    yield f"{escape(' '.join(verdict.rest))}</p>{_figures(report)}</div>"
    minded = doubts(report)
    if minded:
        yield panel("Mind this", items(minded))


def _title(report: RanksReport) -> str:
    devices = sorted({clean(row.device_name, 60) for row in report.ranks if row.device_name})
    return ", ".join([_how_many(report), *devices[:3]])


def _how_many(report: RanksReport) -> str:
    ranks = {row.rank for row in report.ranks} - {None}
    return plural(len(ranks), "rank") if ranks else plural(len({row.source for row in report.ranks}), "trace")


def _figures(report: RanksReport) -> str:
    cards = "".join(
        f'<div title="{escape(one.meaning)}"><dt>{escape(one.name)}</dt>'
        f"<dd><b>{escape(one.value)}</b><span>{escape(one.beside)}</span></dd></div>"
        for one in headlines(report)
    )
    return f'<dl class="figures">{cards}</dl>' if report.ranks else ""


# -- charts ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Drawn:
    """A chart, and what stands above it."""

    titled: Titled
    note: str
    wide: bool = False


def _charts(report: RanksReport) -> Iterator[_Drawn]:
    for metric in shown(report):
        light, dark = (rank_map(report, metric, on_dark) for on_dark in (False, True))
        yield _Drawn(Titled(capital(metric.title), Chart(light, dark)), metric.meaning)
    steps = (step_map(report, False), step_map(report, True))
    if steps[0] is not None and steps[1] is not None:
        note = step_note(report, drawn_steps(report))
        yield _Drawn(Titled("Each step of each rank", Chart(steps[0], steps[1])), note, wide=True)
    buckets = (rank_buckets(report, False), rank_buckets(report, True))
    if buckets[0] is not None and buckets[1] is not None:
        yield _Drawn(Titled("Where the time of each rank goes", Chart(buckets[0], buckets[1])), "", wide=True)


def _plots(charts: dict[str, _Drawn]) -> Iterator[str]:
    plots = (
        panel(
            one.titled.title,
            f'<p class="note">{escape(one.note)}</p>' if one.note else "",
            f'<div class="plot" id="{name}" style="height:{one.titled.height}px"></div>',
            kind="wide" if one.wide else "",
        )
        for name, one in charts.items()
    )
    yield f'<div class="plots maps">{"".join(plots)}</div>' if charts else ""


# -- tables ---------------------------------------------------------------------------------------


def _tables(report: RanksReport) -> Iterator[str]:
    found = tables.all_tables(report, most=_LISTED)
    yield from (panel(one.title, table(one, tables.TRUST_TONES)) for one in found if one.title != tables.EACH)


def _worst(report: RanksReport) -> Iterator[str]:
    found = looks(report)
    if found:
        yield "<h2>Ranks worth a look</h2>"
    for look in found:
        said = [paragraphs(line) for line in (look.more, look.causes) if line]
        yield panel(look.title, *said, items(look.findings) if look.findings else "")


def _each(report: RanksReport) -> Iterator[str]:
    rows = tables.each(report, most=MOST_ROWS)
    if not rows.rows:
        return
    drawn = table(rows, tables.TRUST_TONES)
    if len(rows.rows) > tables.EVERY_RANK:
        drawn = f"<details><summary>All {len(rows.rows):,}</summary>{drawn}</details>"
    yield panel(rows.title, drawn)


def _clocks(report: RanksReport) -> Iterator[str]:
    if report.ranks:
        yield panel("Clocks", *(f"<p>{escape(sentence)}</p>" for sentence in clocks(report)))
