"""Lists of traces with their verdicts, which fill while the page is open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dash import dcc
from dash.development.base_component import Component

from overlapscope.base.words import clean
from overlapscope.dashboard import render
from overlapscope.dashboard.context import PageContext
from overlapscope.dashboard.library import TraceSummary
from overlapscope.documents.table import Cell, Column, Table, Tone, rows, words
from overlapscope.errors import OverlapscopeError

_TONES: Final[Mapping[str, Tone]] = {"good": "good", "fair": "fair", "poor": "poor"}


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
