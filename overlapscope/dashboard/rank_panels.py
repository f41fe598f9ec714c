"""What the page Ranks shows of a report: the answer, maps, who waits for whom, and every rank."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from overlapscope.dashboard import moments, parts, render
from overlapscope.dashboard.context import PageContext
from overlapscope.dashboard.rank_reports import Ranks
from overlapscope.dashboard.url import UrlState
from overlapscope.ranks import charts, tables
from overlapscope.ranks.looks import Look, looks
from overlapscope.ranks.metrics import first, headlines
from overlapscope.ranks.metrics import shown as metrics_of
from overlapscope.ranks.result import Meeting, RanksReport
from overlapscope.ranks.verdict import TONES, clocks, doubts, judge, step_note

MAP, STEPS, BUCKETS = "ranks-map", "ranks-steps", "ranks-buckets"
"""Ids of the charts whose places are ranks."""
TABLE, METRIC, MEANING = "ranks-table", "ranks-metric", "ranks-meaning"
_LISTED = 10


def content(context: PageContext, ranks: Ranks) -> Component:
    """All of the page that is about a report."""
    report = ranks.report
    told = doubts(report)
    return dmc.Stack(
        [
            _verdict(context, report),
            *([parts.warning("Mind this", told, "ranks-doubts")] if told else []),
            *([render.tiles(headlines(report), "ranks-figures")] if report.ranks else []),
            *_maps(context, ranks),
            *_waiting(context, ranks),
            *_worst(context, ranks),
            *_differences(context, report),
            *_each(context, ranks),
        ],
        gap="md",
    )


def _verdict(context: PageContext, report: RanksReport) -> Component:
    found = judge(report)
    rest = [dmc.Text(" ".join(found.rest), fz=16, mt=4)] if found.rest else []
    ids = ("ranks-level", "ranks-waits")
    return parts.answer(context, TONES[found.level], found.level, found.first, *rest, ids=ids)


def _maps(context: PageContext, ranks: Ranks) -> list[Component]:
    """The map of all ranks by one figure, and that of their steps."""
    report, metric = ranks.report, first(ranks.report)
    opened = " A click opens the rank's trace." if ranks.traces else ""
    found = []
    if metric is not None:
        choice = dmc.SegmentedControl(
            id=METRIC,
            data=[{"value": one.key, "label": one.title} for one in metrics_of(report)],
            value=metric.key,
            size="xs",
        )
        found.append(
            parts.panel(
                "Map of the ranks",
                dmc.Text(metric.meaning, size="sm", id=MEANING),
                render.graph(charts.rank_map(report, metric, context.dark), MAP, name="ranks"),
                note=f"The stronger the colour, the worse; a cross where a trace is missing.{opened}",
                beside=choice,
            )
        )
    steps = charts.drawn_steps(report)
    if steps:
        chart = render.graph(charts.step_map(report, context.dark), STEPS, name=STEPS)
        note = step_note(report, len(steps))
        found.append(parts.panel("Each step of each rank", chart, note=f"{note}{opened}"))
    return found


def _waiting(context: PageContext, ranks: Ranks) -> list[Component]:
    report = ranks.report
    late, met = tables.stragglers(report, rows=_LISTED), tables.meetings(report, rows=_LISTED)
    links = [_at(context.url, ranks, meeting) for meeting in report.meetings[: len(met.rows)]]
    return [
        *([parts.table_panel(context, late, "ranks-stragglers")] if late.rows else []),
        *([parts.table_panel(context, met, "ranks-meetings", links)] if met.rows else []),
    ]


def _at(url: UrlState, ranks: Ranks, one: Meeting) -> Component | None:
    """To a collective in the timeline of the rank that came last, where its trace is here."""
    rows = enumerate(ranks.report.ranks)
    trace = next((ranks.trace(row) for row, rank in rows if rank.joined and rank.rank == one.late_rank), None)
    if trace is None:
        return None
    return html.A("timeline →", href=moments.href(url, trace, one.window), className="timeline-link")


def _worst(context: PageContext, ranks: Ranks) -> list[Component]:
    found = looks(ranks.report)
    return [parts.panel("Ranks worth a look", *(_look(context, ranks, one) for one in found))] if found else []


def _look(context: PageContext, ranks: Ranks, one: Look) -> Component:
    trace = ranks.traces.get(one.source)
    link = [dcc.Link("open →", href=context.url.href("overview", trace=trace), className="timeline-link")]
    return html.Div(
        [
            dmc.Group([dmc.Text(one.title, fw=600), *(link if trace is not None else [])], gap="md"),
            *(dmc.Text(line, size="sm") for line in one.sentences),
            dmc.List([dmc.ListItem(finding) for finding in one.findings], size="sm"),
        ],
        style={"marginTop": "10px"},
    )


def _differences(context: PageContext, report: RanksReport) -> list[Component]:
    found = (tables.steps(report, rows=_LISTED), tables.spreads(report))
    return [parts.table_panel(context, table) for table in found if table.rows]


def _each(context: PageContext, ranks: Ranks) -> list[Component]:
    report = ranks.report
    chart = []
    if charts.has_rank_buckets(report):
        chart = [render.graph(charts.rank_buckets(report, context.dark), BUCKETS, name=BUCKETS)]
    traces = [ranks.trace(row) for row in range(len(report.ranks))]
    opens = [None if trace is None else context.url.href("overview", trace=trace) for trace in traces]
    if not report.ranks:
        return []
    return [
        *([parts.panel("Where the time of each rank goes", *chart)] if chart else []),
        parts.grid_panel(context, "Each rank", tables.every_rank(report), TABLE, opens=opens),
        parts.panel("Clocks", *(dmc.Text(sentence, size="sm") for sentence in clocks(report))),
    ]
