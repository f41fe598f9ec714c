"""The page Compare: two traces beside each other, before and after."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dash
import dash_mantine_components as dmc
from dash import Input, Output, dcc, html
from dash.development.base_component import Component
from msgspec.structs import replace

from overlapscope.analysis.average import judged_steps, median_step
from overlapscope.analysis.results import Device
from overlapscope.base.words import clean
from overlapscope.compare.diff import diff
from overlapscope.compare.difference import Basis, DeviceDiff
from overlapscope.compare.document import FINDINGS, head, of_device, shown_findings
from overlapscope.dashboard import parts, render
from overlapscope.dashboard.callbacks import Callbacks
from overlapscope.dashboard.context import PageContext
from overlapscope.dashboard.opened import RECORDED
from overlapscope.documents.table import Table
from overlapscope.report.model import Report

LEAD = "What changed from one trace to another, and whether it is more than noise."


def layout(context: PageContext) -> Iterator[Component]:
    """Yield the parts of the page."""
    yield _choice(context)
    if context.other is None:
        if len(context.library.entries()) < 2:
            how = "A comparison needs two. Drop a second trace onto this page, or start with both:"
            both = "`overlapscope dashboard before.json.gz after.json.gz`"
            yield render.panel("One trace is open", parts.empty(how, both))
        else:
            yield render.panel("Choose the second trace", parts.empty("Choose it above, under after."))
        return
    before, after = (_of(side, RECORDED) for side in (context, _other(context)))
    difference = diff(_report(before), _report(after))
    before, after = (_of(side, difference.of) for side in (before, after))
    if difference.devices:
        answer, *others = render.draw(head(difference), context.dark)
        yield answer
        yield _timelines(before, after, difference.devices[0])
        yield from others
        yield _changes(before, after, difference.devices[0])
    else:
        reason = "One of the two traces is unusable, as its verdict says, so there is nothing to compare."
        yield render.panel("No comparison", parts.empty(reason))
    judged = [parts.verdict(side, id="") for side in (before, after)]
    yield dmc.SimpleGrid(judged, cols={"base": 1, "lg": 2}, spacing="md")


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
    if section.window is None:
        return Report(traces=(replace(section.trace, devices=()),), findings=())
    all_findings, device = context.opened.page.report.findings, section.window
    findings = tuple(finding for finding in all_findings if finding.device == device.device)
    return Report(traces=(replace(section.trace, devices=(device,)),), findings=findings)


# -- The choice ------------------------------------------------------------------------------------


def _choice(context: PageContext) -> Component:
    choices, url = [entry.id for entry in context.library.entries()], context.url
    swapped = url.href(trace=url.other, other=url.trace) if url.other else None
    return dmc.Group(
        [
            parts.select("before", "compare-before", choices, url.trace),
            parts.select("after", "compare-after", choices, url.other),
            *([dcc.Link("swap", href=swapped, className="timeline-link", id="compare-swap")] if swapped else []),
        ],
        align="end",
        gap="md",
    )


# -- The changes -----------------------------------------------------------------------------------


def _changes(before: PageContext, after: PageContext, device: DeviceDiff) -> Component:
    """Return what changed, as in the document of a diff; findings have links to both timelines."""
    links = []
    for change in shown_findings(device, verbose=True)[0]:
        sides = (("before", before, change.before), ("after", after, change.after))
        ways = [parts.timeline_link(context, finding.example, name) for name, context, finding in sides if finding]
        links.append(html.Div([html.Div(way) for way in ways]))
    blocks = of_device(device, verbose=True, several=False, folded=True)
    shown = (
        parts.table_panel(before, block, "compare-findings", links)
        if isinstance(block, Table) and block.id == FINDINGS
        else block
        for block in blocks
    )
    return parts.drawn(before, "Changes", *shown, id="compare-changes")


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
        f"Aligned at the beginning of {aligned}. Zooming or moving one moves the other as well. "
        f"{parts.which_program(before)}",
    )


def _side(name: str, context: PageContext, device: Device, basis: Basis) -> parts.TimelineSide:
    """Return a side at its compared step of median length, or at everything if no steps are compared."""
    step = median_step([device.steps[number] for number in judged_steps(device)]) if basis == "step" else None
    return parts.side_at(name, context.opened.id, context.opened.lanes, device, step, context.of)


# -- Callbacks -------------------------------------------------------------------------------------


callbacks = Callbacks()
callbacks.in_browser(
    ("overlapscope_linked", "mount"), Output("compare-mounted", "children"), Input("compare-timelines", "data")
)


@callbacks.leads(Input("compare-before", "value"), Input("compare-after", "value"))
def choose(context: PageContext, before: str | None, after: str | None) -> Any:
    """Return the address of the chosen traces."""
    if before is None or (before, after) == (context.url.trace, context.url.other):
        return dash.no_update
    return context.url.href("compare", trace=before, other=after)
