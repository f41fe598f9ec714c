"""The laboratory's report as one HTML file that needs nothing else: Plotly's bars, and timelines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby

from overlapscope.base.words import clean, unit_for
from overlapscope.laboratory.chart import HEIGHT
from overlapscope.laboratory.chart import bars as bars_chart
from overlapscope.laboratory.comparison import Comparison
from overlapscope.laboratory.results import Lane, Strip
from overlapscope.views.html import document
from overlapscope.views.html.document import Chart, Document
from overlapscope.views.html.parts import items, table
from overlapscope.views.laboratory.content import Bars, Chapter, Line, Overview, chapter, overview

LANE_COLORS = {"h2d": "h2d-pinned", "d2h": "d2h-pinned"}
"""The palette's names of a strip's lanes, where they differ."""
_CLASS = {"holds": "holds", "does not hold": "fails", "unknown": "unknown"}


def render(comparisons: Sequence[Comparison]) -> str:
    """The report as one document. Raises MissingPackage where Plotly is not installed."""
    document.require_plotly()
    chapters = [chapter(comparison) for comparison in comparisons]
    body = [*_overview(overview(comparisons)), *_contents(chapters)]
    charts: dict[str, Chart] = {}
    for number, one in enumerate(chapters):
        drawn = {f"plot-{number}-{place}": bars for place, bars in enumerate(_known(one.bars))}
        charts |= {name: Chart(*(bars_chart(bars, dark) for dark in (False, True))) for name, bars in drawn.items()}
        body += _chapter(one, number, list(drawn))
    return document.render(Document("Laboratory report", body, charts))


def _overview(shown: Overview) -> Iterator[str]:
    yield "<h1>Laboratory report</h1>"
    yield from (f"<p>{escape(machine)}</p>" for machine in shown.machines)
    yield f'<div class="panel">{table(shown.claims)}</div>'
    if shown.contradicted:
        yield f'<div class="panel"><h3>What does not hold, or cannot be told</h3>{claims(shown.contradicted)}</div>'
    if shown.troubles:
        yield f'<div class="panel"><h3>Not run to the end</h3>{items(shown.troubles)}</div>'


def _contents(chapters: Sequence[Chapter]) -> Iterator[str]:
    links = (f'<a href="#{_anchor(one, number)}">{escape(one.name)}</a>' for number, one in enumerate(chapters))
    yield f"<nav><p>{' · '.join(links)}</p></nav>"


def _anchor(shown: Chapter, number: int) -> str:
    return f"{re.sub(r'[^A-Za-z0-9_-]', '-', shown.name)}-{number}"


def _chapter(shown: Chapter, number: int, plots: Iterable[str]) -> Iterator[str]:
    yield f'<h2 id="{_anchor(shown, number)}">{escape(shown.title)}</h2>'
    yield f"<p>{escape(' '.join(shown.facts))}</p>"
    drawn = "".join(
        f'<div class="panel"><div class="plot" id="{name}" style="height:{HEIGHT}px"></div></div>' for name in plots
    )
    yield f'<div class="plots">{drawn}</div>'
    for one in shown.tables:
        yield f'<div class="panel"><h3>{escape(one.title)}</h3>{table(one)}</div>'
    if shown.strips:
        strips = "".join(_strip(name, strip) for name, strip in shown.strips)
        yield f'<div class="panel"><h3>Timelines</h3>{strips}</div>'
    if shown.verdicts:
        said = "".join(
            f'<li><span class="{escape(level)}">{escape(name)}</span> ({escape(level)}): {escape(text)}</li>'
            for name, level, text in shown.verdicts
        )
        yield f'<div class="panel"><h3>Verdicts</h3><ul>{said}</ul></div>'
    if shown.claims:
        yield f'<div class="panel"><h3>Claims</h3>{claims(shown.claims)}</div>'
    if shown.notes:
        yield f'<div class="note">{items(shown.notes)}</div>'


def claims(lines: Iterable[Line]) -> str:
    """Claims, each behind the word for how it stands."""
    said = (
        f'<li><span class="{_CLASS[line.standing]}">{escape(line.standing)}</span>: {escape(line.text)}</li>'
        for line in lines
    )
    return f"<ul>{''.join(said)}</ul>"


# -- pictures -------------------------------------------------------------------------------------


def _known(bars: Iterable[Bars]) -> Iterator[Bars]:
    """Those with anything to draw."""
    return (one for one in bars if any(value is not None for value in (*one.ours, *one.published)))


def _strip(name: str, strip: Strip) -> str:
    label = f"{name}{f', {clean(strip.label, 60)}' if strip.label else ''}"
    end = unit_for(strip.span_ns).text(strip.span_ns)
    return (
        f'<div class="strip"><strong>{escape(label)}</strong>{"".join(_lane(lane) for lane in strip.lanes)}'
        f'<div class="scale"><span>0</span><span>{escape(end)}</span></div></div>'
    )


def _lane(lane: Lane) -> str:
    name = escape(clean(lane.name, 8))
    color = f"var(--{LANE_COLORS.get(lane.name, lane.name)}, currentColor)"
    return (
        f'<div class="lane"><span>{name}</span><svg viewBox="0 0 {max(1, len(lane.fill))} 1" '
        f'preserveAspectRatio="none" shape-rendering="crispEdges" style="fill:{escape(color)}" role="img" '
        f'aria-label="{name}">{_rectangles(lane)}</svg></div>'
    )


def _rectangles(lane: Lane) -> str:
    """An SVG rectangle for each run of slices that are equally full; the fuller, the stronger."""
    rectangles = []
    at = 0
    for digit, run in groupby(lane.fill):
        width = len(list(run))
        if digit.isdecimal():
            opacity = (int(digit) + 1) / 10
            rectangles.append(f'<rect x="{at}" width="{width}" height="1" fill-opacity="{opacity}"/>')
        at += width
    return "".join(rectangles)
