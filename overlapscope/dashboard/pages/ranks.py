"""Ranks: all ranks of a job on one map, who makes whom wait, and how they differ."""

from __future__ import annotations

from typing import Any

import dash
import dash_mantine_components as dmc
from dash import Input, Output, State, dcc, html
from dash.development.base_component import Component

from overlapscope.dashboard import at_time, notices, parts
from overlapscope.dashboard.figure_tiles import figure_tiles
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.place import Place, parse
from overlapscope.dashboard.plain_table import plain_table
from overlapscope.dashboard.rank_reports import TRACES, Job, Ranks, chosen, job_of, of_file, of_job, waiting_for
from overlapscope.dashboard.shown import Shown, settled
from overlapscope.ranks.result import Meeting, RanksReport
from overlapscope.views.charts.rank_buckets import rank_buckets
from overlapscope.views.charts.rank_maps import MOST_STEPS, rank_map, step_map
from overlapscope.views.colors import palette
from overlapscope.views.ranks import tables
from overlapscope.views.ranks.grid import every_rank
from overlapscope.views.ranks.headline import headlines
from overlapscope.views.ranks.metrics import METRICS, first
from overlapscope.views.ranks.metrics import shown as metrics_of
from overlapscope.views.ranks.slots import Slot, slot_at
from overlapscope.views.ranks.words import TONES, clocks, doubts, judge, step_note
from overlapscope.views.ranks.worst import Look, looks
from overlapscope.views.tables import Table
from overlapscope.words import clean, plural

_POLL_MS = 300
_LISTED = 10
_LEAD = "The ranks of one job beside one another: who makes whom wait, and where the time of each goes."
_SIGNS = {"good": "✓", "fair": "!", "poor": "✕", "unknown": "?", "unusable": "?"}
_MAP, _STEPS, _BUCKETS = "ranks-map", "ranks-steps", "ranks-buckets"
_CHARTS = (_MAP, _STEPS, _BUCKETS)


def layout(shown: Shown) -> Component:
    """The page; what is in it comes from the callback, since ranks may have to be read first."""
    library, place = shown.library, shown.place
    files = library.ranks_files()
    known = place.trace is not None and library.entry(place.trace) is not None
    if not files and not known:
        return notices.nothing_opened() if place.trace is None else notices.no_trace(place, place.trace)
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
        return _content(Shown(place, library, library.opened(place.trace), None, scheme == "dark"), found)

    @app.callback(
        Output(_MAP, "figure"),
        Output("ranks-meaning", "children"),
        Input("ranks-metric", "value"),
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

    def open_rank(
        click: dict[str, Any] | None, chart: str, everything: bool, pathname: str | None, search: str | None
    ) -> Any:
        place = settled(library, parse(base, pathname, search))
        found = ranks_of(place, everything)
        slot = _clicked(found.report, click, lines=chart == _MAP) if found is not None else None
        trace = found.trace(slot.row) if found is not None and slot is not None and slot.row is not None else None
        return dash.no_update if trace is None else place.href("overview", trace=trace)

    for chart in _CHARTS:
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

    parts.register_csv(app, "ranks-table")


def _clicked(report: RanksReport, click: dict[str, Any] | None, *, lines: bool) -> Slot | None:
    """The place of a chart that was clicked. Of a map Dash tells line and column alone."""
    for point in (click or {}).get("points", []):
        x, y = point.get("x"), point.get("y") if lines else 0
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


# -- what is shown --------------------------------------------------------------------------------


def _content(shown: Shown, ranks: Ranks) -> Component:
    report = ranks.report
    told = doubts(report)
    return dmc.Stack(
        [
            _verdict(shown, report),
            *([_doubts(told)] if told else []),
            *([figure_tiles(headlines(report), "ranks-figures")] if report.ranks else []),
            *_maps(shown, ranks),
            *_waiting(shown, ranks),
            *_worst(shown, ranks),
            *_differences(shown, report),
            *_each(shown, ranks),
        ],
        gap="md",
    )


def _verdict(shown: Shown, report: RanksReport) -> Component:
    found = judge(report)
    color = palette(shown.dark)[TONES[found.level]]
    word = dmc.Group(
        [html.Span(_SIGNS[found.level], **parts.UNREAD), html.Span(found.level, id="ranks-level")],
        gap=8,
        style={"color": color, "fontWeight": 700},
    )
    rest = [dmc.Text(" ".join(found.rest), fz=16, mt=4)] if found.rest else []
    return dmc.Paper(
        [word, dmc.Text(found.first, fw=600, fz=22, lh=1.3, mt=4, id="ranks-waits"), *rest],
        withBorder=True,
        p="md",
        style={"borderLeft": f"6px solid {color}"},
    )


def _doubts(told: tuple[str, ...]) -> Component:
    return dmc.Alert(
        dmc.List([dmc.ListItem(sentence) for sentence in told], size="sm"),
        title="Mind this",
        color="yellow",
        id="ranks-doubts",
    )


def _maps(shown: Shown, ranks: Ranks) -> list[Component]:
    """The map of all ranks by one figure, and that of their steps."""
    report, metric = ranks.report, first(ranks.report)
    opened = " A click opens the rank's trace." if ranks.traces else ""
    found = []
    if metric is not None:
        choice = dmc.SegmentedControl(
            id="ranks-metric",
            data=[{"value": one.key, "label": one.title} for one in metrics_of(report)],
            value=metric.key,
            size="xs",
        )
        found.append(
            parts.panel(
                "Map of the ranks",
                dmc.Text(metric.meaning, size="sm", id="ranks-meaning"),
                parts.graph(rank_map(report, metric, shown.dark), _MAP, name="ranks"),
                note=f"The stronger the colour, the worse; a cross where a trace is missing.{opened}",
                beside=choice,
            )
        )
    steps = step_map(report, shown.dark)
    if steps is not None:
        chart = parts.graph(steps, _STEPS, name=_STEPS)
        note = step_note(report, min(MOST_STEPS, len(report.steps)))
        found.append(parts.panel("Each step of each rank", chart, note=f"{note}{opened}"))
    return found


def _waiting(shown: Shown, ranks: Ranks) -> list[Component]:
    report = ranks.report
    late = tables.stragglers(report, most=_LISTED)
    met = tables.meetings(report, most=_LISTED)
    links = [_at(shown.place, ranks, one) for one in report.meetings[: len(met.rows)]]
    return [
        parts.panel(one.title, plain_table(shown, one, {}, id, one_links), note=one.note)
        for one, id, one_links in ((late, "ranks-stragglers", ()), (met, "ranks-meetings", links))
        if one.rows
    ]


def _at(place: Place, ranks: Ranks, one: Meeting) -> Component | None:
    """To a collective in the timeline of the rank that came last, where its trace is here."""
    rows = enumerate(ranks.report.ranks)
    trace = next((ranks.trace(row) for row, rank in rows if rank.joined and rank.rank == one.late_rank), None)
    if trace is None:
        return None
    return html.A("timeline →", href=at_time.href(place, trace, one.window), className="timeline-link")


def _worst(shown: Shown, ranks: Ranks) -> list[Component]:
    found = looks(ranks.report)
    return [parts.panel("Ranks worth a look", *(_look(shown, ranks, one) for one in found))] if found else []


def _look(shown: Shown, ranks: Ranks, one: Look) -> Component:
    trace = ranks.traces.get(one.source)
    link = [dcc.Link("open →", href=shown.place.href("overview", trace=trace), className="timeline-link")]
    return html.Div(
        [
            dmc.Group([dmc.Text(one.title, fw=600), *(link if trace is not None else [])], gap="md"),
            *([dmc.Text(one.more, size="sm")] if one.more else []),
            dmc.List([dmc.ListItem(finding) for finding in one.findings], size="sm"),
        ],
        style={"marginTop": "10px"},
    )


def _differences(shown: Shown, report: RanksReport) -> list[Component]:
    found: list[Table] = [tables.steps(report, most=_LISTED), tables.spreads(report)]
    return [parts.panel(one.title, plain_table(shown, one, {}), note=one.note) for one in found if one.rows]


def _each(shown: Shown, ranks: Ranks) -> list[Component]:
    report = ranks.report
    buckets = rank_buckets(report, shown.dark)
    chart = [] if buckets is None else [parts.graph(buckets, _BUCKETS, name=_BUCKETS)]
    traces = [ranks.trace(row) for row in range(len(report.ranks))]
    opens = [None if trace is None else shown.place.href("overview", trace=trace) for trace in traces]
    if not report.ranks:
        return []
    return [
        *([parts.panel("Where the time of each rank goes", *chart)] if chart else []),
        parts.panel(
            "Each rank",
            parts.grid(shown, every_rank(report), "ranks-table", opens=opens),
            beside=parts.csv_button("ranks-table"),
        ),
        parts.panel("Clocks", *(dmc.Text(sentence, size="sm") for sentence in clocks(report))),
    ]
