"""The page Overview: the verdict, its figures, and what to change first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dash
import dash_mantine_components as dmc
from dash import Input, Output, dcc, html
from dash.development.base_component import Component
from msgspec.structs import replace

from overlapscope.analysis.figures import Window
from overlapscope.analysis.results import Device
from overlapscope.base.words import clean, plural
from overlapscope.catalog.causes import Subject
from overlapscope.dashboard import parts, render
from overlapscope.dashboard.callbacks import Callbacks
from overlapscope.dashboard.context import PageContext, moved
from overlapscope.documents.model import with_code
from overlapscope.report import charts
from overlapscope.report.charts import headlines, reasons
from overlapscope.report.document import finding_block
from overlapscope.report.tables import checks, findings_note, phases, where_none_found
from overlapscope.report.verdict import to_fix
from overlapscope.rules.finding import Finding


def layout(context: PageContext, device: Device) -> Component:
    """Return verdict, one step and findings. The rest follows once they are on the screen (`show_more`)."""
    notes = [clean(note, 1000) for note in context.opened.report.notes]
    analysis = context.device_analysis
    return dmc.Stack(
        [
            parts.verdict(context, context.section),
            *([parts.warning(context, "Warnings", notes, "overview-notes")] if notes else []),
            *([] if analysis is None else [parts.step_timeline(context, "overview", analysis)]),
            html.Div(_findings(context), id="overview-findings"),
            render.tiles(headlines(context.section, device), "overview-figures"),
            html.Div(id="overview-more"),
            dcc.Store(id="overview-begun", data=True),
        ],
        gap=10,
        maw=1500,
    )


callbacks = Callbacks()
callbacks.in_browser(
    ("overlapscope_linked", "mount"), Output("overview-mounted", "children"), Input("overview-timelines", "data")
)


@callbacks.add(Output("overview-more", "children"), Input("overview-begun", "data"))
def show_more(context: PageContext, begun: bool) -> Any:
    """Return the part that needs charts, because Plotly is the largest script for a browser to load."""
    return dash.no_update if context.device is None else _more(context, context.device)


def _more(context: PageContext, device: Device) -> Component:
    by_phase = phases(context.section, device)
    return dmc.Stack(
        [
            *([parts.table_panel(context, by_phase, "overview-phases")] if by_phase.rows else []),
            parts.panel(
                "Where a step goes" if context.section.steps else "Where the time goes",
                *_buckets(context),
                *(_reason(context, subject, causes) for subject, causes in reasons(device).items()),
            ),
            _trust(context),
        ],
        gap="md",
    )


def _buckets(context: PageContext) -> list[Component]:
    """Return the bar of buckets below a legend that wraps; Plotly's would cover the bar in a narrow window."""
    bar = charts.bucket_bar(context.section, context.dark)
    legend = [html.Span(render.dotted(part["name"], part["meta"], context.dark)) for part in bar["data"]]
    figure = bar | {"layout": bar["layout"] | {"showlegend": False, "height": 104}}
    return [
        dmc.Group(legend, gap="md", fz=14, my="xs"),
        render.graph(figure, "overview-buckets", name="buckets"),
    ]


def _reason(context: PageContext, subject: Subject, causes: Mapping[str, str]) -> Component:
    """Return the main causes of a bucket, with their shares, in a line."""
    shown: list[Component] = [
        html.Span(render.dotted(f"{cause} {part}%", f"{subject}:{cause}", context.dark), style={"whiteSpace": "nowrap"})
        for cause, part in causes.items()
    ]
    page = "copies" if subject == "exposed-copy" else "idle"
    more = dcc.Link("why →", href=context.url.href(page), className="timeline-link")
    return dmc.Group([html.Strong(f"{subject.replace('-', ' ')} is"), *shown, more], gap="md", fz=14, mt=4)


def _findings(context: PageContext) -> Sequence[Component]:
    """Return the findings with links to their places in the timeline, first the one to fix first.

    A recording beside its plain program has none.
    """
    section = context.section
    if section.page.recorded:
        plain = dcc.Link("show them →", href=context.url.href(of=None), className="timeline-link")
        of_plain = parts.empty(["Verdict and findings are about the program without the profiler: ", plain])
        return [parts.panel("Findings", of_plain)]
    first = to_fix(section)
    if first is None:
        none = parts.empty(
            f"None: no rule found anything{where_none_found([context.section.trace])} that costs 1% of the "
            f"{'step' if section.steps else 'time'} or more.",
            "The pages Copies and Idle & stalls show the causes of what remains exposed or idle.",
        )
        return [parts.panel("Findings", none)]
    findings = [first, *(finding for finding in section.findings if finding is not first)]
    links = [
        [*_whatif_link(context, finding), *parts.timeline_link(context, _example(context, finding))]
        for finding in findings
    ]
    note = findings_note([section.trace], findings)
    return [
        *([dmc.Text(render.words(with_code(note), context.dark), c="dimmed", size="sm", mb=6)] if note else []),
        render.findings([finding_block(section, finding) for finding in findings], context.dark, links),
    ]


def _example(context: PageContext, finding: Finding) -> Window | None:
    """Return the example of a finding in the timeline of the program shown."""
    if not context.replayed or finding.example is None:
        return finding.example
    return moved(finding.example, finding.device, context.loaded.analysis.trace, context.opened.analysis.trace)


def _whatif_link(context: PageContext, finding: Finding) -> list[Component]:
    """Return a link to the prediction of a finding's fix; nothing if its fix can't be replayed."""
    if finding.saving is None:
        return []
    href = context.url.whatif_href(finding.saving.fix)
    return [dcc.Link("try it in What if →", href=href, className="timeline-link")]


def _trust(context: PageContext) -> Component:
    trust = context.section.trace.trust
    table = checks(context.section, passed=False, effects=True)
    note = f"{len(trust.checks) - len(table.rows)} of {plural(len(trust.checks), 'check')} passed."
    note += "" if table.rows else " The figures can be trusted."
    title, blocks = f"Trust: {trust.verdict}", [replace(table, title="")] if table.rows else []
    return parts.drawn(context, title, *blocks, note=note, id="overview-trust")
