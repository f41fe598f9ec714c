"""HTA: the analyses of HolisticTraceAnalysis on the trace that is shown, or on the ranks beside it."""

from __future__ import annotations

import threading
from typing import Any

import dash
import dash_mantine_components as dmc
from dash import Input, Output, State, dcc, html
from dash.development.base_component import Component

from overlapscope.base.kept import kept
from overlapscope.base.words import clean, plural
from overlapscope.dashboard import parts
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.place import Place, parse
from overlapscope.dashboard.rank_reports import job_of
from overlapscope.dashboard.shown import Shown, settled
from overlapscope.errors import MissingPackage, OverlapscopeError
from overlapscope.hta.catalog import ANALYSES, Options
from overlapscope.hta.package import require
from overlapscope.hta.run import HtaResult, run
from overlapscope.views import hta as view

MOST_RANKS = 16
"""Whose traces are held at once."""
MOST_ROWS = 2_000
"""Of a table in the page; the CSV has all."""
_KEPT = 8
"""Results that are kept, to be shown again or saved."""
_LEAD = (
    "What HolisticTraceAnalysis computes from this trace, with its own definitions and its rounding to whole "
    "microseconds. The other pages do not depend on it."
)

Asked = tuple[tuple[str, ...], str, bool, str]
"""Traces, analysis, whether nanoseconds are kept, and what the host op's name holds."""

_one_at_a_time = threading.Lock()
"""HTA is kept quiet for one thread at a time."""


def layout(shown: Shown) -> Component:
    """What to choose from; the callback shows the tables."""
    try:
        require()
    except MissingPackage as error:
        return parts.page("HTA", parts.panel("HTA is not here", parts.empty(clean(str(error)))), lead=_LEAD)
    ranks = job_of(shown.library, shown.opened.id, everything=False).ids
    several = 1 < len(ranks) <= MOST_RANKS
    choice = dmc.Group(
        [
            dmc.Select(
                id="hta-name",
                label="analysis",
                data=[{"value": one.name, "label": f"{one.name}: {one.summary}"} for one in ANALYSES.values()],
                value=next(iter(ANALYSES)),
                allowDeselect=False,
                searchable=True,
                w=420,
            ),
            dmc.TextInput(id="hta-operator", label="host ops with this in their names", value="aten::", w=240),
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
    return parts.page(
        "HTA",
        dmc.Paper(choice, withBorder=True, p="md"),
        dcc.Loading(html.Div(id="hta-content"), delay_show=200, type="dot"),
        dcc.Download(id="hta-download"),
        lead=_LEAD,
    )


def register(app: dash.Dash, library: Library) -> None:
    """Runs what is chosen, and saves it."""
    base = app.config.requests_pathname_prefix
    chosen = (
        State("hta-name", "value"),
        State("hta-operator", "value"),
        State("hta-ranks", "checked"),
        State("hta-nanoseconds", "checked"),
        State("url", "pathname"),
        State("url", "search"),
    )

    @app.callback(
        Output("hta-operator", "style"),
        Input("hta-name", "value"),
    )
    def ask_for_operator(name: str) -> dict[str, str]:
        return {} if name == "sequences" else {"display": "none"}

    def result_of(place: Place, name: str, operator: str | None, ranks: bool, nanoseconds: bool) -> HtaResult:
        """Raises OverlapscopeError where there is none."""
        return _result(library, (_traces(library, place.trace or "", ranks), name, nanoseconds, operator or ""))

    @app.callback(
        Output("hta-content", "children"),
        Input("hta-run", "n_clicks"),
        *chosen,
        State("scheme-shown", "data"),
        prevent_initial_call=True,
    )
    def show(
        clicks: int | None,
        name: str,
        operator: str | None,
        ranks: bool,
        nanoseconds: bool,
        pathname: str | None,
        search: str | None,
        scheme: str | None,
    ) -> Component:
        place = settled(library, parse(base, pathname, search))
        try:
            result = result_of(place, name, operator, ranks, nanoseconds)
        except OverlapscopeError as error:
            return dmc.Alert(clean(str(error), 2000), title="There is no result", color="yellow", id="hta-error")
        return _tables(Shown(place, library, library.opened(place.trace), None, scheme == "dark"), result)

    @app.callback(
        Output("hta-download", "data"),
        Input("hta-csv", "n_clicks"),
        *chosen,
        prevent_initial_call=True,
    )
    def save(
        clicks: int | None,
        name: str,
        operator: str | None,
        ranks: bool,
        nanoseconds: bool,
        pathname: str | None,
        search: str | None,
    ) -> Any:
        try:
            result = result_of(settled(library, parse(base, pathname, search)), name, operator, ranks, nanoseconds)
        except OverlapscopeError:
            # The page says so where it is run.
            return dash.no_update
        return {"content": view.csv_text(result), "filename": f"hta-{name}.csv", "type": "text/csv"}


def _traces(library: Library, id: str, ranks: bool) -> tuple[str, ...]:
    found = job_of(library, id, everything=False).ids if ranks else ()
    return found if 1 < len(found) <= MOST_RANKS else (id,)


def _result(library: Library, asked: Asked) -> HtaResult:
    """What HTA says. Raises OverlapscopeError."""
    with _one_at_a_time:
        return _run(library, asked)


@kept(most=_KEPT)
def _run(library: Library, asked: Asked) -> HtaResult:
    ids, name, nanoseconds, operator = asked
    traces = [library.wait(id).analysis.trace for id in ids]
    return run(name, traces, Options(operator=operator or None), nanoseconds=nanoseconds or None)


def _tables(shown: Shown, result: HtaResult) -> Component:
    panels = []
    for number, table in enumerate(result.tables):
        left = len(table.rows) - MOST_ROWS
        note = f"The first {MOST_ROWS:,} rows of {len(table.rows):,}; the CSV has all." if left > 0 else ""
        drawn = parts.grid(shown, view.grid(table, MOST_ROWS), f"hta-table-{number}")
        panels.append(parts.panel(clean(table.title), drawn, note=note))
    lacking = view.lacking(result)
    missing = [parts.panel("Not in these traces", parts.empty(*lacking))] if lacking else []
    heading = dmc.Text(view.heading(result), c="dimmed", size="sm", id="hta-heading")
    return dmc.Stack([heading, *panels, *missing], gap="md")
