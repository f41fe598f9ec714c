"""Pieces that several pages are made of. They lay out; what they show was computed elsewhere."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import dash_ag_grid as dag
import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from overlapscope.analysis.results import Window
from overlapscope.base.words import clean
from overlapscope.dashboard.context import PageContext
from overlapscope.documents.colors import palette
from overlapscope.documents.figure import Figure
from overlapscope.report.cause_words import EXPOSED_COPY, IDLE
from overlapscope.report.grids import Grid, Row
from overlapscope.report.verdict import judge
from overlapscope.views import charts
from overlapscope.views.charts.causes import Subject, by_cause

MARGIN_NS = 10_000
"""At least so much is shown on either side of a case in the timeline."""

_TALLEST_GRID = 12
"""Rows; a grid with more of them scrolls."""

REPLAYED = "Steps and times are replayed: an estimate of the program without the profiler."
"""Of the plain program."""

UNREAD: Any = {"aria-hidden": "true"}
"""For a sign whose meaning stands beside it as a word."""

_ICONS = {"good": "✓", "fair": "!", "poor": "✕", "unusable": "?"}
Children = Sequence[Component | str] | Component | str


def page(title: str, *children: Component, lead: str = "") -> Component:
    """A page below its title, with a sentence on what it answers."""
    heads: list[Component] = [dmc.Title(title, order=2)]
    if lead:
        heads.append(dmc.Text(lead, c="dimmed", size="sm"))
    return dmc.Stack([html.Div(heads), *children], gap="md", maw=1500)


def lead(context: PageContext, sentence: str) -> str:
    """What a page answers, and of which program where that is not the one that was recorded."""
    return f"{sentence} {REPLAYED}" if context.replayed else sentence


def panel(title: str, *children: Children, note: str = "", beside: Component | None = None, id: str = "") -> Component:
    """A titled box; `note` explains it, `beside` stands at the right of the title."""
    head = dmc.Group(
        [dmc.Title(title, order=3, size="h4"), *([beside] if beside is not None else [])],
        justify="space-between",
        wrap="nowrap",
    )
    notes = [dmc.Text(note, c="dimmed", size="sm")] if note else []
    named = {"id": id} if id else {}
    return dmc.Paper([head, *notes, *children], withBorder=True, p="md", **named)


def empty(*sentences: Children) -> Component:
    """What stands where there is nothing to show, and why."""
    return dmc.Stack([dmc.Text(sentence, c="dimmed") for sentence in sentences], gap=4, py="xs")


def verdict(context: PageContext) -> Component:
    """The answer first: a word, its colour and its sign, then the sentences."""
    section, colors = context.section, context.colors
    found = judge(section)
    text = found.text.removeprefix(f"{section.title}: ")
    first, _, rest = re.sub(r"(?<=\.) (?=[A-Z])", "\n", text, count=1).partition("\n")
    color = colors.get(found.level, colors["muted"])
    word = dmc.Group(
        [
            html.Span(_ICONS[found.level], style={"fontWeight": 700}, **UNREAD),
            html.Span(found.level, style={"fontWeight": 700}, id="verdict-level"),
            dmc.Text(section.title, c="dimmed", size="sm", truncate="end"),
        ],
        gap=8,
        wrap="nowrap",
        style={"color": color},
    )
    return dmc.Paper(
        [
            word,
            dmc.Text(first[:1].upper() + first[1:], fz=22, fw=600, lh=1.3, mt=4, id="verdict-text"),
            *([dmc.Text(rest, fz=16, mt=4)] if rest else []),
            *([dmc.Text(found.plain, size="sm", c="dimmed", mt=4, id="verdict-plain")] if found.plain else []),
        ],
        withBorder=True,
        p="md",
        style={"borderLeft": f"6px solid {color}"},
    )


def unusable(context: PageContext) -> Component:
    """Instead of numbers that nobody should believe: why there are none."""
    checks = [check for check in context.section.trace.trust.checks if check.status == "fail"]
    return dmc.Stack(
        [
            verdict(context),
            panel(
                "Why there are no figures",
                dmc.List([dmc.ListItem(clean(check.detail, 1000)) for check in checks])
                if checks
                else empty("Nothing ran on a GPU in this recording."),
                empty(["To record again: ", dmc.Code("overlapscope run train.py"), " does all that is needed."]),
            ),
        ],
        maw=1500,
    )


def timeline_href(context: PageContext, window: Window) -> str:
    """The URL of the timeline around a window, with as much again on either side."""
    lanes = context.opened.lanes
    margin = max(window.end_ns - window.start_ns, MARGIN_NS)
    start, end = window.start_ns - margin - lanes.origin_ns, window.end_ns + margin - lanes.origin_ns
    return context.url.href("timeline", start_ns=max(0, start), end_ns=min(end, max(lanes.end_ns, 1)))


def timeline_link(context: PageContext, window: Window | None, text: str = "show in timeline") -> list[Component]:
    """A link to the place; nothing where no place is known."""
    return [dcc.Link(f"{text} →", href=timeline_href(context, window), className="timeline-link")] if window else []


def causes(context: PageContext, subject: Subject, id: str) -> Component:
    """The bars of a bucket's causes, and beside them what each means and what helps."""
    words, colors = (EXPOSED_COPY if subject == "exposed-copy" else IDLE), context.colors
    meanings = [
        html.Div(
            [
                html.Span("■ ", style={"color": colors[f"{subject}:{cause}"]}, **UNREAD),
                html.Strong(cause),
                f": {words[cause].meaning}",
                *([html.Em(f" {words[cause].help}")] if words[cause].help else []),
            ],
            style={"fontSize": "14px"},
        )
        for cause in by_cause(context.section, subject)
    ]
    return dmc.Grid(
        [
            dmc.GridCol(
                graph(charts.causes(context.section, subject, context.dark), id, name=id), span={"base": 12, "md": 7}
            ),
            dmc.GridCol(dmc.Stack(meanings, gap=6, py="xs"), span={"base": 12, "md": 5}),
        ],
        gutter="md",
    )


def graph(figure: Figure, id: str, *, name: str) -> Component:
    """A chart that fills its width. `name` is what its PNG is called."""
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


def grid(context: PageContext, table: Grid, id: str, *, opens: Sequence[str | None] | None = None) -> Component:
    """A sortable table; rows with a place link to the timeline, or each to the URL it `opens`, if any."""
    hrefs = [_place(context, row) for row in table.rows] if opens is None else opens
    columns: list[dict[str, Any]] = [
        {
            "field": field.key,
            "headerName": field.title,
            "type": "rightAligned" if field.number else None,
            "valueFormatter": {"function": f"params.data.{field.key}_text"},
            # What is exported is the number itself.
            "useValueFormatterForExport": False,
            "minWidth": field.width,
            "flex": 0 if field.number else 1,
            "width": field.width,
            "tooltipField": None if field.number else field.key,
        }
        for field in table.fields
    ]
    if any(hrefs):
        columns.append(
            {
                "field": "href",
                "headerName": "",
                "cellRenderer": "TimelineLink",
                "cellRendererParams": {"text": "timeline" if opens is None else "open"},
                "sortable": False,
                "width": 96,
                "pinned": "right",
            }
        )
    tall = len(table.rows) > _TALLEST_GRID
    linked = enumerate(zip(table.rows, hrefs, strict=True))
    return dag.AgGrid(
        id=id,
        columnDefs=columns,
        rowData=[_row(table, number, row, href) for number, (row, href) in linked],
        defaultColDef={"sortable": True, "resizable": True, "wrapHeaderText": True, "autoHeaderHeight": True},
        columnSize=None,
        getRowId="params.data.id",
        dashGridOptions={
            "domLayout": "normal" if tall else "autoHeight",
            "theme": {"function": _theme(context.dark)},
            "suppressCellFocus": True,
            "enableCellTextSelection": True,
            "tooltipShowDelay": 400,
        },
        csvExportParams={
            "fileName": f"{id}.csv",
            "columnKeys": [field.key for field in table.fields],
            "processCellCallback": {"function": "csvCell(params)"},
        },
        className="grid",
        style={"height": "430px" if tall else None, "width": "100%"},
    )


def _theme(dark: bool) -> str:
    """AG Grid's theme in the page's colours."""
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


def _place(context: PageContext, row: Row) -> str | None:
    return None if row.window is None else timeline_href(context, row.window)


def _row(table: Grid, number: int, row: Row, href: str | None) -> dict[str, Any]:
    data: dict[str, Any] = {"id": str(number)}
    for field, cell in zip(table.fields, row.cells, strict=True):
        data[field.key], data[f"{field.key}_text"] = cell.value, cell.text
    if href is not None:
        data["href"] = href
    return data


def csv_button(grid_id: str) -> Component:
    """Saves the grid as CSV (`Callbacks.csv`)."""
    return dmc.Button("CSV", id=f"{grid_id}-csv", variant="default", size="compact-sm")
