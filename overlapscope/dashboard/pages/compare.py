"""Compare: two traces beside one another, before and after."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dash
import dash_mantine_components as dmc
import msgspec
from dash import Input, Output, dcc, html
from dash.development.base_component import Component

from overlapscope.analysis.results import Device, Window
from overlapscope.analysis.spans import median_step
from overlapscope.base.words import clean
from overlapscope.compare import tables
from overlapscope.compare.charts import before_after
from overlapscope.compare.diff import diff
from overlapscope.compare.difference import Basis, DeviceDiff, Diff, FindingChange
from overlapscope.compare.steps import averaged
from overlapscope.compare.words import doubt_words, finding_standing, standing, unit_of
from overlapscope.dashboard import parts
from overlapscope.dashboard.callbacks import Callbacks
from overlapscope.dashboard.context import PageContext
from overlapscope.dashboard.render import table
from overlapscope.dashboard.url import RECORDED
from overlapscope.documents.table import Table
from overlapscope.report.model import Report
from overlapscope.rules.finding import Finding

_MARGIN = 0.02
"""Of the span shown, on either side."""
_SIGNS = {"faster": "✓", "slower": "✕", "within noise": "~", "unchanged": "="}


def layout(context: PageContext) -> Component:
    """The page."""
    lead = "What changed from one trace to another, and whether it is more than noise."
    choice = _choice(context)
    if context.other is None:
        return parts.page("Compare", choice, _nothing_chosen(context), lead=lead)
    before, after = (_of(one, RECORDED) for one in (context, _other(context)))
    found = diff(_report(before), _report(after))
    before, after = (_of(one, found.of) for one in (before, after))
    verdicts = dmc.SimpleGrid([parts.verdict(before), parts.verdict(after)], cols={"base": 1, "lg": 2}, spacing="md")
    doubts = [_doubts(found)] if found.doubts else []
    if not found.devices:
        said = "One of the two traces is unusable, as its verdict says, so there is nothing to compare."
        return parts.page("Compare", choice, verdicts, parts.panel("No comparison", parts.empty(said)), lead=lead)
    device = found.devices[0]
    return parts.page(
        "Compare",
        choice,
        _verdict(context, found),
        *doubts,
        verdicts,
        _buckets(context, device),
        *(_panel(context, shown) for shown in tables.causes(device, verbose=False)),
        _findings(before, after, device),
        _timelines(before, after, device),
        # The findings above have links of their own.
        *(_panel(context, shown) for shown in tables.details(device, verbose=False) if shown.id != "findings"),
        lead=lead,
    )


def _other(context: PageContext) -> PageContext:
    """The second trace, as if it were the one that is shown."""
    url = replace(context.url, trace=context.url.other, other=context.url.trace, device=None)
    return replace(context, url=url, trace=context.other, other=context.trace)


def _of(context: PageContext, program: str) -> PageContext:
    """The same, of the recording or the plain program, where there are both: the diff decides, not the address."""
    if context.loaded.plain is None:
        return context
    return replace(context, url=replace(context.url, of=program if program == RECORDED else None))


def _report(context: PageContext) -> Report:
    """The one device that is shown, as a report."""
    section = context.section
    devices = () if section.device is None else (section.device,)
    return Report(traces=(msgspec.structs.replace(section.trace, devices=devices),), findings=section.findings)


# -- the choice -----------------------------------------------------------------------------------


def _choice(context: PageContext) -> Component:
    known = [{"value": entry.id, "label": clean(entry.id, 120)} for entry in context.library.entries()]
    url = context.url
    swapped = url.href(trace=url.other, other=url.trace) if url.other else None

    def select(label: str, id: str, chosen: str | None) -> Component:
        return dmc.Select(
            id=id,
            label=label,
            data=known,
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
    near = [id for id in context.library.siblings(context.opened.id) if id != context.opened.id][:8]
    if len(context.library.entries()) < 2:
        return parts.panel(
            "One trace is open",
            parts.empty(
                "Comparing takes two: drop a second one onto this page, or start with both:",
                dmc.Code("overlapscope dashboard before.json.gz after.json.gz"),
            ),
        )
    links = [dmc.ListItem(dcc.Link(clean(id, 120), href=context.url.href(other=id))) for id in near]
    return parts.panel(
        "Choose what to compare it with",
        parts.empty("Choose a second trace above."),
        *([dmc.Text("Beside it lie:", size="sm"), dmc.List(links, size="sm")] if links else []),
    )


# -- the answer -----------------------------------------------------------------------------------


def _verdict(context: PageContext, found: Diff) -> Component:
    stands = standing(found)
    color = context.colors[stands.tone or "muted"]
    word = dmc.Group(
        [html.Span(_SIGNS.get(stands.word, "?"), **parts.UNREAD), html.Span(stands.word, id="compare-standing")],
        gap=8,
        style={"color": color, "fontWeight": 700},
    )
    sentence = dmc.Text(clean(found.verdict), fw=600, fz=22, lh=1.3, mt=4, id="compare-sentence")
    return dmc.Paper([word, sentence], withBorder=True, p="md", style={"borderLeft": f"6px solid {color}"})


def _doubts(found: Diff) -> Component:
    said = [
        dmc.ListItem([what, dmc.Text(holds, c="dimmed", size="sm")]) for what, holds in map(doubt_words, found.doubts)
    ]
    return dmc.Alert(dmc.List(said, size="sm"), title="Compare with care", color="yellow", id="compare-doubts")


def _buckets(context: PageContext, device: DeviceDiff) -> Component:
    shown = tables.buckets(device)
    chart = parts.graph(before_after(device.figures, context.dark), "compare-buckets", name="before-and-after")
    return parts.panel(shown.title, chart, table(shown, context.dark, "compare-table"), note=shown.note)


def _panel(context: PageContext, shown: Table) -> Component:
    return parts.panel(shown.title, table(shown, context.dark), note=shown.note)


# -- findings -------------------------------------------------------------------------------------


def _findings(before: PageContext, after: PageContext, device: DeviceDiff) -> Component:
    if not device.findings:
        return parts.panel("Findings", parts.empty("Neither trace has any."))
    heads = ("", "rule", "before", "cost", "after", "cost")
    rows = [_finding(before, after, device, change) for change in device.findings]
    drawn = dmc.Table(
        [
            dmc.TableThead(dmc.TableTr([dmc.TableTh(head) for head in heads])),
            dmc.TableTbody(rows, id="compare-findings"),
        ],
        verticalSpacing="sm",
    )
    of = "a step" if device.basis == "step" else "over the whole window"
    return parts.panel("Findings", dmc.TableScrollContainer(drawn, minWidth=720), note=f"Costs are upper bounds {of}.")


def _finding(before: PageContext, after: PageContext, device: DeviceDiff, change: FindingChange) -> Component:
    word = finding_standing(change)
    color = before.colors[tables.FINDING_TONES.get(word) or "muted"]
    return dmc.TableTr(
        [
            dmc.TableTd(word, style={"color": color, "fontWeight": 700, "whiteSpace": "nowrap"}),
            dmc.TableTd(clean(change.rule, 60), style={"whiteSpace": "nowrap"}),
            *_side(before, device, change.before, change.cost.before),
            *_side(after, device, change.after, change.cost.after),
        ],
        style={"verticalAlign": "top"},
    )


def _side(context: PageContext, device: DeviceDiff, finding: Finding | None, cost_ns: float | None) -> list[Component]:
    if finding is None:
        return [dmc.TableTd("–", c="dimmed"), dmc.TableTd("")]
    cost = unit_of([device.figures.span]).text(round(cost_ns)) if cost_ns else ""
    link = parts.timeline_link(context, finding.example)
    return [
        dmc.TableTd([dmc.Text(clean(finding.title, 400), size="sm"), *link]),
        dmc.TableTd(cost, style={"whiteSpace": "nowrap", "fontVariantNumeric": "tabular-nums"}),
    ]


# -- timelines ------------------------------------------------------------------------------------


def _timelines(before: PageContext, after: PageContext, device: DeviceDiff) -> Component:
    both = {"before": before, "after": after}
    windows = [_stands_for(one.section.device, device.basis) for one in both.values() if one.section.device]
    shown_ns = max(window.end_ns - window.start_ns for window in windows)
    margin = round(_MARGIN * shown_ns)
    data = {
        "sides": [
            {
                "element": _mount(name),
                "trace": one.opened.id,
                "of": {} if one.url.of is None else {"of": one.url.of},
                "offset": window.start_ns - one.opened.lanes.origin_ns,
            }
            for (name, one), window in zip(both.items(), windows, strict=True)
        ],
        "view": {"start": -margin, "end": shown_ns + margin},
        "palette": before.colors,
    }
    aligned = "a step of median length" if device.basis == "step" else "their windows"
    return parts.panel(
        "Timelines",
        dcc.Store(id="compare-timelines", data=data),
        html.Div(id="compare-mounted", hidden=True),
        *(
            html.Div(
                [
                    dmc.Text(f"{name}: {clean(one.opened.id, 120)}", size="sm", fw=600, mt="sm", mb=4),
                    html.Div(id=_mount(name), className="compare-timeline"),
                ]
            )
            for name, one in both.items()
        ),
        note=parts.lead(
            before, f"Aligned at the beginning of {aligned}; zooming or moving one does the same to the other."
        ),
    )


def _stands_for(device: Device, basis: Basis) -> Window:
    """What is shown of a side: of the steps that are compared the one of median length."""
    steps = tuple(device.steps[number] for number in averaged(device)) if basis == "step" else ()
    step = median_step(msgspec.structs.replace(device, steps=steps))
    return device.window if step is None else step.window


def _mount(name: str) -> str:
    return f"compare-timeline-{name}"


# -- callbacks ------------------------------------------------------------------------------------


callbacks = Callbacks()
callbacks.in_browser(
    ("overlapscope_linked", "mount"), Output("compare-mounted", "children"), Input("compare-timelines", "data")
)


@callbacks.add(
    Output("url", "href", allow_duplicate=True),
    Input("compare-before", "value"),
    Input("compare-after", "value"),
    prevent_initial_call=True,
)
def choose(context: PageContext, before: str | None, after: str | None) -> Any:
    """To the two traces that were chosen."""
    if before is None or (before, after) == (context.url.trace, context.url.other):
        return dash.no_update
    return context.url.href("compare", trace=before, other=after)
