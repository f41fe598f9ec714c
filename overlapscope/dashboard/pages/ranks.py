"""Ranks: all ranks of a job on one map, who makes whom wait, and how they differ."""

from __future__ import annotations

from typing import Any

import dash
import dash_mantine_components as dmc
from dash import Input, Output, State, dcc, html
from dash.development.base_component import Component

from overlapscope.base.words import clean, plural
from overlapscope.dashboard import notices, parts
from overlapscope.dashboard.callbacks import Callbacks, Click
from overlapscope.dashboard.context import PageContext
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.rank_panels import BUCKETS, MAP, MEANING, METRIC, STEPS, TABLE, content
from overlapscope.dashboard.rank_reports import TRACES, Job, Ranks, chosen, job_of, of_file, of_job, waiting_for
from overlapscope.ranks.charts import rank_map
from overlapscope.ranks.metrics import METRICS
from overlapscope.ranks.result import RanksReport
from overlapscope.ranks.slots import Slot, slot_at

_POLL_MS = 300
_LEAD = "The ranks of one job beside one another: who makes whom wait, and where the time of each goes."


def layout(context: PageContext) -> Component:
    """The page; what is in it comes from the callback, since ranks may have to be read first."""
    library, url = context.library, context.url
    files = library.ranks_files()
    known = url.trace is not None and library.entry(url.trace) is not None
    if not files and not known:
        nothing = url.trace is None
        return notices.nothing_opened(url, reports=False) if nothing else notices.no_trace(url, url.trace or "")
    siblings = library.siblings(url.trace or "")
    if not files and len(siblings) < 2:
        return parts.page("Ranks", _alone(), lead=_LEAD)
    job = job_of(library, url.trace or "", everything=False)
    of_traces = chosen(library, url) is None
    return parts.page(
        "Ranks",
        dcc.Interval(id="ranks-clock", interval=_POLL_MS),
        dcc.Store(id="ranks-known", data=None),
        dmc.Select(
            id="ranks-source",
            label="report",
            data=_sources(context),
            value=_source(context),
            allowDeselect=False,
            maw=420,
            style={} if files and len(_sources(context)) > 1 else {"display": "none"},
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


def _sources(context: PageContext) -> list[dict[str, str]]:
    """The reports that were written, and the traces of the folder."""
    choices = [{"value": one.id, "label": clean(one.id, 120)} for one in context.library.ranks_files()]
    if len(context.library.siblings(context.url.trace or "")) > 1:
        choices.append({"value": TRACES, "label": f"the traces beside {clean(context.url.trace or '', 80)}"})
    return choices


def _source(context: PageContext) -> str:
    file = chosen(context.library, context.url)
    return TRACES if file is None else file.id


# -- callbacks ------------------------------------------------------------------------------------


callbacks = Callbacks()
callbacks.csv(TABLE)


def _ranks(context: PageContext, everything: bool) -> Ranks | None:
    """The report that the address names; None as long as a trace of it is yet to be read."""
    file = chosen(context.library, context.url)
    if file is not None:
        return of_file(context.library, file)
    return of_job(context.library, job_of(context.library, context.url.trace or "", everything=everything))


# What is shown of a thousand ranks takes longer than the clock does from one tick to the next, and a tick would
# have the answer to the one before thrown away: so the clock asks only whether all are there.
@callbacks.add(
    Output("ranks-progress", "children"),
    Output("ranks-known", "data"),
    Output("ranks-clock", "disabled"),
    Input("ranks-clock", "n_intervals"),
    Input("ranks-all", "checked"),
)
def look(context: PageContext, intervals: int | None, everything: bool) -> Any:
    """Whether all ranks are read, one after another."""
    library = context.library
    if chosen(library, context.url) is None:
        job = job_of(library, context.url.trace or "", everything=everything)
        missing = waiting_for(library, job)
        if missing:
            return _progress(library, job, missing), None, False
    return None, "all" if everything else "alike", True


@callbacks.add(Output("ranks-content", "children"), Input("ranks-known", "data"))
def show(context: PageContext, known: str | None) -> Any:
    """The report, once all are there."""
    ranks = _ranks(context, known == "all") if known else None
    return dash.no_update if ranks is None else content(context, ranks)


@callbacks.add(
    Output(MAP, "figure"),
    Output(MEANING, "children"),
    Input(METRIC, "value"),
    State("ranks-all", "checked"),
    prevent_initial_call=True,
)
def color(context: PageContext, metric: str, everything: bool) -> Any:
    """The map by another figure."""
    ranks = _ranks(context, everything)
    if ranks is None or metric not in METRICS:
        return dash.no_update, dash.no_update
    return rank_map(ranks.report, METRICS[metric], context.dark), METRICS[metric].meaning


def open_rank(context: PageContext, click: Click | None, chart: str, everything: bool) -> Any:
    """To the trace of the rank that was clicked."""
    ranks = _ranks(context, everything)
    slot = _clicked(ranks.report, click, lines=chart == MAP) if ranks is not None else None
    trace = ranks.trace(slot.row) if ranks is not None and slot is not None and slot.row is not None else None
    return dash.no_update if trace is None else context.url.href("overview", trace=trace)


for _chart in (MAP, STEPS, BUCKETS):
    callbacks.add(
        Output("url", "href", allow_duplicate=True),
        Input(_chart, "clickData"),
        State(_chart, "id"),
        State("ranks-all", "checked"),
        prevent_initial_call=True,
    )(open_rank)


@callbacks.add(Output("url", "href", allow_duplicate=True), Input("ranks-source", "value"), prevent_initial_call=True)
def choose(context: PageContext, source: str | None) -> Any:
    """To the report that was chosen."""
    return dash.no_update if source in (None, _source(context)) else context.url.href(report=source)


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
