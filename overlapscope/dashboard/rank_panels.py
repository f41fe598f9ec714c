"""What the page Ranks shows of a report: the answer, maps, who waits for whom, and every rank."""

from __future__ import annotations

import dash_mantine_components as dmc
from dash import dcc, html
from dash.development.base_component import Component

from overlapscope.dashboard import moments, parts
from overlapscope.dashboard.context import PageContext
from overlapscope.dashboard.figure_tiles import figure_tiles
from overlapscope.dashboard.rank_reports import Ranks
from overlapscope.dashboard.render import plain_table
from overlapscope.dashboard.url import UrlState
from overlapscope.documents.colors import palette
from overlapscope.ranks.result import Meeting, RanksReport
from overlapscope.views.charts.rank_buckets import rank_buckets
from overlapscope.views.charts.rank_maps import drawn_steps, rank_map, step_map
from overlapscope.views.old_tables import Table
from overlapscope.views.ranks import tables
from overlapscope.views.ranks.grid import every_rank
from overlapscope.views.ranks.headline import headlines
from overlapscope.views.ranks.metrics import first
from overlapscope.views.ranks.metrics import shown as metrics_of
from overlapscope.views.ranks.words import TONES, clocks, doubts, judge, step_note
from overlapscope.views.ranks.worst import Look, looks

MAP, STEPS, BUCKETS = "ranks-map", "ranks-steps", "ranks-buckets"
"""Ids of the charts whose places are ranks."""
TABLE, METRIC, MEANING = "ranks-table", "ranks-metric", "ranks-meaning"
_LISTED = 10
_SIGNS = {"good": "✓", "fair": "!", "poor": "✕", "unknown": "?", "unusable": "?"}


def content(context: PageContext, ranks: Ranks) -> Component:
    """All of the page that is about a report."""
    report = ranks.report
    told = doubts(report)
    return dmc.Stack(
        [
            _verdict(context, report),
            *([_doubts(context, told)] if told else []),
            *([figure_tiles(headlines(report), "ranks-figures")] if report.ranks else []),
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
    color = palette(context.dark)[TONES[found.level]]
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


def _doubts(context: PageContext, told: tuple[str, ...]) -> Component:
    return dmc.Alert(
        dmc.List([dmc.ListItem(sentence) for sentence in told], size="sm"),
        title=dmc.Text("Mind this", fw=700, size="sm", c=palette(context.dark)["fair"]),
        color="yellow",
        id="ranks-doubts",
    )


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
                parts.graph(rank_map(report, metric, context.dark), MAP, name="ranks"),
                note=f"The stronger the colour, the worse; a cross where a trace is missing.{opened}",
                beside=choice,
            )
        )
    steps = step_map(report, context.dark)
    if steps is not None:
        chart = parts.graph(steps, STEPS, name=STEPS)
        note = step_note(report, drawn_steps(report))
        found.append(parts.panel("Each step of each rank", chart, note=f"{note}{opened}"))
    return found


def _waiting(context: PageContext, ranks: Ranks) -> list[Component]:
    report = ranks.report
    late = tables.stragglers(report, most=_LISTED)
    met = tables.meetings(report, most=_LISTED)
    links = [_at(context.url, ranks, one) for one in report.meetings[: len(met.rows)]]
    return [
        parts.panel(one.title, plain_table(context, one, {}, id, one_links), note=one.note)
        for one, id, one_links in ((late, "ranks-stragglers", ()), (met, "ranks-meetings", links))
        if one.rows
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
            *(dmc.Text(line, size="sm") for line in (one.more, one.causes) if line),
            dmc.List([dmc.ListItem(finding) for finding in one.findings], size="sm"),
        ],
        style={"marginTop": "10px"},
    )


def _differences(context: PageContext, report: RanksReport) -> list[Component]:
    found: list[Table] = [tables.steps(report, most=_LISTED), tables.spreads(report)]
    return [parts.panel(one.title, plain_table(context, one, {}), note=one.note) for one in found if one.rows]


def _each(context: PageContext, ranks: Ranks) -> list[Component]:
    report = ranks.report
    buckets = rank_buckets(report, context.dark)
    chart = [] if buckets is None else [parts.graph(buckets, BUCKETS, name=BUCKETS)]
    traces = [ranks.trace(row) for row in range(len(report.ranks))]
    opens = [None if trace is None else context.url.href("overview", trace=trace) for trace in traces]
    if not report.ranks:
        return []
    return [
        *([parts.panel("Where the time of each rank goes", *chart)] if chart else []),
        parts.panel(
            "Each rank",
            parts.grid(context, every_rank(report), TABLE, opens=opens),
            beside=parts.csv_button(TABLE),
        ),
        parts.panel("Clocks", *(dmc.Text(sentence, size="sm") for sentence in clocks(report))),
    ]
