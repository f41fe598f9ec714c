"""The page Traces: all traces with their verdicts."""

from __future__ import annotations

from typing import Any

import dash
from dash import Input, Output, State, dcc, html
from dash.development.base_component import Component
from msgspec.structs import replace

from overlapscope.base.words import plural
from overlapscope.dashboard import parts
from overlapscope.dashboard.callbacks import Callbacks
from overlapscope.dashboard.context import PageContext
from overlapscope.dashboard.parts import listed_traces

MOST_LISTED = 200
"""Maximum number of rows; the choice at the top has all traces."""
_POLL_MS = 1_000


def layout(context: PageContext) -> Component:
    """Return the page, with the verdicts that are known already."""
    count = len(context.library.entries())
    if not count:
        return parts.nothing_opened(context.url, reports=bool(context.library.ranks_files()))
    listed, known_count = _listed(context)
    more = f" The first {MOST_LISTED} are listed; choose others at the top." if count > MOST_LISTED else ""
    return parts.page(
        "Traces",
        parts.panel(
            plural(count, "trace"),
            dcc.Interval(id="traces-clock", interval=_POLL_MS),
            dcc.Store(id="traces-known", data=known_count),
            html.Div(listed, id="traces-listed"),
            note=f"Each is read while this page is open.{more}",
        ),
        lead="What each trace is like, and where to look first.",
    )


def _listed(context: PageContext) -> tuple[Component, int]:
    ids = [entry.id for entry in context.library.entries()[:MOST_LISTED]]
    url = replace(context.url, other=None, of=None)
    return listed_traces(context, {id: url.href("overview", trace=id) for id in ids}, "traces-rows", "open")


callbacks = Callbacks()


@callbacks.add(
    Output("traces-listed", "children"),
    Output("traces-known", "data"),
    Output("traces-clock", "disabled"),
    Input("traces-clock", "n_intervals"),
    State("traces-known", "data"),
    prevent_initial_call=True,
)
def look(context: PageContext, ticks: int | None, before: int) -> Any:
    """Return the list again if more verdicts are known."""
    listed, known_count = _listed(context)
    is_new = known_count != before
    done = known_count == min(MOST_LISTED, len(context.library.entries()))
    return listed if is_new else dash.no_update, known_count, done
