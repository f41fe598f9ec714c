"""The page Overview: the verdict, its figures, and what to change first."""

from __future__ import annotations

from collections.abc import Sequence

import dash_mantine_components as dmc
from dash import Input, Output, dcc
from dash.development.base_component import Component
from msgspec.structs import replace

from overlapscope.analysis.results import Device
from overlapscope.base.words import clean
from overlapscope.dashboard import parts, render
from overlapscope.dashboard.callbacks import Callbacks
from overlapscope.dashboard.context import PageContext
from overlapscope.documents.model import Block, Items, Text, columns, panel
from overlapscope.report.document import finding_block, trust
from overlapscope.report.tables import bar, buckets, costliest_causes, figures, findings_note, phases, where_none_found
from overlapscope.report.verdict import to_fix


def layout(context: PageContext, device: Device) -> Component:
    """Return verdict, one step, findings and figures."""
    section, analysis = context.section, context.device_analysis
    notes = tuple(clean(note, 1000) for note in context.opened.page.report.notes)
    by_phase, where_time_goes = phases(section, device), buckets(section, device)
    shown: list[Block | Component] = [
        parts.verdict(context, finding_beside=True),
        *([panel("Warnings", Items(notes, tone="fair"), tone="fair")] if notes else []),
        *([] if analysis is None else [parts.step_timeline(context, "overview", analysis)]),
        dmc.Stack(_findings(context), gap=6, id="overview-findings"),
        *([parts.table_panel(context, by_phase, "overview-phases")] if by_phase.rows else []),
        parts.drawn(
            context,
            where_time_goes.title,
            bar(device, section.unit),
            *columns([where_time_goes, costliest_causes(section, device), figures(section, device)]),
            id="overview-buckets",
        ),
        replace(trust(section, passed=False, effects=True), id="overview-trust"),
    ]
    return dmc.Stack(render.draw(shown, context.dark), gap=10, maw=1500)


callbacks = Callbacks()
callbacks.in_browser(
    ("overlapscope_linked", "mount"), Output("overview-mounted", "children"), Input("overview-timelines", "data")
)


def _findings(context: PageContext) -> Sequence[Component]:
    """Return the findings with links to their places in the timeline, first the one to fix first.

    A recording beside its plain program has none.
    """
    section, url = context.section, context.url
    if section.page.recorded:
        plain = dcc.Link("show them →", href=url.href(of=None), className="timeline-link")
        of_plain = parts.empty(["Verdict and findings are about the program without the profiler: ", plain])
        return [render.panel("Findings", of_plain)]
    first = to_fix(section)
    if first is None:
        none = parts.empty(
            f"No rule found anything that costs 1% of the time{where_none_found([section.trace])}.",
            "The pages Copies and Idle & stalls show the causes of what remains exposed or idle.",
        )
        return [render.panel("Findings", none)]
    findings = [first, *(finding for finding in section.findings if finding is not first)]
    links = [
        [
            # There is no prediction if the fix can't be replayed.
            *(
                [dcc.Link("try it in What if →", href=url.whatif_href(finding.saving.fix), className="timeline-link")]
                if finding.saving
                else []
            ),
            *parts.timeline_link(context, finding.example and context.moved(finding.example, finding.device)),
        ]
        for finding in findings
    ]
    note = findings_note([section.trace], findings)
    return [
        *render.draw([Text(note, "muted")] if note else [], context.dark),
        render.findings([finding_block(section, finding) for finding in findings], context.dark, links),
    ]
