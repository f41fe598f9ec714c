"""What is shown instead of a page: nothing is there yet, or something is wrong. Each says what to do."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from overlapscope.base.words import clean
from overlapscope.dashboard.background import Progress
from overlapscope.dashboard.url import UrlState
from overlapscope.errors import OverlapscopeError


def notice(title: str, *lines: str | Component) -> Component:
    """A title and what to do, in the middle of the page."""
    return dmc.Center(
        dmc.Stack(
            [dmc.Title(title, order=3), *(dmc.Text(line, c="dimmed") for line in lines)],
            gap="sm",
            maw=620,
            className="notice",
        ),
        mih="50vh",
    )


def nothing_opened(url: UrlState, *, reports: bool) -> Component:
    """The server was started without a trace; `reports`: but with a report of ranks."""
    ranks = [html.Span(["There is a report, on the page ", dmc.Anchor("Ranks", href=url.href("ranks")), "."])]
    return notice(
        "No trace is open",
        *(ranks if reports else []),
        "Drop a trace onto this page, or choose one with Open: .json, .json.gz or .json.zst, as torch.profiler's "
        "export_chrome_trace writes it.",
        html.Span(["To record one: ", dmc.Code("overlapscope run --open train.py")]),
    )


def no_page(url: UrlState, others: str) -> Component:
    """The URL names a page that does not exist."""
    return notice(
        f"There is no page {clean(url.page, 60)!r}",
        html.Span(["Go to ", dmc.Anchor("the overview", href=url.href("overview")), f", or to {others}."]),
    )


def no_trace(url: UrlState, id: str) -> Component:
    """The URL names a trace that this server may not show."""
    return notice(
        f"There is no trace {clean(id, 100)!r} here",
        "Only traces that were given when the dashboard was started, or dropped onto the page since, can be shown. "
        "Choose one at the top.",
    )


def unreadable(url: UrlState, id: str, failure: OverlapscopeError) -> Component:
    """The trace cannot be read."""
    return notice(f"{clean(id, 100)} cannot be shown", clean(str(failure), 2000))


def loading(id: str, state: Progress) -> Component:
    """A trace is on its way."""
    return dmc.Center(html.Div(loading_bar(id, state), id="loading", className="loading"), mih="50vh")


def loading_bar(id: str, state: Progress) -> Component:
    """How far it is."""
    return progress(f"{clean(id, 100)}: {state.stage}", state.part)


def progress(sentence: str, part: float | None) -> Component:
    """How far something is, of which `part` is done if that is known."""
    known = part is not None
    bar: Any = {"value": round(100 * part) if part is not None else 100, "animated": not known, "striped": not known}
    return dmc.Stack([dmc.Text(sentence), dmc.Progress(**bar, **{"aria-label": "loading"})], w=420)
