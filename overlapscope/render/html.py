"""Documents as self-contained HTML files. Text from traces is escaped here and nowhere else.

A file loads nothing, and its policy forbids loading, so that it works in a mail or a build's artifacts. Plotly's 5 MB
are included compressed; the page unpacks them before it draws its charts.
"""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterable, Iterator
from functools import cache, singledispatch
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

from overlapscope.base.words import clean
from overlapscope.documents import model
from overlapscope.documents.colors import palette
from overlapscope.documents.model import Block, Document, Span, Words, pieces
from overlapscope.documents.table import Column, Table
from overlapscope.rules import RULES
from overlapscope.rules.explained import examples, explanation

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "form-action 'none'; base-uri 'none'"
)


def render(document: Document) -> str:
    """Return the text of the file."""
    all_blocks = list(_all(document.blocks))
    timelines = [block for block in all_blocks if isinstance(block, model.TimelineBlock)]
    charts = {
        block.id: (block.figure(False), block.figure(True)) for block in all_blocks if isinstance(block, model.Chart)
    }
    data: dict[str, Any] = {}
    """JSON values that scripts find by name: `overlapscope.data(name)`."""
    scripts, styles = [asset("page.js")], [theme_css(), asset("page.css")]
    if timelines:
        data["timelines"] = {timeline.id: timeline.data for timeline in timelines}
        data["palettes"] = [palette(False), palette(True)]
        scripts += [*timelines[0].scripts, asset("report.js")]
        styles += timelines[0].styles
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(clean(document.title, 200))}</title>",
        *(f"<style>{style}</style>" for style in styles),
        "</head><body>",
        '<button id="theme" type="button" title="Light or dark" hidden>◐<span class="sr">light or dark</span></button>',
        "<main>",
        *body(document.blocks),
        "</main>",
    ]
    if charts or data:
        parts.append(
            "<noscript><p>Charts and timelines need JavaScript; everything else is here without it.</p></noscript>"
        )
    if charts:
        data["charts"] = charts
        parts.append(f'<script type="text/plain" id="packed-plotly">{_packed_plotly()}</script>')
    for name, value in data.items():
        parts.append(f'<script type="text/plain" id="packed-{name}">{packed(value)}</script>')
    parts += [f"<script>{script}</script>" for script in scripts]
    return "\n".join([*parts, "</body></html>\n"])


def body(blocks: Iterable[Block]) -> Iterator[str]:
    """Yield blocks as HTML."""
    pending: list[model.Chart] = []
    for block in blocks:
        if isinstance(block, model.Chart):
            pending.append(block)
            continue
        yield from _plots(pending)
        pending = []
        yield from _draw(block)
    yield from _plots(pending)


def _all(blocks: Iterable[Block]) -> Iterator[Block]:
    for block in blocks:
        yield block
        if isinstance(block, model.Section):
            yield from _all(block.blocks)


def _attribute(name: str, *values: str) -> str:
    value = " ".join(filter(None, values))
    return f' {name}="{escape(value)}"' if value else ""


def _words(sentence: Words) -> str:
    return "".join(map(_piece, pieces(sentence)))


def _piece(piece: Span) -> str:
    text = "<br>".join(escape(clean(line)) for line in piece.text.split("\n"))
    if piece.code:
        text = f"<code>{text}</code>"
    if piece.strong:
        text = f"<b>{text}</b>"
    return f'<span class="{piece.tone}">{text}</span>' if piece.tone else text


@singledispatch
def _draw(block: Block) -> Iterator[str]:
    raise TypeError(type(block).__name__)


@_draw.register
def _(block: model.Heading) -> Iterator[str]:
    yield f"<h{block.level}{_attribute('class', block.tone)}>{escape(clean(block.text))}</h{block.level}>"


@_draw.register
def _(block: model.Text) -> Iterator[str]:
    badge = ""
    if block.badge:
        kind = _attribute("class", "level", block.tone or block.badge)
        badge = f"<span{kind}>{escape(block.badge.capitalize())}</span>"
    text = f"<b>{_words(block.words)}</b>" if block.strong else _words(block.words)
    yield f"<p{_attribute('class', '' if badge else block.tone)}>{badge}{text}</p>"


@_draw.register
def _(block: model.Items) -> Iterator[str]:
    items = "".join(f"<li>{_words(item)}</li>" for item in block.items)
    if items:
        yield f"<ul{_attribute('class', block.tone)}>{items}</ul>"


@_draw.register
def _(block: model.Code) -> Iterator[str]:
    caption = f"<figcaption>{escape(block.title)}</figcaption>" if block.title else ""
    yield f'<div class="code"><figure>{caption}<pre><code>{escape(block.text.strip())}</code></pre></figure></div>'


@_draw.register
def _(block: model.Links) -> Iterator[str]:
    links = (f'<a href="#{escape(id)}">{escape(clean(text))}</a>' for id, text in block.texts.items())
    yield f'<nav aria-label="Contents">{" ".join(links)}</nav>'


# -- Tables and figures ----------------------------------------------------------------------------


@_draw.register
def _(block: Table) -> Iterator[str]:
    if block.rows:
        yield _panel(block.title, _table(block)) if block.title else _table(block)


def _table(table: Table) -> str:
    table = table.read()
    classes = [_cell_class(column) for column in table.columns]
    titles = zip(classes, table.columns, strict=True)
    head = "".join(f"<th{_attribute('class', kind)}>{escape(clean(column.title))}</th>" for kind, column in titles)
    rows = []
    for number, row in enumerate(table.rows, 1):
        cells = "".join(
            f"<td{_attribute('class', kind, cell.tone)}>{escape(clean(cell.text))}</td>"
            for kind, cell in zip(classes, row.cells, strict=True)
        )
        rows.append(
            f"<tr{_attribute('class', 'total' if table.total and number == len(table.rows) else '')}>{cells}</tr>"
        )
    note = f'<p class="note">{escape(clean(table.note))}</p>' if table.note else ""
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>{note}'
    )


def _cell_class(column: Column) -> str:
    if column.number:
        return "number"
    return "prose" if column.prose else "flexible" if column.flexible else ""


def _plots(charts: list[model.Chart]) -> Iterator[str]:
    if not charts:
        return
    drawn = []
    for chart in charts:
        note = f'<p class="note">{escape(chart.note)}</p>' if chart.note else ""
        plot = f'<div class="plot" id="{escape(chart.id)}"></div>'
        drawn.append(_panel(chart.title, note, plot, kind="wide" if chart.wide else "") if chart.title else plot)
    yield f'<div class="plots">{"".join(drawn)}</div>'


@_draw.register
def _(block: model.Bar) -> Iterator[str]:
    drawn, key = [], []
    for part in block.parts:
        color = f"var(--{variable(part.color)})"
        title = escape(f"{part.name}: {part.text} ({part.share}%)")
        drawn.append(f'<span style="flex:{part.amount} 0 0;background:{color}" title="{title}"></span>')
        key.append(
            f'<li><i style="background:{color}"></i>{escape(part.name)} <b>{escape(part.text)}</b> '
            f'<span class="muted">{escape(part.share)}%</span></li>'
        )
    yield f'<div class="bar" aria-hidden="true">{"".join(drawn)}</div><ul class="key">{"".join(key)}</ul>'


@_draw.register
def _(block: model.StripBlock) -> Iterator[str]:
    drawn = block.draw(model.UNICODE)
    text = escape("\n".join(drawn.plain()))
    yield f'<figure class="strip"><figcaption>{escape(clean(drawn.title))}</figcaption><pre>{text}</pre></figure>'


@_draw.register
def _(block: model.TimelineBlock) -> Iterator[str]:
    yield f'<div class="panel timeline"><div class="mount" id="{escape(block.id)}"></div></div>'


# -- Groups of blocks ------------------------------------------------------------------------------


def _panel(title: str, *content: str, kind: str = "") -> str:
    """Return a box with a title."""
    head = f"<h3>{escape(clean(title))}</h3>" if title else ""
    return f"<section{_attribute('class', 'panel', kind)}>{head}{''.join(content)}</section>"


@_draw.register
def _(block: model.Section) -> Iterator[str]:
    inner = "".join(body(block.blocks))
    if block.folded:
        inner = f"<details><summary>{escape(clean(block.title))}</summary>{inner}</details>"
    title = "" if block.folded else block.title
    if block.kind in ("panel", "verdict"):
        yield _panel(title, inner, kind=" ".join(filter(None, (block.kind.replace("panel", ""), block.tone))))
    elif block.kind == "article":
        head = f"<h2>{escape(clean(title))}</h2>" if title else ""
        yield f"<article{_attribute('class', 'trace')}{_attribute('id', block.id)}>{head}{inner}</article>"
    else:
        head = f"<h3>{escape(clean(title))}</h3>" if title else ""
        yield f"{head}<div{_attribute('class', block.kind)}>{inner}</div>" if block.kind else f"{head}{inner}"


@_draw.register
def _(block: model.FindingBlock) -> Iterator[str]:
    saves = f"<b>{escape(block.cost)}</b>" if block.cost else '<span class="muted">costs nothing</span>'
    where = f'<span class="muted">{escape(block.where)}</span>' if block.where else ""
    advice = f"<p>{_words(block.advice)}</p>" if block.advice else ""
    proof = f"<p><code>{escape(clean(block.proof))}</code></p>" if block.proof else ""
    paragraphs: list[Words] = [*block.evidence, *([("At ", Span(block.place, code=True))] if block.place else [])]
    yield "".join(
        [
            f'<article class="panel finding {escape(block.severity)}"><header><h3>{escape(block.title)}</h3>',
            f'<p class="facts"><span class="rule">{escape(block.rule)}</span>',
            f'<span class="muted">{escape(block.severity)}</span>{saves}{where}{_button(block.example)}</p></header>',
            *(f"<p>{_words(paragraph)}</p>" for paragraph in paragraphs),
            f'<div class="advice">{advice}{proof}</div>' if advice or proof else "",
            *_programs(block),
            "</article>",
        ]
    )


def _button(example: model.Example | None) -> str:
    if example is None:
        return ""
    return (
        f'<button type="button" class="show" data-timeline="{escape(example.timeline)}" '
        f'data-view="{example.view_start_ns} {example.view_end_ns}" '
        f'data-example="{example.start_ns} {example.end_ns}">Show in the timeline</button>'
    )


def _programs(block: model.FindingBlock) -> Iterator[str]:
    """Yield the code before and after, folded; nothing for a rule of another version."""
    if block.rule not in RULES:
        return
    yield "<details><summary>PyTorch code before and after</summary>"
    yield f'<p class="muted">{escape(explanation(block.rule).meaning)}</p><div class="code">'
    for word, program in zip(("before", "after"), examples(block.rule), strict=True):
        yield f"<figure><figcaption>{word}</figcaption><pre><code>{escape(program.strip())}</code></pre></figure>"
    yield "</div></details>"


# -- Scripts, data and colors ----------------------------------------------------------------------


def asset(name: str) -> str:
    """Return the text of a file in `render/assets`."""
    return files("overlapscope").joinpath("render", "assets", name).read_text(encoding="utf-8")


def packed(value: Any) -> str:
    """Return a value as compressed JSON in base64, so that no name from a trace can end the script element."""
    return _pack(msgspec.json.encode(value))


def _pack(data: bytes) -> str:
    """Return compressed bytes in base64, the same on every day."""
    return base64.b64encode(gzip.compress(data, 9, mtime=0)).decode("ascii")


@cache
def _packed_plotly() -> str:
    from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    return _pack(script.encode())


@cache
def theme_css() -> str:
    """Return the palette as CSS variables for light and dark. A choice on the page overrides the system's."""
    light, dark = (
        "".join(f"--{variable(name)}:{color};" for name, color in palette(is_dark).items()) for is_dark in (False, True)
    )
    return (
        f":root{{color-scheme:light;{light}}}"
        f"@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}"
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{dark}}}}}"
    )


def variable(name: str) -> str:
    """Return the CSS variable for a name of the palette."""
    return name.replace(":", "-")
