"""The page HTA: analyses of HolisticTraceAnalysis on the trace, or on the ranks in its folder."""

from __future__ import annotations

import threading
from typing import Any

import dash
import dash_mantine_components as dmc
from dash import Input, Output, State, dcc, html
from dash.development.base_component import Component

from overlapscope.base.words import clean, plural
from overlapscope.dashboard import parts, render
from overlapscope.dashboard.callbacks import Callbacks
from overlapscope.dashboard.context import PageContext
from overlapscope.dashboard.pages.ranks import job_of
from overlapscope.errors import MissingPackage, OverlapscopeError
from overlapscope.plugins.hta.build import require
from overlapscope.plugins.hta.catalog import ANALYSES, HtaOptions
from overlapscope.plugins.hta.document import HtaResult, heading, lacking, run, table, to_csv

LEAD = (
    "What HolisticTraceAnalysis computes from this trace, with its own definitions and rounded to whole "
    "microseconds. The other pages do not depend on it."
)

MAX_RANKS = 16
"""Maximum number of ranks, whose traces are in memory at once."""
MAX_ROWS = 2_000
"""Maximum number of a table's rows on the page; the CSV has all."""
_CACHE_WEIGHT = 4
"""Weight of a result in the cache of pages' results."""
_one_at_a_time = threading.Lock()
"""HTA's output can be suppressed for only a single thread at a time."""


def layout(context: PageContext) -> list[Component]:
    """Return the choices; a callback shows the tables."""
    try:
        require()
    except MissingPackage as error:
        return [render.panel("HTA is not installed", parts.empty(clean(str(error))))]
    ranks = job_of(context.library, context.opened.id)
    several = 1 < len(ranks) <= MAX_RANKS
    choice = dmc.Group(
        [
            dmc.Select(
                id="hta-name",
                label="analysis",
                data=[
                    {"value": analysis.name, "label": f"{analysis.name}: {analysis.summary}"}
                    for analysis in ANALYSES.values()
                ],
                value=next(iter(ANALYSES)),
                allowDeselect=False,
                searchable=True,
                w=420,
            ),
            dmc.TextInput(id="hta-operator", label="host ops whose names contain", value="aten::", w=240),
            dmc.Switch(
                id="hta-ranks",
                label=f"all {plural(len(ranks), 'rank')}",
                checked=several,
                style={} if several else {"display": "none"},
            ),
            dmc.Switch(id="hta-nanoseconds", label="keep nanoseconds", checked=False),
            dmc.Button("Run", id="hta-run", size="sm"),
            dmc.Button("CSV", id="hta-csv", variant="default", size="sm"),
        ],
        align="end",
        gap="md",
    )
    return [
        dmc.Paper(choice, withBorder=True, p="md"),
        dcc.Loading(html.Div(id="hta-content"), delay_show=200, type="dot"),
        dcc.Download(id="hta-download"),
    ]


callbacks = Callbacks()
_CHOSEN = (
    State("hta-name", "value"),
    State("hta-operator", "value"),
    State("hta-ranks", "checked"),
    State("hta-nanoseconds", "checked"),
)


@callbacks.add(Output("hta-operator", "style"), Input("hta-name", "value"))
def ask_for_operator(context: PageContext, name: str) -> dict[str, str]:
    """Show the choice of an operator only for the analysis that needs it."""
    return {} if name == "sequences" else {"display": "none"}


@callbacks.add(Output("hta-content", "children"), Input("hta-run", "n_clicks"), *_CHOSEN, prevent_initial_call=True)
def show(
    context: PageContext, clicks: int | None, name: str, operator: str | None, ranks: bool, nanoseconds: bool
) -> Component:
    """Return the tables of the chosen analysis."""
    try:
        result = _result(context, name, operator, ranks, nanoseconds)
    except OverlapscopeError as error:
        return dmc.Alert(clean(str(error), 2000), title="There is no result", color="yellow", id="hta-error")
    return _tables(context, result)


@callbacks.add(Output("hta-download", "data"), Input("hta-csv", "n_clicks"), *_CHOSEN, prevent_initial_call=True)
def save(
    context: PageContext, clicks: int | None, name: str, operator: str | None, ranks: bool, nanoseconds: bool
) -> Any:
    """Return them as CSV."""
    try:
        result = _result(context, name, operator, ranks, nanoseconds)
    except OverlapscopeError:
        # Running the analysis shows the error.
        return dash.no_update
    return {"content": to_csv(result), "filename": f"hta-{name}.csv", "type": "text/csv"}


def _result(context: PageContext, name: str, operator: str | None, ranks: bool, nanoseconds: bool) -> HtaResult:
    """Return HTA's result, computed once. Raises OverlapscopeError."""
    library, id = context.library, context.url.trace or ""
    several = job_of(library, id) if ranks else ()
    ids = several if 1 < len(several) <= MAX_RANKS else (id,)

    def compute() -> HtaResult:
        traces = [library.wait(id).analysis.trace for id in ids]
        return run(name, traces, HtaOptions(operator=operator or None), nanoseconds=nanoseconds or None)

    with _one_at_a_time:
        key = ("hta", ids, name, operator, nanoseconds)
        result: HtaResult = library.results_of_pages.remember(key, compute, weight=_CACHE_WEIGHT)
    return result


def _tables(context: PageContext, result: HtaResult) -> Component:
    tables = [table(shown, MAX_ROWS) for shown in result.tables]
    panels = [
        parts.grid_panel(context, shown, f"hta-table-{number}", note=shown.note, nothing="No rows.")
        for number, shown in enumerate(tables)
    ]
    missing = lacking(result)
    panels += [render.panel("Not in these traces", parts.empty(*missing))] if missing else []
    head = dmc.Text(heading(result), c="dimmed", size="sm", id="hta-heading")
    return dmc.Stack([head, *panels], gap="md")
