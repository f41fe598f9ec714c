"""Ranks: all ranks of a job on one map, who makes whom wait, and how they differ."""

from __future__ import annotations

from typing import Any

import dash
import dash_mantine_components as dmc
from dash import Input, Output, State, dcc, html
from dash.development.base_component import Component

from overlapscope.base.words import clean, plural
from overlapscope.dashboard import notices, parts
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.place import Place, parse
from overlapscope.dashboard.posts import Click
from overlapscope.dashboard.rank_panels import BUCKETS, MAP, MEANING, METRIC, STEPS, TABLE, content
from overlapscope.dashboard.rank_reports import TRACES, Job, Ranks, chosen, job_of, of_file, of_job, waiting_for
from overlapscope.dashboard.shown import Shown, settled
from overlapscope.ranks.result import RanksReport
from overlapscope.views.charts.rank_maps import rank_map
from overlapscope.views.ranks.metrics import METRICS
from overlapscope.views.ranks.slots import Slot, slot_at

_POLL_MS = 300
_LEAD = "The ranks of one job beside one another: who makes whom wait, and where the time of each goes."


def layout(shown: Shown) -> Component:
    """The page; what is in it comes from the callback, since ranks may have to be read first."""
    library, place = shown.library, shown.place
    files = library.ranks_files()
    known = place.trace is not None and library.entry(place.trace) is not None
    if not files and not known:
        nothing = place.trace is None
        return notices.nothing_opened(place, reports=False) if nothing else notices.no_trace(place, place.trace or "")
    siblings = library.siblings(place.trace or "")
    if not files and len(siblings) < 2:
        return parts.page("Ranks", _alone(), lead=_LEAD)
    job = job_of(library, place.trace or "", everything=False)
    of_traces = chosen(library, place) is None
    return parts.page(
        "Ranks",
        dcc.Interval(id="ranks-clock", interval=_POLL_MS),
        dcc.Store(id="ranks-known", data=None),
        dmc.Select(
            id="ranks-source",
            label="report",
            data=_sources(shown, job),
            value=_source(shown),
            allowDeselect=False,
            maw=420,
            style={} if files and len(_sources(shown, job)) > 1 else {"display": "none"},
        ),
        dmc.Switch(
            id="ranks-all",
            label=f"all {plural(len(siblings), 'trace')} of the folder",
            checked=len(job.ids) < 2,
            style={} if of_traces and job.others else {"display": "none"},
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
            "Of a job with many ranks, or far away, open the report:",
            dmc.Code("overlapscope ranks traces/ --format json -o ranks.json; overlapscope dashboard ranks.json"),
        ),
    )


def _sources(shown: Shown, job: Job) -> list[dict[str, str]]:
    """The reports that were written, and the traces of the folder."""
    choices = [{"value": one.id, "label": clean(one.id, 120)} for one in shown.library.ranks_files()]
    if len(shown.library.siblings(shown.place.trace or "")) > 1:
        choices.append({"value": TRACES, "label": f"the traces beside {clean(shown.place.trace or '', 80)}"})
    return choices


def _source(shown: Shown) -> str:
    file = chosen(shown.library, shown.place)
    return TRACES if file is None else file.id


# -- callbacks ------------------------------------------------------------------------------------


def register(app: dash.Dash, library: Library) -> None:
    """Reads the ranks one after another, shows them once all are there, and opens one that is clicked."""
    base = app.config.requests_pathname_prefix

    def ranks_of(place: Place, everything: bool) -> Ranks | None:
        file = chosen(library, place)
        if file is not None:
            return of_file(library, file)
        return of_job(library, job_of(library, place.trace or "", everything=everything))

    # What is shown of a thousand ranks takes longer than the clock does from one tick to the next, and a tick would
    # have the answer to the one before thrown away: so the clock asks only whether all are there.
    @app.callback(
        Output("ranks-progress", "children"),
        Output("ranks-known", "data"),
        Output("ranks-clock", "disabled"),
        Input("ranks-clock", "n_intervals"),
        Input("ranks-all", "checked"),
        State("url", "pathname"),
        State("url", "search"),
    )
    def look(intervals: int | None, everything: bool, pathname: str | None, search: str | None) -> Any:
        place = settled(library, parse(base, pathname, search))
        if chosen(library, place) is None:
            job = job_of(library, place.trace or "", everything=everything)
            missing = waiting_for(library, job)
            if missing:
                return _progress(library, job, missing), None, False
        return None, "all" if everything else "alike", True

    @app.callback(
        Output("ranks-content", "children"),
        Input("ranks-known", "data"),
        State("url", "pathname"),
        State("url", "search"),
        State("scheme-shown", "data"),
    )
    def show(known: str | None, pathname: str | None, search: str | None, scheme: str | None) -> Any:
        place = settled(library, parse(base, pathname, search))
        found = ranks_of(place, known == "all") if known else None
        if found is None:
            return dash.no_update
        return content(Shown(place, library, library.opened(place.trace), None, scheme == "dark"), found)

    @app.callback(
        Output(MAP, "figure"),
        Output(MEANING, "children"),
        Input(METRIC, "value"),
        State("ranks-all", "checked"),
        State("url", "pathname"),
        State("url", "search"),
        State("scheme-shown", "data"),
        prevent_initial_call=True,
    )
    def color(metric: str, everything: bool, pathname: str | None, search: str | None, scheme: str | None) -> Any:
        found = ranks_of(settled(library, parse(base, pathname, search)), everything)
        if found is None or metric not in METRICS:
            return dash.no_update, dash.no_update
        return rank_map(found.report, METRICS[metric], scheme == "dark"), METRICS[metric].meaning

    def open_rank(click: Click | None, chart: str, everything: bool, pathname: str | None, search: str | None) -> Any:
        place = settled(library, parse(base, pathname, search))
        found = ranks_of(place, everything)
        slot = _clicked(found.report, click, lines=chart == MAP) if found is not None else None
        trace = found.trace(slot.row) if found is not None and slot is not None and slot.row is not None else None
        return dash.no_update if trace is None else place.href("overview", trace=trace)

    for chart in (MAP, STEPS, BUCKETS):
        app.callback(
            Output("url", "href", allow_duplicate=True),
            Input(chart, "clickData"),
            State(chart, "id"),
            State("ranks-all", "checked"),
            State("url", "pathname"),
            State("url", "search"),
            prevent_initial_call=True,
        )(open_rank)

    @app.callback(
        Output("url", "href", allow_duplicate=True),
        Input("ranks-source", "value"),
        State("url", "pathname"),
        State("url", "search"),
        prevent_initial_call=True,
    )
    def choose(source: str | None, pathname: str | None, search: str | None) -> Any:
        place = settled(library, parse(base, pathname, search))
        file = chosen(library, place)
        now = TRACES if file is None else file.id
        return dash.no_update if source in (None, now) else place.href(report=source)

    parts.register_csv(app, TABLE)


def _clicked(report: RanksReport, click: Click | None, *, lines: bool) -> Slot | None:
    """The place of a chart that was clicked. Of a map Dash tells line and column alone."""
    for point in click.points if click else ():
        x, y = point.x, point.y if lines else 0
        if isinstance(x, int) and isinstance(y, int):
            return slot_at(report, x, y)
    return None


def _progress(library: Library, job: Job, missing: tuple[str, ...]) -> Component:
    done = len(job.ids) - len(missing)
    state = library.loading(missing[0])
    return dmc.Stack(
        [
            dmc.Text(f"{done} of {plural(len(job.ids), 'trace')} read; {clean(missing[0], 100)}: {state.stage}"),
            dmc.Progress(value=round(100 * (done + (state.part or 0)) / len(job.ids)), **{"aria-label": "loading"}),
        ],
        maw=520,
    )
