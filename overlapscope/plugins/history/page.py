"""The page History: a metric of stored reports over commits or time, with its changes and the reports themselves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import dash
import dash_mantine_components as dmc
from dash import Input, Output, State, dcc
from dash.development.base_component import Component

from overlapscope.base.words import clean, listed, plural
from overlapscope.budgets import document as check_document
from overlapscope.compare.diff import diff
from overlapscope.compare.document import document as diff_document
from overlapscope.dashboard import parts, render
from overlapscope.dashboard.callbacks import Callbacks, Click
from overlapscope.dashboard.context import PageContext
from overlapscope.documents.model import Items, Text
from overlapscope.documents.table import Table
from overlapscope.errors import OverlapscopeError, UsageError
from overlapscope.plugins.history.course import Course, JobCourse, course, metric_of
from overlapscope.plugins.history.document import blocks, chart
from overlapscope.plugins.history.entry import Entry, moment, short
from overlapscope.plugins.history.levels import BY, By, alike
from overlapscope.plugins.history.store import Query, Store
from overlapscope.plugins.history.stored import Stored
from overlapscope.report.page import Page
from overlapscope.timeline.file import document as report_document

LEAD = "How a figure of a job changes from commit to commit, and when it got worse."

Name = TypeVar("Name", bound=str)

CHART, COMPARING, SHOWN = "history-chart", "history-comparing", "history-shown"
_LOOK_MS = 30_000
_WITHOUT_COMMITS: tuple[By, ...] = ("report", "hour", "commit")
_POINTS_PER_RESULT = 2000
"""Number of points that weigh as much as another result of a page."""
_MAX_TRACES = 8
"""Maximum number of a report's traces that are linked."""
_PAGES = ("overview", "timeline", "whatif")
"""Pages of a trace to link from its stored report."""


def layout(context: PageContext) -> Iterator[Component]:
    """Yield the parts of the page. Its content is drawn again when reports are added."""
    stored = _stored(context)
    yield dcc.Interval(id="history-clock", interval=_LOOK_MS, disabled=stored is None)
    yield dcc.Store(id="history-state", data=None if stored is None else stored.state)
    yield dmc.Stack(_content(context), id="history-content", gap="md")


def _stored(context: PageContext) -> Stored | None:
    stored: Stored | None = context.library.data.get("history")
    return stored


def _content(context: PageContext) -> list[Component]:
    stored = _stored(context)
    try:
        if stored is not None and stored.state:
            with Store.open(stored.path, read_only=True) as store:
                if jobs := store.jobs():
                    return _shown(context, stored, store, jobs)
    except OverlapscopeError as error:
        return [render.panel("The history cannot be shown", parts.empty(clean(str(error), 1000)))]
    return [render.panel("No report is stored", parts.empty(*_HOW_TO_FILL))]


_HOW_TO_FILL = (
    "Add reports or traces to the history, after each run or each commit:",
    "`overlapscope history add train.trace.json.gz --job train.py`",
    "They appear here as soon as they are added. To show another history:",
    "`overlapscope dashboard --history FILE`",
)


# -- The series ------------------------------------------------------------------------------------


def _shown(context: PageContext, stored: Stored, store: Store, jobs: Sequence[str]) -> list[Component]:
    """Return the chart for the address; missing choices default to the first."""
    choices, metrics = context.url.choices, [name for name in store.metrics() if _is_metric(name)]
    if not metrics:
        problem = "No report in the history has a figure that can be believed."
        return [render.panel("No figures", parts.empty(problem))]
    job, metric = _or_first(choices.get("job"), jobs), _or_first(choices.get("metric"), metrics)
    newest = store.rows(Query(job=job), most=1)
    by = _or_first(choices.get("by"), BY if any(row.origin.commit for row in newest) else _WITHOUT_COMMITS)
    shown, left_out = _course(context, stored, store, job, metric, by)
    if shown is None:
        drawn = render.panel(f"{metric} of {clean(job, 80)}", parts.empty("No report of this job has this figure."))
        return [_choices((job, metric, by), jobs, metrics), drawn]
    figure = chart(shown, context.dark, _opened_ids(context))
    note = "A click on a point opens its report." if by == "report" else "A click on a point opens its newest report."
    if left_out:
        note += f" {plural(left_out, 'value')} of other GPUs or programs cannot be compared, and are not shown."
    levels = [
        block for block in blocks(JobCourse(job=job, courses=(shown,))) if isinstance(block, Text | Items | Table)
    ]
    return [
        _choices((job, metric, by), jobs, metrics),
        render.panel(
            f"{metric} of {clean(job, 80)}",
            render.graph(figure, CHART, name="history"),
            note=note,
            beside=_switch(context),
        ),
        *_chosen(context, store),
        parts.drawn(context, "Changes", *levels, id="history-levels"),
    ]


def _course(
    context: PageContext, stored: Stored, store: Store, job: str, metric: str, by: By
) -> tuple[Course | None, int]:
    """Return a job's metric with its levels, and the number of values that can't be compared with the newest.

    The result is cached, because a year of values takes a second.
    """
    kept, key = context.library.results_of_pages, ("history", stored.state, job, metric, by)
    result: tuple[Course | None, int] | None = kept.get(key)
    if result is None:
        points = store.points(metric, Query(job=job))
        shown = course(metric, points, by)
        result = shown, len(points) - len(alike(points))
        kept.put(key, result, 1 + len(points) // _POINTS_PER_RESULT)
    return result


def _is_metric(name: str) -> bool:
    """Return whether this version knows a metric. Another version may have written the history."""
    try:
        metric_of(name)
    except UsageError:
        return False
    return True


def _or_first(name: str | None, choices: Sequence[Name]) -> Name:
    """Return the requested value if it is known, otherwise the first."""
    return next((choice for choice in choices if choice == name), choices[0])


def _choices(chosen: Sequence[str], jobs: Sequence[str], metrics: Sequence[str]) -> Component:
    job, metric, by = chosen

    control = dmc.SegmentedControl(
        id="history-by",
        data=[{"value": choice, "label": f"by {choice}"} for choice in BY],
        value=by,
        size="xs",
        **{"aria-label": "what a point is"},
    )
    return dmc.Group(
        [
            parts.select("job", "history-job", jobs, job),
            parts.select("metric", "history-metric", metrics, metric),
            control,
            dcc.Store(id=SHOWN, data=chosen),
        ],
        align="end",
        gap="md",
    )


def _switch(context: PageContext) -> Component:
    return dmc.Switch(
        id=COMPARING,
        label="compare with the next click",
        checked="against" in context.url.choices,
        disabled="entry" not in context.url.choices,
        size="sm",
    )


# -- One report, or two ----------------------------------------------------------------------------


def _opened_ids(context: PageContext) -> list[str]:
    """Return the ids of the open report, and of the report to compare it with."""
    choices = context.url.choices
    return [choices[name] for name in ("entry", "against") if name in choices]


def _chosen(context: PageContext, store: Store) -> list[Component]:
    """Return the open report, or its comparison with another."""
    if "entry" not in context.url.choices:
        return []
    try:
        entries = [store.entry(id) for id in _opened_ids(context)]
    except OverlapscopeError as error:
        return [render.panel("This report cannot be shown", parts.empty(clean(str(error), 1000)))]
    return [_compared(context, entries) if len(entries) > 1 else _opened(context, entries[0])]


def _opened(context: PageContext, entry: Entry) -> Component:
    """Return the report as in its HTML file, with the result of its check and links to its traces."""
    checked = [] if entry.check is None else check_document.log(entry.check).blocks
    return parts.drawn(
        context,
        "The report",
        Text(_origin(entry)),
        *_traces(context, entry),
        *checked,
        *report_document(Page(entry.report), []).blocks,
        beside=_link("close", context.url.href(entry=None)),
        id="history-opened",
    )


def _traces(context: PageContext, entry: Entry) -> list[Component]:
    """Return links to the pages of those traces that the dashboard has."""
    named = (context.library.id_of(Path(trace.source)) for trace in entry.report.traces)
    ids = list(dict.fromkeys(id for id in named if id is not None))
    links = [
        _link(f"{clean(id, 60)}: {page} →", context.url.href(page, trace=id, other=None))
        for id in ids[:_MAX_TRACES]
        for page in _PAGES
    ]
    return [dmc.Group(links, gap="md", mt=4, id="history-traces")] if links else []


def _link(text: str, href: str) -> Component:
    return dcc.Link(text, href=href, className="timeline-link")


def _compared(context: PageContext, entries: Sequence[Entry]) -> Component:
    """Return the changes from the earlier of two reports to the later."""
    url = context.url
    before, after = sorted(entries, key=lambda entry: entry.origin.at_ns)
    sides = []
    for side, entry in (("Before", before), ("After", after)):
        opens = _link("open →", url.href(entry=entry.id, against=None))
        sides.append(dmc.Group([dmc.Text(f"{side}: {_origin(entry)}", size="sm"), opens]))
    blocks = diff_document(diff(before.report, after.report), verbose=True).blocks
    return parts.drawn(context, "Two reports compared", *sides, *blocks, id="history-compared")


def _origin(entry: Entry) -> str:
    """Return a sentence on where a report comes from."""
    origin = entry.origin
    of = "" if origin.commit is None else f" of commit {clean(short(origin.commit), 80)}"
    of += "" if origin.branch is None else f" on branch {clean(origin.branch, 80)}"
    on = "" if origin.host is None else f", on host {clean(origin.host, 80)}"
    labels = listed(f"{clean(name, 40)}={clean(value, 80)}" for name, value in sorted(origin.labels.items()))
    on += f", with {labels}" if labels else ""
    of_plain = " The figures are of the program without the profiler." if entry.plain else ""
    return f"{clean(origin.job, 80)}{of}, recorded {moment(origin.at_ns)} UTC{on}.{of_plain}"


# -- Callbacks -------------------------------------------------------------------------------------


callbacks = Callbacks()


@callbacks.add(
    Output("history-content", "children"),
    Output("history-state", "data"),
    Input("history-clock", "n_intervals"),
    State("history-state", "data"),
    prevent_initial_call=True,
)
def look(context: PageContext, ticks: int | None, state: str | None) -> Any:
    """Return the page again if the history has changed."""
    stored = _stored(context)
    if stored is None:
        return dash.no_update, dash.no_update
    now = stored.state
    return (dash.no_update, dash.no_update) if now == state else (_content(context), now)


@callbacks.leads(
    Input("history-job", "value"),
    Input("history-metric", "value"),
    Input("history-by", "value"),
    State(SHOWN, "data"),
)
def choose(
    context: PageContext, job: str | None, metric: str | None, by: str | None, shown: tuple[str, str, str]
) -> Any:
    """Return the address of the choice. The open report stays, unless it is of another job."""
    if None in (job, metric, by) or (job, metric, by) == shown:
        return dash.no_update
    opened = {} if job == shown[0] else {"entry": None, "against": None}
    return context.url.href(job=job, metric=metric, by=by, **opened)


@callbacks.leads(Input(CHART, "clickData"), State(COMPARING, "checked"))
def open_report(context: PageContext, click: Click | None, comparing: bool | None) -> Any:
    """Return the address of the clicked report, or of its comparison with the open report."""
    id, url = click.first(str) if click else None, context.url
    if id is None:
        return dash.no_update
    if comparing and url.choices.get("entry", id) != id:
        return url.href(against=id)
    return url.href(entry=id, against=None)


@callbacks.leads(Input(COMPARING, "checked"))
def stop_comparing(context: PageContext, comparing: bool | None) -> Any:
    """Return the address of the open report alone."""
    return dash.no_update if comparing or "against" not in context.url.choices else context.url.href(against=None)
