"""The page Traces: all traces with their verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import dash
from dash import Input, Output, State, dcc, html
from dash.development.base_component import Component
from msgspec.structs import replace

from overlapscope.base.words import clean, plural
from overlapscope.dashboard import parts, render
from overlapscope.dashboard.callbacks import Callbacks
from overlapscope.dashboard.context import PageContext
from overlapscope.dashboard.library import TraceSummary
from overlapscope.documents.table import Cell, Column, Table, Tone, rows, words
from overlapscope.errors import OverlapscopeError

MOST_LISTED = 200
"""Maximum number of rows; the choice at the top has all traces."""
_POLL_MS = 1_000
_TONES: Final[Mapping[str, Tone]] = {"good": "good", "fair": "fair", "poor": "poor"}


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


def listed_traces(context: PageContext, hrefs: Mapping[str, str], id: str, link: str) -> tuple[Component, int]:
    """Return a row for each trace with its verdict as far as known, and the number of verdicts that are known.

    Args:
        context: The page.
        hrefs: Where each row leads, by id of the trace.
        id: Id of the table's body.
        link: Text of the link.
    """
    lines, known_count = [], 0
    for number, trace in enumerate(hrefs):
        # Request them in turn, so that reading stops after the user leaves the page.
        summary = context.library.summary(trace) if known_count == number else None
        known_count += summary is not None
        lines.append((clean(trace, 120), *_cells(summary)))
    links: list[Component | None] = [
        dcc.Link(f"{link} →", href=href, className="timeline-link") for href in hrefs.values()
    ]
    columns = (words("trace", flexible=True), words("verdict"), Column("step"), words("", flexible=True))
    return render.table(Table("", columns, rows(lines)), context.dark, id, links), known_count


def _cells(summary: TraceSummary | OverlapscopeError | None) -> tuple[Cell, str, str]:
    """Return verdict, step and sentence."""
    if summary is None:
        return Cell("not read yet", tone="muted"), "", ""
    if isinstance(summary, OverlapscopeError):
        return Cell("cannot be read", tone="muted"), "", clean(str(summary), 400)
    level = summary.verdict.level
    return Cell(level, tone=_TONES.get(level, "muted")), summary.step, clean(summary.verdict.lead, 400)


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
