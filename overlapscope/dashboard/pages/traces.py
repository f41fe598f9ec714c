"""The page Traces: all traces with their verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import dash
from dash import Input, Output, State, dcc, html
from dash.development.base_component import Component
from msgspec.structs import replace

from overlapscope.base.words import clean, percent, plural
from overlapscope.dashboard import parts, render
from overlapscope.dashboard.callbacks import Callbacks
from overlapscope.dashboard.context import PageContext
from overlapscope.dashboard.library import TraceSummary
from overlapscope.documents.table import Cell, Column, Table, Tone, rows, words
from overlapscope.errors import OverlapscopeError

MOST_LISTED = 200
"""Maximum number of rows; the choice at the top has all traces."""
_POLL_MS = 1_000
_AT_ONCE = 8
"""Number of traces to request at a time."""
_TONES: Final[Mapping[str, Tone]] = {"good": "good", "fair": "fair", "poor": "poor"}


def layout(context: PageContext) -> Component:
    """Return the page, with the verdicts that are known already."""
    count = len(context.library.entries())
    if not count:
        return parts.nothing_opened(context.url, reports=bool(context.library.ranks_files()))
    listed, known_count = _listed(context)
    more = f"The first {MOST_LISTED} are listed; choose others at the top." if count > MOST_LISTED else ""
    return parts.page(
        "Traces",
        parts.panel(
            plural(count, "trace"),
            dcc.Interval(id="traces-clock", interval=_POLL_MS),
            dcc.Store(id="traces-known", data=known_count),
            html.Div(listed, id="traces-listed"),
            note=more,
        ),
        lead="What each trace loses, the most first.",
    )


def _listed(context: PageContext) -> tuple[list[Component], int]:
    """Return the table, with the progress of reading above it, and the number of verdicts that are known."""
    ids = [entry.id for entry in context.library.entries()[:MOST_LISTED]]
    url = replace(context.url, other=None, of=None)
    hrefs = {id: url.href("overview", trace=id) for id in ids}
    listed, known_count = listed_traces(context, hrefs, "traces-rows", "open", worst_first=True)
    sentence = f"{known_count} of {len(ids)} read"
    progress = [parts.progress(sentence, known_count / len(ids))] if known_count < len(ids) else []
    return [*progress, listed], known_count


def listed_traces(
    context: PageContext, hrefs: Mapping[str, str], id: str, link: str, *, worst_first: bool = False
) -> tuple[Component, int]:
    """Return a row for each trace with its verdict as far as known, and the number of verdicts that are known.

    Args:
        context: The page.
        hrefs: Where each row leads, by id of the trace.
        id: Id of the table's body.
        link: Text of the link.
        worst_first: Whether to list the traces that lose the largest part of their time first.
    """
    known: dict[str, TraceSummary | OverlapscopeError | None] = {}
    asked = 0
    for trace in hrefs:
        # Request a few at a time, so that reading stops after the user leaves the page.
        known[trace] = context.library.summary(trace) if asked < _AT_ONCE else None
        asked += known[trace] is None
    ids = sorted(hrefs, key=lambda trace: _lost(known[trace]), reverse=True) if worst_first else [*hrefs]
    links: list[Component | None] = [
        dcc.Link(f"{link} →", href=hrefs[trace], className="timeline-link") for trace in ids
    ]
    columns = (
        Column("trace", number=False, flexible=True, width=220),
        words("verdict"),
        Column("step"),
        Column("lost"),
        words("", flexible=True),
    )
    lines = ((clean(trace, 120), *_cells(known[trace])) for trace in ids)
    known_count = sum(summary is not None for summary in known.values())
    return render.table(Table("", columns, rows(lines)), context.dark, id, links), known_count


def _lost(summary: TraceSummary | OverlapscopeError | None) -> float:
    """Return the part of its time that a trace loses, as a key to sort by. Traces that are not read come last."""
    if summary is None:
        return -3
    if isinstance(summary, OverlapscopeError):
        return -2
    return -1 if summary.verdict.lost is None else summary.verdict.lost


def _cells(summary: TraceSummary | OverlapscopeError | None) -> tuple[Cell, str, str, str]:
    """Return verdict, step, lost part and sentence."""
    if summary is None:
        return Cell("not read yet", tone="muted"), "", "", ""
    if isinstance(summary, OverlapscopeError):
        return Cell("cannot be read", tone="muted"), "", "", clean(str(summary), 400)
    level, lost = summary.verdict.level, summary.verdict.lost
    tone = _TONES.get(level, "muted")
    return (
        Cell(level, tone=tone),
        summary.step,
        "" if lost is None else percent(100 * lost),
        clean(summary.verdict.lead, 400),
    )


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
