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

LEAD = "What each trace loses, the most first."

MAX_LISTED = 200
"""Maximum number of rows; the choice at the top has all traces."""
_POLL_MS = 1_000
_AT_ONCE = 8
"""Number of traces to request at a time."""
_TONES: Final[Mapping[str, Tone]] = {"good": "good", "fair": "fair", "poor": "poor"}


Summary = TraceSummary | OverlapscopeError | None
"""Summary of a trace, or the reason why there is none; None until the trace is read."""


def layout(context: PageContext) -> Component | list[Component]:
    """Return the page, with the verdicts that are known already."""
    count = len(context.library.entries())
    if not count:
        return parts.nothing_opened(context.url, reports=bool(context.library.ranks_files()))
    known = _known(context)
    listed = render.panel(
        plural(count, "trace"),
        dcc.Interval(id="traces-clock", interval=_POLL_MS),
        dcc.Store(id="traces-known", data=_count_read(known)),
        html.Div(_listed(context, known), id="traces-listed"),
        note=f"The first {MAX_LISTED} are listed; choose others at the top." if count > MAX_LISTED else "",
    )
    return [listed] if context.library.has_samples() else [listed, parts.samples_button()]


def _known(context: PageContext) -> dict[str, Summary]:
    """Return the summaries of traces, and request a few traces that are not read yet."""
    known: dict[str, Summary] = {}
    for entry in context.library.entries()[:MAX_LISTED]:
        # A few at a time, so that reading stops after the user leaves the page.
        known[entry.id] = context.library.summary(entry.id) if len(known) - _count_read(known) < _AT_ONCE else None
    return known


def _count_read(known: Mapping[str, Summary]) -> int:
    return sum(summary is not None for summary in known.values())


def _listed(context: PageContext, known: Mapping[str, Summary]) -> list[Component]:
    """Return a row for each trace with its verdict as far as known, the worst first, below the progress of reading."""
    url, read = replace(context.url, other=None, of=None), _count_read(known)
    worst_first = dict(sorted(known.items(), key=lambda item: _lost(item[1]), reverse=True))
    ends = [dcc.Link("open →", href=url.href("overview", trace=id), className="timeline-link") for id in worst_first]
    columns = (
        Column("trace", number=False, flexible=True, width=150),
        words("verdict"),
        Column("step"),
        Column("lost"),
        Column("", number=False, flexible=True, width=260),
    )
    lines = ((clean(id, 120), *_cells(summary)) for id, summary in worst_first.items())
    listed = render.table(Table("", columns, rows(lines)), context.dark, "traces-rows", ends)
    progress = parts.progress(f"{read} of {len(known)} read", read / len(known))
    return [listed] if read == len(known) else [progress, listed]


def _lost(summary: Summary) -> float:
    """Return the part of its time that a trace loses, as a key to sort by. Traces that are not read come last."""
    if summary is None:
        return -3
    if isinstance(summary, OverlapscopeError):
        return -2
    return -1 if summary.verdict.lost is None else summary.verdict.lost


def _cells(summary: Summary) -> tuple[Cell, str, str, str]:
    """Return verdict, step, lost part and sentence."""
    if summary is None:
        return Cell("not read yet", tone="muted"), "", "", ""
    if isinstance(summary, OverlapscopeError):
        return Cell("cannot be read", tone="muted"), "", "", clean(str(summary), 400)
    level, lost, reach = summary.verdict.level, summary.verdict.lost, "up to " * summary.verdict.may_lose_less
    tone = _TONES.get(level, "muted")
    return (
        Cell(level, tone=tone),
        summary.step,
        "" if lost is None else f"{reach}{percent(100 * lost)}",
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
    known = _known(context)
    read = _count_read(known)
    return dash.no_update if read == before else _listed(context, known), read, read == len(known)
