"""Ranks: the traces of one job beside one another, and who waits for whom."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import dash
import dash_mantine_components as dmc
from dash import Input, Output, State, dcc, html
from dash.development.base_component import Component

from overlapscope.analysis.ranks import Waits, find_waits
from overlapscope.dashboard import parts
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.place import Place, parse
from overlapscope.dashboard.shown import Shown, settled
from overlapscope.views import charts, ranks
from overlapscope.views.page import Page
from overlapscope.words import clean, plural

_POLL_MS = 300
_LEAD = "The traces of one job beside one another: where each rank's time goes, and who waits for whom."

_shown: WeakKeyDictionary[Library, dict[str, Page]] = WeakKeyDictionary()
"""Reports of ranks that were loaded once: small, where their traces may have been put away again meanwhile."""


@dataclass(frozen=True, slots=True)
class Job:
    """The traces that are shown as ranks."""

    ids: tuple[str, ...]
    others: int
    """How many more lie in the same folder, whose names say that they are of another job."""


def layout(shown: Shown) -> Component:
    """The page; what is in it comes from the callback, since ranks may have to be loaded."""
    job = job_of(shown.library, shown.opened.id, everything=False)
    everything = shown.library.siblings(shown.opened.id)
    if len(everything) < 2:
        return parts.page("Ranks", _alone(), lead=_LEAD)
    return parts.page(
        "Ranks",
        dcc.Interval(id="ranks-clock", interval=_POLL_MS),
        dcc.Store(id="ranks-known", data=None),
        dmc.Switch(
            id="ranks-all",
            label=f"all {plural(len(everything), 'trace')} of the folder",
            checked=len(job.ids) < 2,
            style={} if job.others else {"display": "none"},
        ),
        html.Div(id="ranks-progress"),
        html.Div(id="ranks-content"),
        lead=_LEAD,
    )


def _alone() -> Component:
    return parts.panel(
        "One trace is open",
        parts.empty(
            "Ranks are the traces that lie in one folder, one for each process of a job. Open the folder:",
            dmc.Code("overlapscope dashboard traces/"),
            "A job under torchrun writes them with: overlapscope run --output traces/ train.py, once in each process.",
        ),
    )


def job_of(library: Library, id: str, *, everything: bool) -> Job:
    """The traces of the same folder whose names differ from this one's in their numbers alone, or all of them."""
    siblings = library.siblings(id)
    if everything:
        return Job(siblings, 0)
    mine = re.sub(r"\d+", "#", id)
    alike = tuple(one for one in siblings if re.sub(r"\d+", "#", one) == mine)
    return Job(alike, len(siblings) - len(alike))


# -- loading --------------------------------------------------------------------------------------


def register(app: dash.Dash, library: Library) -> None:
    """Loads the ranks one after another, and shows them once all are there."""
    base = app.config.requests_pathname_prefix

    @app.callback(
        Output("ranks-progress", "children"),
        Output("ranks-content", "children"),
        Output("ranks-known", "data"),
        Output("ranks-clock", "disabled"),
        Input("ranks-clock", "n_intervals"),
        Input("ranks-all", "checked"),
        State("ranks-known", "data"),
        State("url", "pathname"),
        State("url", "search"),
        State("scheme-shown", "data"),
    )
    def look(
        intervals: int | None,
        everything: bool,
        known: str | None,
        pathname: str | None,
        search: str | None,
        scheme: str | None,
    ) -> Any:
        place = settled(library, parse(base, pathname, search))
        id = place.trace or ""
        job = job_of(library, id, everything=everything)
        missing = _missing(library, job)
        if missing:
            return _progress(library, job, missing), dash.no_update, None, False
        now = f"{scheme} {everything}"
        if known == now:
            return None, dash.no_update, now, True
        shown = Shown(place, library, library.opened(id), None, scheme == "dark")
        return None, _content(shown, job), now, True

    parts.register_csv(app, "ranks-table")


def _missing(library: Library, job: Job) -> list[str]:
    """The ranks that are not known yet; the first of them is asked for."""
    known = _shown.setdefault(library, {})
    for id in job.ids:
        opened = library.opened(id) if id not in known else None
        if opened is not None:
            known[id] = opened.page
    missing = [id for id in job.ids if id not in known and library.failure(id) is None]
    if missing:
        library.request(missing[0])
    return missing


def _progress(library: Library, job: Job, missing: Sequence[str]) -> Component:
    done = len(job.ids) - len(missing)
    state = library.loading(missing[0])
    return dmc.Stack(
        [
            dmc.Text(f"{done} of {plural(len(job.ids), 'trace')} loaded; {clean(missing[0], 100)}: {state.stage}"),
            dmc.Progress(value=round(100 * (done + (state.part or 0)) / len(job.ids)), **{"aria-label": "loading"}),
        ],
        maw=520,
    )


# -- what is shown --------------------------------------------------------------------------------


def _content(shown: Shown, job: Job) -> Component:
    known = _shown.setdefault(shown.library, {})
    pages = [(id, known[id]) for id in job.ids if id in known]
    left_out = [
        f"{clean(id, 100)}: {clean(str(failure), 500)}"
        for id in job.ids
        if (failure := shown.library.failure(id)) is not None
    ]
    sections = [(id, section) for id, page in pages for section in page.sections()]
    left_out += [f"{section.title} is unusable." for _, section in sections if not section.usable]
    compared = ranks.named([(id, section) for id, section in sections if section.usable])
    if not compared:
        return parts.panel("No rank can be shown", parts.empty(*left_out))
    waits = find_waits([rank.device for rank in compared])
    buckets = charts.ranks([rank.section for rank in compared], shown.dark)
    return dmc.Stack(
        [
            *([_warning(left_out)] if left_out else []),
            *([_who_waits(compared, waits)] if len(compared) > 1 else []),
            parts.panel("Where the time goes", parts.graph(buckets, "ranks-buckets", name="ranks")),
            parts.panel(
                "Each rank",
                parts.grid(shown, ranks.table(compared, waits), "ranks-table", links=False),
                _links(shown.place, compared),
                beside=parts.csv_button("ranks-table"),
            ),
        ],
        gap="md",
    )


def _warning(sentences: list[str]) -> Component:
    return dmc.Alert(
        dmc.List([dmc.ListItem(sentence) for sentence in sentences], size="sm"), title="Left out", color="yellow"
    )


def _who_waits(compared: Sequence[ranks.Rank], waits: Waits | None) -> Component:
    said = dmc.Text(ranks.who_waits(compared, waits), fw=600, fz=18, id="ranks-waits")
    return parts.panel("Who waits for whom", said, *([dmc.Text(ranks.HINT, c="dimmed", size="sm")] if waits else []))


def _links(place: Place, compared: Sequence[ranks.Rank]) -> Component:
    ids = {rank.trace: rank.name.partition(", device")[0] for rank in compared}
    links = [
        dcc.Link(clean(name, 80), href=place.href("overview", trace=id), className="timeline-link")
        for id, name in ids.items()
    ]
    return dmc.Group([dmc.Text("Open:", size="sm", c="dimmed"), *links], gap="md", mt="sm")
