"""The page Ranks: a map of all ranks of a job, who makes whom wait, and how they differ."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import dash
import dash_mantine_components as dmc
from dash import Input, State, html
from dash.development.base_component import Component
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.base.words import clean, plural
from overlapscope.dashboard import parts, render
from overlapscope.dashboard.callbacks import Callbacks, Click
from overlapscope.dashboard.context import PageContext, UrlState, instant_href
from overlapscope.dashboard.library import Library, RanksFile
from overlapscope.documents.model import Items
from overlapscope.ranks import document
from overlapscope.ranks.charts import slot_at
from overlapscope.ranks.document import BUCKETS, MAPS, STEPS, clocks, findings, head, maps, stand_outs
from overlapscope.ranks.join import report_on
from overlapscope.ranks.result import RanksReport, Unreadable

# -- The ranks of a written report, or of the traces in a folder -----------------------------------

TRACES = "traces"
"""Value in URLs for the traces of the folder, instead of a report's id."""


class Ranks(Struct, frozen=True):
    """A report, and the traces of its rows that can be opened."""

    report: RanksReport
    traces: Mapping[str, str]
    """Ids of traces by the source in their rows."""

    def trace(self, row: int) -> str | None:
        """Return the id of a row's trace; None if the trace is not here."""
        exists = 0 <= row < len(self.report.ranks)
        return self.traces.get(self.report.ranks[row].source) if exists else None


def chosen(library: Library, url: UrlState) -> RanksFile | None:
    """Return the written report of a URL, by default the first; None if the URL names the traces."""
    files = library.ranks_files()
    if url.report == TRACES:
        return None
    return next((file for file in files if file.id == url.report), next(iter(files), None))


def of_file(library: Library, file: RanksFile) -> Ranks:
    """Return a written report, with the traces of its rows that are here."""
    entries = library.entries()

    def look_up() -> Ranks:
        by_name: dict[str, list[str]] = {}
        for entry in entries:
            by_name.setdefault(entry.path.name, []).append(entry.id)
        sources = {row.source for row in file.report.ranks}
        traces = {source: _trace(library, file, source, by_name) for source in sources}
        return Ranks(file.report, {source: id for source, id in traces.items() if id is not None})

    ranks: Ranks = library.results_of_pages.remember(("ranks", file.id, len(entries)), look_up)
    return ranks


def _trace(library: Library, file: RanksFile, source: str, by_name: Mapping[str, list[str]]) -> str | None:
    """Return the id of the trace at that path, from here or from the report, or else of the only trace of that name."""
    if "://" not in source:
        for path in (Path(source), file.path.parent / source):
            if (id := library.id_of(path)) is not None:
                return id
    alike = by_name.get(Path(source).name, [])
    return alike[0] if len(alike) == 1 else None


def job_of(library: Library, id: str) -> tuple[str, ...]:
    """Return the ids of the folder's traces whose names differ from this name only in their numbers."""
    pattern = re.sub(r"\d+", "#", id)
    return tuple(sibling for sibling in library.siblings(id) if re.sub(r"\d+", "#", sibling) == pattern)


def _compared(context: PageContext) -> tuple[str, ...]:
    """Return the ids of the job of the address; if it has one trace only, of all traces of its folder."""
    library, id = context.library, context.url.trace or ""
    job = job_of(library, id)
    return job if len(job) > 1 else library.siblings(id)


def waiting_for(library: Library, job: tuple[str, ...]) -> tuple[str, ...]:
    """Return the ids of a job's traces that are yet to be read, and request them."""
    return tuple(id for id in job if library.reduced(id) is None)


def of_job(library: Library, job: tuple[str, ...]) -> Ranks | None:
    """Return the report of a job's traces; None until all of them are read."""
    parts = tuple(part for part in map(library.reduced, job) if part is not None)
    if len(parts) < len(job):
        return None

    def join() -> Ranks:
        traces = [(part,) if isinstance(part, Unreadable) else part for part in parts]
        return Ranks(
            report_on(parts), {trace.source: id for id, devices in zip(job, traces, strict=True) for trace in devices}
        )

    # Keep the report: joining a thousand ranks takes a moment, and every callback needs it.
    ranks: Ranks = library.results_of_pages.remember(("ranks", job, parts), join)
    return ranks


TABLE = "ranks-table"
_MAX_ROWS = 10
_LEAD = "The ranks of one job side by side: who makes the others wait, and where the time of each goes."
_OPENS = " A click on a chart opens the trace of a rank."
_NO_RANKS = "Nothing in these traces says that they belong to one job, so each is shown by itself."


def waits(context: PageContext) -> Component | None:
    """Return how many of the ranks are read, and have the next one read; None if all are."""
    library, job = context.library, _compared(context)
    if chosen(library, context.url) is not None or len(job) < 2 or not (missing := waiting_for(library, job)):
        return None
    done, state = len(job) - len(missing), library.loading(missing[0])
    sentence = f"{done} of {plural(len(job), 'trace')} read; {clean(missing[0], 100)}: {state.stage}"
    return parts.progress(sentence, (done + (state.part or 0)) / len(job))


def layout(context: PageContext) -> Component:
    """Return the page, once all ranks are read."""
    library, url = context.library, context.url
    files = library.ranks_files()
    has_trace = url.trace is not None and library.entry(url.trace) is not None
    if not files and not has_trace:
        return parts.nothing_opened(url, reports=False) if url.trace is None else parts.no_trace(url.trace)
    if not files and len(library.siblings(url.trace or "")) < 2:
        return parts.page("Ranks", _alone(), lead=_LEAD)
    ranks, sources = _ranks(context), _sources(context)
    if ranks is None:
        return parts.notice("A trace has just changed", "Load the page again.")
    choice = dmc.Select(
        id="ranks-source",
        label="report",
        data=sources,
        value=_source(context),
        allowDeselect=False,
        maw=420,
        style={} if files and len(sources) > 1 else {"display": "none"},
    )
    return dmc.Stack([choice, _content(context, ranks)], gap="md", maw=1500)


def _alone() -> Component:
    return render.panel(
        "One trace is open",
        parts.empty(
            "The ranks of a job are the traces of one folder, one for each process. Open the folder:",
            dmc.Code("overlapscope dashboard train.traces/"),
            "To record them into the folder train.traces:",
            dmc.Code("torchrun --nproc-per-node 8 -m overlapscope run train.py"),
            "If the job has many ranks or runs on another machine, open its report instead:",
            dmc.Code("overlapscope ranks train.traces/ --format json -o ranks.json; overlapscope dashboard ranks.json"),
        ),
    )


def _sources(context: PageContext) -> list[dict[str, str]]:
    """Return the choice between written reports and the traces of the folder."""
    choices = [{"value": file.id, "label": clean(file.id, 120)} for file in context.library.ranks_files()]
    if len(context.library.siblings(context.url.trace or "")) > 1:
        choices.append({"value": TRACES, "label": f"the traces beside {clean(context.url.trace or '', 80)}"})
    return choices


def _source(context: PageContext) -> str:
    file = chosen(context.library, context.url)
    return TRACES if file is None else file.id


# -- A report --------------------------------------------------------------------------------------


def _content(context: PageContext, ranks: Ranks) -> Component:
    """Return the content for a report."""
    report = ranks.report
    if sum(row.joined for row in report.ranks) < 2 and not report.missing:
        return _side_by_side(context, ranks)
    # Pages of a single trace may be of another program.
    timed = any(row.plain_step_ns is not None for row in report.ranks)
    beside = "; the pages of a single trace show its program without the profiler" if timed else ""
    return parts.page(
        "Ranks",
        *render.draw((*head(report), *maps(report)), context.dark),
        *_tables(context, ranks),
        *render.draw((*findings(report), *stand_outs(report)), context.dark),
        *([_grid(context, ranks, "Each rank")] if report.ranks else []),
        *render.draw(clocks(report), context.dark),
        lead=f"{_LEAD} Figures are of the recordings{beside}.{_OPENS if ranks.traces else ''}",
    )


def _side_by_side(context: PageContext, ranks: Ranks) -> Component:
    """Return traces that don't share a job: only their figures can be compared."""
    broken = tuple(clean(f"{trace.source}: {trace.reason}", 600) for trace in ranks.report.unreadable)
    return parts.page(
        "Traces side by side",
        *([parts.drawn(context, "Traces that cannot be compared", Items(broken))] if broken else []),
        *([_grid(context, ranks, "Each trace")] if ranks.report.ranks else []),
        lead=_NO_RANKS,
    )


def _tables(context: PageContext, ranks: Ranks) -> Iterator[Component]:
    """Yield all tables except that of each rank; collectives link to the timeline of the rank that came last."""
    report = ranks.report
    others = document.other_tables(report, rows=_MAX_ROWS, each=0)
    trace_of = {rank.rank: ranks.trace(row) for row, rank in reversed([*enumerate(report.ranks)]) if rank.joined}
    for table in (*document.main_tables(report, rows=_MAX_ROWS), *(table for _, table in others)):
        links = list[Component | None]()
        for met in report.meetings[: len(table.rows)] if table.id == document.MEETINGS else ():
            trace = trace_of.get(met.late_rank)
            href = None if trace is None else instant_href(context.url, trace, met.window)
            links.append(None if href is None else html.A("timeline →", href=href, className="timeline-link"))
        if table.id != document.EACH_RANK:
            yield parts.table_panel(context, table, table.id and f"ranks-{table.id}", links)


def _grid(context: PageContext, ranks: Ranks, title: str) -> Component:
    """Return all figures of each rank in a table that can be sorted."""
    traces = [ranks.trace(row) for row in range(len(ranks.report.ranks))]
    opens = [None if trace is None else context.url.href("overview", trace=trace) for trace in traces]
    return parts.grid_panel(context, replace(document.each_rank(ranks.report), title=title), TABLE, opens=opens)


# -- Callbacks -------------------------------------------------------------------------------------


callbacks = Callbacks()


def _ranks(context: PageContext) -> Ranks | None:
    """Return the report of the address; None until all its traces are read."""
    file = chosen(context.library, context.url)
    if file is not None:
        return of_file(context.library, file)
    return of_job(context.library, _compared(context))


def open_rank(context: PageContext, click: Click | None, chart: str) -> Any:
    """Return the address of the trace of the clicked rank. For a map, Dash passes only line and column."""
    ranks = _ranks(context)
    for point in click.points if click and ranks is not None else ():
        x, y = point.x, point.y if chart in MAPS else 0
        if ranks is not None and type(x) is int and type(y) is int:
            slot = slot_at(ranks.report, x, y)
            trace = ranks.trace(slot.row) if slot is not None and slot.row is not None else None
            return dash.no_update if trace is None else context.url.href("overview", trace=trace)
    return dash.no_update


for _chart in (*MAPS, STEPS, BUCKETS):
    callbacks.leads(Input(_chart, "clickData"), State(_chart, "id"))(open_rank)


@callbacks.leads(Input("ranks-source", "value"))
def choose(context: PageContext, source: str | None) -> Any:
    """Return the address of the chosen report."""
    return dash.no_update if source in (None, _source(context)) else context.url.href(report=source)
