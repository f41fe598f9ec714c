"""Documents as Dash components, and tables that can be sorted."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import singledispatch
from typing import Any

import dash_ag_grid as dag
import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from overlapscope.documents import model
from overlapscope.documents.colors import PATTERNS, Pattern, palette
from overlapscope.documents.figure import legible
from overlapscope.documents.model import Block, Figure, Words
from overlapscope.documents.table import Cell, Column, Table
from overlapscope.rules import RULES
from overlapscope.rules.explained import examples, explanation
from overlapscope.rules.rule import Rule

TALLEST_GRID = 12
"""Rows of a grid without a scroll bar."""
_NAME_WIDTH = 120
"""Minimum width of a column of names, in CSS pixels."""
_COLUMN_WIDTH_PX = 92
"""Default width of a column in a grid, in CSS pixels."""
_PINNED = {"position": "sticky", "right": 0, "whiteSpace": "nowrap", "backgroundColor": "var(--mantine-color-body)"}
"""Style of links, which stay visible if the table is wider than its panel."""
_BOLD = {"fontWeight": 700}
_SEVERITY = {"error": ("✕", "poor"), "warning": ("!", "fair"), "info": ("i", "good")}
_KINDS = model.Chart, model.FindingBlock
"""Blocks that are drawn together if they follow each other."""

_UNREAD: Any = {"aria-hidden": "true"}
"""Attributes of a sign that repeats the word beside it."""
_SIGNS = {"good": "✓", "fair": "!", "poor": "✕", "recorded": "●"}
"""Signs of answers, by their level or tone."""


Drawn = Block | Component
"""Content of a page."""


def draw(blocks: Iterable[Drawn], dark: bool) -> list[Component]:
    """Return the components of blocks. Successive charts stand side by side, successive findings fold together."""
    drawn: list[Component] = []
    for kind, group in itertools.groupby(blocks, lambda block: type(block) if isinstance(block, _KINDS) else None):
        if kind is model.FindingBlock:
            drawn.append(findings([block for block in group if isinstance(block, model.FindingBlock)], dark))
            continue
        components = [block if isinstance(block, Component) else _draw(block, dark) for block in group]
        several = kind is model.Chart and len(components) > 1
        drawn += [dmc.SimpleGrid(components, cols={"base": 1, "lg": 2})] if several else components
    return drawn


def words(sentence: Words, dark: bool) -> list[Component | str]:
    """Return the components of a sentence. Backticks in a plain sentence mark code."""
    spans = model.pieces(model.with_code(sentence) if isinstance(sentence, str) else sentence)
    return [_span(piece, palette(dark)) for piece in spans]


def _span(piece: model.Span, colors: Mapping[str, str]) -> Component | str:
    if piece.code:
        return dmc.Code(piece.text)
    style = _tone(piece.tone, colors) | (_BOLD if piece.strong else {})
    return html.Span(piece.text, style=style) if style else piece.text


def _tone(tone: str, colors: Mapping[str, str]) -> dict[str, Any]:
    return {"color": colors[tone]} if tone else {}


@singledispatch
def _draw(block: Block, dark: bool) -> Component:
    """Return an empty element for blocks that only files or a terminal can show, such as links within them."""
    return html.Div()


@_draw.register
def _(block: model.Heading, dark: bool) -> Component:
    return dmc.Title(block.text, order=block.level + 1)


@_draw.register
def _(block: model.Text, dark: bool) -> Component:
    colors = palette(dark)
    if block.badge:
        tone = {"color": colors.get(block.tone or block.badge, colors["muted"])}
        badge = html.Span(block.badge.capitalize(), style=_BOLD | tone)
        return dmc.Text([badge, ". ", *words(block.words, dark)], className="prose")
    style = _tone(block.tone, colors) | (_BOLD if block.strong else {})
    return dmc.Text(words(block.words, dark), size="sm", className="prose", style=style)


@_draw.register
def _(block: model.Items, dark: bool) -> Component:
    items = [dmc.ListItem(words(item, dark)) for item in block.items]
    return dmc.List(items, size="sm", style=_tone(block.tone, palette(dark)))


@_draw.register
def _(block: model.Code, dark: bool) -> Component:
    code = dmc.CodeHighlight(code=block.text.strip("\n"), language="python")
    return html.Div([dmc.Text(block.title, c="dimmed", size="sm"), code], style={"minWidth": 0})


@_draw.register
def _(block: model.Section, dark: bool) -> Component:
    inner = draw(block.blocks, dark)
    if block.kind == "columns" and all(isinstance(part, Table) for part in block.blocks):
        return dmc.Group(inner, align="start", gap="xl")
    if block.kind == "columns":
        return dmc.SimpleGrid(inner, cols={"base": 1, "lg": 2}, spacing="md")
    if block.folded:
        return html.Details([html.Summary(block.title), *inner], className="folded")
    if block.kind == "verdict":
        return _answer(block, dark)
    if block.kind == "panel":
        return panel(block.title, *inner, id=block.id, style=_tone(block.tone, palette(dark)))
    title = [dmc.Text(block.title, fw=600, size="sm")] if block.title else []
    return dmc.Stack([*title, *inner], gap="sm")


def panel(
    title: str, *children: Component, note: str = "", beside: Component | None = None, id: str = "", **of_title: Any
) -> Component:
    """Return a box with a title. `note` explains it, and `beside` is at the right of the title."""
    head = [dmc.Title(title, order=3, size="h4", **of_title), *([beside] if beside is not None else [])]
    notes = [dmc.Text(note, c="dimmed", size="sm")] if note else []
    group = dmc.Group(head, justify="space-between", wrap="nowrap")
    return dmc.Paper([group, *notes, *children], withBorder=True, p="md", **named(id))


def _answer(block: model.Section, dark: bool) -> Component:
    """Return an answer: its level with a sign and its subject, then its first sentence in large letters."""
    lead, *more = block.blocks
    assert isinstance(lead, model.Text)
    colors, tone = palette(dark), lead.tone or lead.badge
    color = colors.get(tone, colors["muted"])
    level = [
        html.Span(_SIGNS.get(tone, "?"), **_UNREAD),
        html.Span(lead.badge, **named(block.id and f"{block.id}-level")),
    ]
    subject = dmc.Text(block.title, c="dimmed", size="sm", truncate="end")
    head = dmc.Group([*(level if lead.badge else []), subject], gap=8, wrap="nowrap", style={"color": color} | _BOLD)
    sentence = dmc.Text(words(lead.words, dark), fz=20, fw=600, lh=1.3, **named(block.id and f"{block.id}-text"))
    shown = dmc.Stack([head, sentence, *draw(more, dark)], gap=4)
    border = {"borderLeft": f"6px solid {color}"}
    return dmc.Paper(shown, withBorder=True, px="md", py=8, style=border, **named(block.id))


@_draw.register
def _(block: model.Bar, dark: bool) -> Component:
    shares = ", ".join(f"{part.name} {part.share}%" for part in block.parts if part.amount)
    colors = palette(dark)
    label: dict[str, Any] = {"aria-label": shares}
    drawn = [
        html.Div(title=f"{part.name}: {part.text}", style={"flexGrow": part.amount, "background": colors[part.color]})
        for part in block.parts
        if part.amount
    ]
    rest = [html.Div(style={"flexGrow": block.rest})] if block.rest else []
    return html.Div([*drawn, *rest], className="timeline-bar", role="img", **label)


@_draw.register
def _(block: model.Chart, dark: bool) -> Component:
    title = [dmc.Text(block.title, fw=600, size="sm")] if block.title else []
    note = [dmc.Text(block.note, c="dimmed", size="sm")] if block.note else []
    return html.Div([*title, graph(block.figure(dark), block.id, name=block.title or block.id), *note])


@_draw.register
def _(block: Table, dark: bool) -> Component:
    named = bool(block.columns and block.columns[0].heads)
    title = [dmc.Text(block.title, fw=600, size="sm")] if block.title and not named else []
    note = [dmc.Text(block.note, c="dimmed", size="sm")] if block.note else []
    return html.Div([*title, table(block, dark, block.id), *note])


# -- Findings --------------------------------------------------------------------------------------


def findings(blocks: Sequence[model.FindingBlock], dark: bool, ends: Sequence[Sequence[Component]] = ()) -> Component:
    """Return findings that unfold below their heads, the first already unfolded; `ends` are added to their panels."""
    items = [
        dmc.AccordionItem(
            [
                dmc.AccordionControl(_finding_head(block, palette(dark))),
                dmc.AccordionPanel(_finding_body(block, dark, ends[number] if ends else ())),
            ],
            value=str(number),
        )
        for number, block in enumerate(blocks)
    ]
    return dmc.Accordion(items, variant="separated", value=["0"], multiple=True)


def _finding_head(block: model.FindingBlock, colors: Mapping[str, str]) -> Component:
    icon, level = _SEVERITY[block.severity]
    color = {"color": colors[level], "fontWeight": 700}
    facts = [
        html.Span(icon, style=color, **_UNREAD),
        html.Span(block.severity, style={"fontSize": "14px"} | color),
        dmc.Text(block.rule, c="dimmed", size="sm"),
        dmc.Text(block.cost, size="sm", fw=600, className="finding-cost"),
        *([dmc.Text(block.where, c="dimmed", size="sm")] if block.where else []),
    ]
    place = [html.Div(f"at {block.place}", className="place")] if block.place else []
    return dmc.Stack(
        [dmc.Group(facts, gap=8), dmc.Text(block.title, fw=600, fz=15, className="finding-title"), *place], gap=2
    )


def _finding_body(block: model.FindingBlock, dark: bool, ends: Sequence[Component]) -> Component:
    links = [dmc.Group(list(ends), fz=14)] if ends else []
    change, _, how = block.advice.partition("\n")
    steps = [
        dmc.Text(change, size="sm", fw=600, className="prose finding-change"),
        dmc.Text(how, size="sm", className="prose"),
    ]
    answer = [_titled("What to change", *steps)] if block.advice else []
    if block.proof:
        answer.append(_titled("See what it saves", _command(block.proof), *links))
    elif links:
        answer += links
    evidence = dmc.Text("\n".join(block.evidence), size="sm", className="prose")
    rule = RULES.get(block.rule)
    ruled = [] if rule is None else draw(_explained(rule), dark)
    beside = dmc.SimpleGrid(answer, cols={"base": 1, "md": max(1, len(answer))}, spacing="lg", verticalSpacing="xs")
    return dmc.Stack([beside, *([_titled("Evidence", evidence)] if block.evidence else []), *ruled], gap="sm")


def _titled(title: str, *shown: Component) -> Component:
    return html.Div([dmc.Text(title, c="dimmed", size="sm"), *shown])


def _command(command: str) -> Component:
    """Return a command with a button that copies it (`assets/copy.js`)."""
    copied: dict[str, Any] = {"data-copy": command, "aria-label": "copy the command"}
    button = html.Button("Copy", className="copy-button", type="button", **copied)
    # Lines break between words, not at the dashes of options.
    spaced = (part for word in command.split(" ") for part in (html.Span(word), " "))
    return html.Div([dmc.Code([*spaced][:-1]), button], className="command")


def _explained(rule: Rule) -> tuple[Block, ...]:
    """Return example programs with and without the problem (for good news, the reverse), and what the rule means."""
    titles = ("Without overlap", "With it") if rule.severity == "info" else ("Before", "After")
    kinds, meaning = ("a small program in PyTorch", "the same program"), explanation(rule.id)
    programs = (
        model.Code(program, f"{title}: {kind}")
        for program, title, kind in zip(examples(rule.id), titles, kinds, strict=True)
    )
    sentences = (meaning.meaning, f"Computed: {meaning.computation}", f"What the fix saves: {rule.cost}")
    return (
        model.Section(tuple(programs), kind="columns"),
        model.Section(tuple(map(model.Text, sentences)), f"What {rule.id} means and how it is computed", folded=True),
    )


# -- Figures ---------------------------------------------------------------------------------------


_MARKS: Mapping[Pattern, str] = {
    "rising": "repeating-linear-gradient(135deg, {0} 0 2px, transparent 2px 5px)",
    "falling": "repeating-linear-gradient(45deg, {0} 0 2px, transparent 2px 5px)",
    "dotted": "radial-gradient({0} 1px, transparent 1.5px) 0 0 / 4px 4px",
    "ruled": "repeating-linear-gradient({0} 0 1px, transparent 1px 4px)",
}
"""CSS images of the patterns, for the color of the marks."""


def _dotted(cell: Cell, colors: Mapping[str, str]) -> list[Component | str]:
    """Return a cell with a dot in its color and pattern."""
    color, pattern = colors[cell.color], PATTERNS.get(cell.color, "")
    layers: tuple[Pattern, ...] = ("rising", "falling") if pattern == "crossed" else (pattern,)
    marks = [_MARKS[layer].format(f"{legible(color)}66") for layer in layers if layer]
    return [html.Span(className="timeline-dot", style={"background": ", ".join([*marks, color])}), cell.text]


def graph(figure: Figure, id: str, *, name: str) -> Component:
    """Return a chart that fills its width. `name` is the name of its PNG file."""
    config: Any = {
        "displaylogo": False,
        # Plotly's own button would send the chart away.
        "showSendToCloud": False,
        "plotlyServerURL": "",
        "responsive": True,
        "displayModeBar": "hover",
        "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
        "toImageButtonOptions": {"format": "png", "filename": name, "scale": 2},
    }
    height = figure["layout"]["height"]
    return dcc.Graph(id=id, figure=figure, config=config, style={"height": f"{height}px", "width": "100%"})


def explained(component: Component, meaning: str, **more: Any) -> Component:
    """Return a component with a tooltip."""
    events = {"hover": True, "focus": True, "touch": True}
    options: dict[str, Any] = {"w": 280, "multiline": True, "withArrow": True, "events": events} | more
    return dmc.Tooltip(component, label=meaning, **options)


def named(id: str) -> dict[str, Any]:
    """Return the argument for an id, if any: Dash accepts no empty ids."""
    return {"id": id} if id else {}


# -- Tables ----------------------------------------------------------------------------------------


def table(shown: Table, dark: bool, id: str = "", ends: Sequence[Component | None] = ()) -> Component:
    """Return a table to be read, without its title and note. `id` belongs to its body; `ends` are added to the rows."""
    shown, colors = shown.read(), palette(dark)
    heads = [
        dmc.TableTh(column.title, ta="right" if column.number else "left", style={"whiteSpace": "nowrap"})
        for column in shown.columns
    ]
    heads += [dmc.TableTh("")] if any(ends) else []
    rows = []
    for number, row in enumerate(shown.rows):
        cells = [_cell(cell, column, colors) for cell, column in zip(row.cells, shown.columns, strict=True)]
        cells += [dmc.TableTd(ends[number], style=_PINNED)] if any(ends) else []
        rows.append(dmc.TableTr(cells, style=_BOLD if shown.total and number == len(shown.rows) - 1 else {}))
    body = dmc.TableTbody(rows, **named(id))
    drawn = dmc.Table([dmc.TableThead(dmc.TableTr(heads)), body], w="auto", verticalSpacing=3, horizontalSpacing="sm")
    # With a tab index, the arrow keys scroll a table that is wider than its panel.
    return html.Div(drawn, className="plain-table", tabIndex=0)


def _cell(cell: Cell, column: Column, colors: Mapping[str, str]) -> Component:
    style: dict[str, Any] = {"fontVariantNumeric": "tabular-nums", "verticalAlign": "top"}
    style |= (
        {"overflowWrap": "anywhere", "minWidth": column.width or _NAME_WIDTH}
        if column.flexible
        else {"whiteSpace": "nowrap"}
    )
    style |= _tone(cell.tone, colors) | ({"fontWeight": 600} if cell.tone else {})
    shown = _dotted(cell, colors) if cell.color in colors else cell.text
    return dmc.TableTd(shown, ta="right" if column.number else "left", style=style)


def grid(shown: Table, dark: bool, id: str, hrefs: Sequence[str | None], link: str) -> Component:
    """Return a table that can be sorted, without its title and note; each row may have a link."""
    columns: list[dict[str, Any]] = [
        {
            "field": column.id,
            "headerName": column.long or column.title,
            "type": "rightAligned" if column.number else None,
            "valueFormatter": {"function": f"params.data.{column.id}_text"},
            # Export the number, not its text.
            "useValueFormatterForExport": False,
            "minWidth": column.width or _COLUMN_WIDTH_PX,
            "flex": 0 if column.number else 1,
            "width": column.width or _COLUMN_WIDTH_PX,
            "tooltipField": None if column.number else column.id,
        }
        for column in shown.columns
    ]
    if any(hrefs):
        columns.append(
            {
                "field": "href",
                "headerName": "",
                "cellRenderer": "TimelineLink",
                "cellRendererParams": {"text": link},
                "sortable": False,
                "width": 96,
                "pinned": "right",
            }
        )
    tall = len(shown.rows) > TALLEST_GRID
    return dag.AgGrid(
        id=id,
        columnDefs=columns,
        rowData=[_row_data(shown, number, href) for number, href in enumerate(hrefs)],
        defaultColDef={"sortable": True, "resizable": True, "wrapHeaderText": True, "autoHeaderHeight": True},
        columnSize=None,
        getRowId="params.data.id",
        dashGridOptions={
            "domLayout": "normal" if tall else "autoHeight",
            "theme": {"function": _theme(dark)},
            "suppressCellFocus": True,
            "enableCellTextSelection": True,
            "tooltipShowDelay": 400,
        },
        eventListeners={"rowClicked": ["openRow(params)"]},
        className="grid grid-linked" if any(hrefs) else "grid",
        style={"height": "430px" if tall else None, "width": "100%"},
    )


def _row_data(shown: Table, number: int, href: str | None) -> dict[str, Any]:
    data: dict[str, Any] = {"id": str(number)} | ({} if href is None else {"href": href})
    for column, cell in zip(shown.columns, shown.rows[number].cells, strict=True):
        # An empty text sorts before all others.
        value = cell.text if cell.value is None and not column.number else cell.value
        data[column.id], data[f"{column.id}_text"] = value, cell.text or "–"
    return data


def _theme(dark: bool) -> str:
    """Return AG Grid's theme in the page's colors."""
    colors = palette(dark)
    params = {
        "browserColorScheme": "dark" if dark else "light",
        "backgroundColor": colors["panel"],
        "foregroundColor": colors["text"],
        "accentColor": colors["accent"],
        "borderColor": colors["grid"],
        "chromeBackgroundColor": colors["background"],
        "headerTextColor": colors["muted"],
        "fontFamily": "inherit",
        "fontSize": "13px",
        "spacing": "6px",
    }
    return f"themeQuartz.withParams({json.dumps(params)})"
