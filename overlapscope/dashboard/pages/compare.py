"""The page Compare: two traces beside each other, before and after."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import dash
import dash_mantine_components as dmc
import msgspec
from dash import Input, Output, dcc, html
from dash.development.base_component import Component
from msgspec.structs import replace

from overlapscope.analysis.average import judged_steps
from overlapscope.analysis.periods import host_step
from overlapscope.analysis.results import Device
from overlapscope.analysis.steps import median_step
from overlapscope.base.words import clean
from overlapscope.compare import tables
from overlapscope.compare.diff import diff
from overlapscope.compare.difference import Basis, DeviceDiff, Diff
from overlapscope.compare.document import before_after
from overlapscope.compare.words import doubt_words, standing
from overlapscope.dashboard import parts, render
from overlapscope.dashboard.callbacks import Callbacks
from overlapscope.dashboard.context import PageContext
from overlapscope.dashboard.opened import RECORDED
from overlapscope.dashboard.pages.traces import count_read, list_traces, summaries
from overlapscope.documents.model import Section
from overlapscope.report.model import Report

_NEAR = 6
"""Number of traces offered with their verdicts."""
_LISTED = 200
"""Rows of each folded table."""
_POLL_MS = 600
_SIGNS = {"faster": "✓", "slower": "✕", "within noise": "~", "unchanged": "="}


def layout(context: PageContext) -> Component:
    """Return the page."""
    lead = "What changed from one trace to another, and whether it is more than noise."
    choice = _choice(context)
    if context.other is None:
        return parts.page("Compare", choice, _nothing_chosen(context), lead=lead)
    before, after = (_of(side, RECORDED) for side in (context, _other(context)))
    difference = diff(_report(before), _report(after))
    before, after = (_of(side, difference.of) for side in (before, after))
    judged = [parts.verdict(side, side.section) for side in (before, after)]
    verdicts = dmc.SimpleGrid(judged, cols={"base": 1, "lg": 2}, spacing="md")
    doubts = [[detail, dmc.Text(holds, c="dimmed", size="sm")] for detail, holds in map(doubt_words, difference.doubts)]
    warnings = [parts.warning(context, "Compare with care", doubts, "compare-doubts")] if doubts else []
    if not difference.devices:
        reason = "One of the two traces is unusable, as its verdict says, so there is nothing to compare."
        return parts.page("Compare", choice, verdicts, parts.panel("No comparison", parts.empty(reason)), lead=lead)
    device = difference.devices[0]
    return parts.page(
        "Compare",
        choice,
        _verdict(context, difference),
        *warnings,
        _timelines(before, after, device),
        _buckets(context, device),
        _findings(before, after, device),
        _details(context, device),
        verdicts,
        lead=lead,
    )


def _other(context: PageContext) -> PageContext:
    """Return the context of the second trace."""
    url = replace(context.url, trace=context.url.other, other=context.url.trace, device=None)
    return replace(context, url=url, trace=context.other, other=context.trace)


def _of(context: PageContext, program: str) -> PageContext:
    """Return the context of the recording or the plain program. The diff decides on it, not the address."""
    if context.loaded.plain is None:
        return context
    return replace(context, url=replace(context.url, of=program if program == RECORDED else None))


def _report(context: PageContext) -> Report:
    """Return a report with only the device that is shown."""
    section = context.section
    devices = () if section.window is None else (section.window,)
    findings = tuple(
        finding for device in devices for finding in context.opened.report.findings if finding.device == device.device
    )
    return Report(traces=(msgspec.structs.replace(section.trace, devices=devices),), findings=findings)


# -- The choice ------------------------------------------------------------------------------------


def _choice(context: PageContext) -> Component:
    choices = [{"value": entry.id, "label": clean(entry.id, 120)} for entry in context.library.entries()]
    url = context.url
    swapped = url.href(trace=url.other, other=url.trace) if url.other else None

    def select(label: str, id: str, chosen: str | None) -> Component:
        return dmc.Select(
            id=id,
            label=label,
            data=choices,
            value=chosen,
            searchable=True,
            placeholder="choose a trace",
            nothingFoundMessage="no such trace",
            allowDeselect=False,
            style={"flex": "1 1 280px", "minWidth": 0},
        )

    return dmc.Group(
        [
            select("before", "compare-before", url.trace),
            select("after", "compare-after", url.other),
            *([dcc.Link("swap", href=swapped, className="timeline-link", id="compare-swap")] if swapped else []),
        ],
        align="end",
        gap="md",
    )


def _nothing_chosen(context: PageContext) -> Component:
    if len(context.library.entries()) < 2:
        return parts.panel(
            "One trace is open",
            parts.empty(
                "A comparison needs two. Drop a second trace onto this page, or start with both:",
                dmc.Code("overlapscope dashboard before.json.gz after.json.gz"),
            ),
        )
    return parts.panel(
        "Choose the second trace",
        dcc.Interval(id="compare-clock", interval=_POLL_MS),
        html.Div(_near(context)[0], id="compare-near"),
        note="Choose it above, or take one of those with the most similar names.",
    )


def _near(context: PageContext) -> tuple[Component, bool]:
    """Return the traces with the most similar names and their verdicts as far as known, and whether all are known."""
    mine = context.loaded.id
    others = [entry.id for entry in context.library.entries() if entry.id != mine]
    near = summaries(context, get_close_matches(mine, others, n=_NEAR, cutoff=0))
    listed = list_traces(context, near, lambda id: context.url.href(other=id), "compare-near-rows", "compare")
    return listed, count_read(near) == len(near)


# -- The answer ------------------------------------------------------------------------------------


def _verdict(context: PageContext, difference: Diff) -> Component:
    word, tone = standing(difference)
    sign, ids = _SIGNS.get(word, "?"), ("compare-standing", "compare-sentence")
    return parts.answer(context, tone or "muted", word, clean(difference.verdict), ids=ids, sign=sign)


def _buckets(context: PageContext, device: DeviceDiff) -> Component:
    table = tables.buckets(device)
    chart = render.graph(before_after(device.figures, context.dark), "compare-buckets", name="before-and-after")
    return parts.panel(table.title, chart, render.table(table, context.dark, "compare-table"), note=table.note)


def _findings(before: PageContext, after: PageContext, device: DeviceDiff) -> Component:
    """Return the changes of findings with links to both timelines."""
    table = tables.findings(device, verbose=True)
    if not table.rows:
        return parts.panel(table.title, parts.empty("Neither trace has findings."))
    links = []
    for change in tables.shown_findings(device, verbose=True)[0]:
        sides = (("before", before, change.before), ("after", after, change.after))
        ways = [parts.timeline_link(context, finding.example, name) for name, context, finding in sides if finding]
        links.append(html.Div([html.Div(way) for way in ways]))
    return parts.table_panel(before, table, "compare-findings", links)


def _details(context: PageContext, device: DeviceDiff) -> Component:
    """Return all other tables, folded."""
    further = (tables.phases(device), *tables.causes(device, verbose=True), *tables.details(device, verbose=True))
    details = [table for table in further if table.rows]
    shortened = (parts.shortened(replace(table, title=""), _LISTED) for table in details)
    folded = (Section((short,), table.title, folded=True) for short, table in zip(shortened, details, strict=True))
    return parts.drawn(context, "Details", *folded, id="compare-details")


# -- Timelines -------------------------------------------------------------------------------------


def _timelines(before: PageContext, after: PageContext, device: DeviceDiff) -> Component:
    sides = [
        _side(name, context, context.section.device, device.basis)
        for name, context in (("before", before), ("after", after))
        if context.section.device is not None
    ]
    aligned = "a step of median length" if device.basis == "step" else "their windows"
    return parts.timelines_panel(
        "compare",
        parts.linked_timelines(before, "compare", sides),
        {side.name: clean(side.trace, 120) for side in sides},
        parts.lead(before, f"Aligned at the beginning of {aligned}. Zooming or moving one moves the other as well."),
    )


def _side(name: str, context: PageContext, device: Device, basis: Basis) -> parts.TimelineSide:
    """Return a side at its compared step of median length, or at everything if no steps are compared."""
    opened = context.opened
    of = {} if context.url.of is None else {"of": context.url.of}
    side = parts.TimelineSide(name, opened.id, opened.lanes.origin_ns, device.window, of)
    step = median_step([device.steps[number] for number in judged_steps(device)]) if basis == "step" else None
    return side if step is None else replace(side, window=step.window, host=host_step(opened.analysis.trace, step.name))


# -- Callbacks -------------------------------------------------------------------------------------


callbacks = Callbacks()
callbacks.in_browser(
    ("overlapscope_linked", "mount"), Output("compare-mounted", "children"), Input("compare-timelines", "data")
)


@callbacks.add(
    Output("compare-near", "children"),
    Output("compare-clock", "disabled"),
    Input("compare-clock", "n_intervals"),
    prevent_initial_call=True,
)
def look(context: PageContext, ticks: int | None) -> Any:
    """Return the verdicts that are known now."""
    return dash.no_update if context.trace is None else _near(context)


@callbacks.leads(Input("compare-before", "value"), Input("compare-after", "value"))
def choose(context: PageContext, before: str | None, after: str | None) -> Any:
    """Return the address of the chosen traces."""
    if before is None or (before, after) == (context.url.trace, context.url.other):
        return dash.no_update
    return context.url.href("compare", trace=before, other=after)
