"""The laboratory's report as one HTML file that needs nothing else: Plotly's bars, and timelines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby
from typing import Any

import plotly.io
import plotly.offline

from overlapscope.laboratory.comparison import Comparison
from overlapscope.laboratory.results import Lane, Strip
from overlapscope.views.laboratory import Bars, Chapter, Line, Overview, chapter, overview
from overlapscope.views.tables import Column, Table
from overlapscope.views.words import clean, unit_for

_COLORS = {
    "compute": "#2e8b57",
    "comm": "#a347a3",
    "h2d": "#1d78c1",
    "d2h": "#d98a00",
    "other": "#6b6bd6",
    "idle": "#b9bec5",
}
_OURS, _PUBLISHED = "#1d78c1", "#b9bec5"
_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2024; background: #fff; max-width: 72rem; margin: 2rem auto;
  padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; } h2 { margin-top: 3rem; border-top: 1px solid #d8dce0; padding-top: 1.5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .8rem .15rem 0; text-align: left; white-space: nowrap; }
th { font-weight: 600; color: #5a6270; } th.number, td.number { text-align: right; }
.prose { white-space: normal; }
tbody tr { border-top: 1px solid #eceef0; }
ul { padding-left: 1.2rem; }
.holds, .good { color: #1a7340; font-weight: 600; } .fails, .poor { color: #b3261e; font-weight: 600; }
.unknown, .fair { color: #8a5a00; font-weight: 600; } .unusable { font-weight: 600; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)); gap: 1rem; }
.plot { min-width: 0; height: 20rem; }
.strip { margin: .6rem 0 1rem; } .lane { display: flex; align-items: center; gap: .6rem; }
.lane span { width: 4.5rem; color: #5a6270; font-size: .85rem; text-align: right; }
.lane svg { flex: 1; height: .95rem; background: #f4f5f6; margin: 1px 0; }
.scale { display: flex; justify-content: space-between; margin-left: 5.1rem; color: #5a6270; font-size: .85rem; }
.note { color: #5a6270; }
"""
_CLASS = {"holds": "holds", "does not hold": "fails", "unknown": "unknown"}


def render(comparisons: Sequence[Comparison]) -> str:
    """The report as one document. Nothing in it is loaded from elsewhere, and its policy forbids it."""
    chapters = [chapter(comparison) for comparison in comparisons]
    body = [*_overview(overview(comparisons)), *_contents(chapters)]
    for number, one in enumerate(chapters):
        body += _chapter(one, number)
    policy = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8"><title>Laboratory report</title>',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<style>{_STYLE}</style>",
            f"<script>{plotly.offline.get_plotlyjs()}</script></head><body>",
            *body,
            "</body></html>\n",
        ]
    )


def _overview(shown: Overview) -> Iterator[str]:
    yield "<h1>Laboratory report</h1>"
    yield from (f"<p>{escape(machine)}</p>" for machine in shown.machines)
    yield _table(shown.claims)
    if shown.contradicted:
        yield "<h3>What does not hold, or cannot be told</h3>"
        yield _claims(shown.contradicted)
    if shown.troubles:
        yield "<h3>Not run to the end</h3>"
        yield _items(shown.troubles)


def _contents(chapters: Sequence[Chapter]) -> Iterator[str]:
    links = (f'<a href="#{_anchor(one, number)}">{escape(one.name)}</a>' for number, one in enumerate(chapters))
    yield f"<p>{' · '.join(links)}</p>"


def _anchor(shown: Chapter, number: int) -> str:
    return f"{re.sub(r'[^A-Za-z0-9_-]', '-', shown.name)}-{number}"


def _chapter(shown: Chapter, number: int) -> Iterator[str]:
    yield f'<h2 id="{_anchor(shown, number)}">{escape(shown.title)}</h2>'
    yield f"<p>{escape(' '.join(shown.facts))}</p>"
    drawn = [bars for bars in shown.bars if any(one is not None for one in (*bars.ours, *bars.published))]
    plots = "".join(_plot(bars, f"plot-{number}-{place}") for place, bars in enumerate(drawn))
    yield f'<div class="plots">{plots}</div>'
    for table in shown.tables:
        yield f"<h3>{escape(table.title)}</h3>"
        yield _table(table)
    if shown.strips:
        yield "<h3>Timelines</h3>"
        yield from (_strip(name, strip) for name, strip in shown.strips)
    if shown.verdicts:
        yield "<h3>Verdicts</h3><ul>"
        yield from (
            f'<li><span class="{escape(level)}">{escape(name)}</span> ({escape(level)}): {escape(text)}</li>'
            for name, level, text in shown.verdicts
        )
        yield "</ul>"
    if shown.claims:
        yield "<h3>Claims</h3>"
        yield _claims(shown.claims)
    if shown.notes:
        yield f'<div class="note">{_items(shown.notes)}</div>'


def _claims(lines: Iterable[Line]) -> str:
    items = (
        f'<li><span class="{_CLASS[line.standing]}">{escape(line.standing)}</span>: {escape(line.text)}</li>'
        for line in lines
    )
    return f"<ul>{''.join(items)}</ul>"


def _items(texts: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def _table(table: Table) -> str:
    kinds = [_cell_class(column) for column in table.columns]
    head = "".join(f"<th{kind}>{escape(column.title)}</th>" for kind, column in zip(kinds, table.columns, strict=True))
    rows = "".join(
        f"<tr>{''.join(f'<td{kind}>{escape(cell)}</td>' for kind, cell in zip(kinds, row, strict=True))}</tr>"
        for row in table.rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _cell_class(column: Column) -> str:
    return ' class="number"' if column.number else ' class="prose"' if column.prose else ""


# -- pictures -------------------------------------------------------------------------------------


def _plot(bars: Bars, name: str) -> str:
    # Plotly takes text for a small markup of its own; escaped, it shows it as it is.
    labels = [escape(variant) for variant in bars.variants]
    half = [None if one is None else one / 2 for one in bars.spread]
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": "here",
            "x": labels,
            "y": bars.ours,
            "marker": {"color": _OURS},
            "error_y": {"type": "data", "array": half, "visible": any(half), "thickness": 1, "color": "#1c2024"},
        }
    ]
    if any(one is not None for one in bars.published):
        marker = {"color": _PUBLISHED}
        data.append({"type": "bar", "name": "published", "x": labels, "y": bars.published, "marker": marker})
    layout = {
        "title": {"text": escape(bars.title), "font": {"size": 14}, "x": 0},
        "margin": {"l": 50, "r": 10, "t": 40, "b": 40},
        "font": {"family": "system-ui, sans-serif", "size": 12},
        "xaxis": {"type": "category", "automargin": True},
        "yaxis": {"rangemode": "tozero", "gridcolor": "#eceef0"},
        "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1.02, "yanchor": "bottom"},
        "showlegend": True,
        "template": {},
    }
    drawn = plotly.io.to_html(
        {"data": data, "layout": layout},
        full_html=False,
        include_plotlyjs=False,
        div_id=name,
        config={"displayModeBar": False, "responsive": True},
    )
    return f'<div class="plot">{drawn}</div>'


def _strip(name: str, strip: Strip) -> str:
    label = f"{name}{f', {clean(strip.label, 60)}' if strip.label else ''}"
    end = unit_for(strip.span_ns).text(strip.span_ns)
    return (
        f'<div class="strip"><strong>{escape(label)}</strong>{"".join(_lane(lane) for lane in strip.lanes)}'
        f'<div class="scale"><span>0</span><span>{escape(end)}</span></div></div>'
    )


def _lane(lane: Lane) -> str:
    """A rectangle for each run of slices that are equally full; the fuller, the darker."""
    rectangles = []
    at = 0
    for digit, run in groupby(lane.fill):
        width = len(list(run))
        if digit.isdecimal():
            rectangles.append(f'<rect x="{at}" width="{width}" height="1" fill-opacity="{(int(digit) + 1) / 10}"/>')
        at += width
    name = escape(clean(lane.name, 8))
    color = _COLORS.get(lane.name, "#1c2024")
    return (
        f'<div class="lane"><span>{name}</span><svg viewBox="0 0 {max(1, at)} 1" preserveAspectRatio="none" '
        f'shape-rendering="crispEdges" fill="{color}" role="img" aria-label="{name}">{"".join(rectangles)}</svg></div>'
    )
