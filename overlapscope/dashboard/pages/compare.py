"""Compare: two traces beside one another, before and after."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dash
import dash_mantine_components as dmc
from dash import ClientsideFunction, Input, Output, State, dcc, html
from dash.development.base_component import Component

from overlapscope.dashboard import parts
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.place import Place, parse
from overlapscope.dashboard.shown import Shown, settled
from overlapscope.rules.finding import Finding
from overlapscope.views.charts.before_after import before_after
from overlapscope.views.colors import palette
from overlapscope.views.side_by_side import Change, Figure, Part, SideBySide, sentence, side_by_side
from overlapscope.words import NOTHING, Unit, clean, percent, unit_for

_STANDING = {"gone": "good", "new": "poor", "in both": "muted"}
_GOOD_NEWS = {"gone": "poor", "new": "good", "in both": "muted"}
"""The same for findings that say that something works."""
_WORTH_COLOR = 0.01
"""A change of less than this share of the span is neither good nor bad."""
_MARGIN = 0.02
"""Of the span shown, on either side."""


def layout(shown: Shown) -> Component:
    """The page."""
    lead = "Before and after: two traces, aligned at a step."
    choice = _choice(shown)
    if shown.other is None:
        return parts.page("Compare", choice, _nothing_chosen(shown), lead=lead)
    before, after = shown, _other(shown)
    compared = side_by_side(before.section, after.section)
    verdicts = dmc.SimpleGrid([parts.verdict(before), parts.verdict(after)], cols={"base": 1, "lg": 2}, spacing="md")
    if compared is None:
        said = "One of the two traces is unusable, as its verdict says, so there is nothing to compare."
        return parts.page("Compare", choice, verdicts, parts.panel("No comparison", parts.empty(said)), lead=lead)
    return parts.page(
        "Compare",
        choice,
        *([_doubts(compared)] if compared.doubts else []),
        verdicts,
        _buckets(shown, compared),
        _findings(before, after, compared),
        _timelines(before, after, compared),
        lead=lead,
    )


def _other(shown: Shown) -> Shown:
    """The second trace, as if it were the one that is shown."""
    place = replace(shown.place, trace=shown.place.other, other=shown.place.trace, device=None)
    return replace(shown, place=place, trace=shown.other, other=shown.trace)


# -- the choice -----------------------------------------------------------------------------------


def _choice(shown: Shown) -> Component:
    known = [{"value": entry.id, "label": clean(entry.id, 120)} for entry in shown.library.entries()]
    place = shown.place
    swapped = place.href(trace=place.other, other=place.trace) if place.other else None

    def select(label: str, id: str, value: str | None) -> Component:
        return dmc.Select(
            id=id,
            label=label,
            data=known,
            value=value,
            searchable=True,
            placeholder="choose a trace",
            nothingFoundMessage="no such trace",
            allowDeselect=False,
            style={"flex": "1 1 280px", "minWidth": 0},
        )

    return dmc.Group(
        [
            select("before", "compare-before", place.trace),
            select("after", "compare-after", place.other),
            *([dcc.Link("swap", href=swapped, className="timeline-link", id="compare-swap")] if swapped else []),
        ],
        align="end",
        gap="md",
    )


def _nothing_chosen(shown: Shown) -> Component:
    place = shown.place
    near = [id for id in shown.library.siblings(shown.opened.id) if id != shown.opened.id][:8]
    if len(shown.library.entries()) < 2:
        return parts.panel(
            "One trace is open",
            parts.empty(
                "Comparing takes two: drop a second one onto this page, or start with both:",
                dmc.Code("overlapscope dashboard before.json.gz after.json.gz"),
            ),
        )
    links = [dmc.ListItem(dcc.Link(clean(id, 120), href=place.href(other=id))) for id in near]
    return parts.panel(
        "Choose what to compare it with",
        parts.empty("Choose a second trace above."),
        *([dmc.Text("Beside it lie:", size="sm"), dmc.List(links, size="sm")] if links else []),
    )


def _doubts(compared: SideBySide) -> Component:
    return dmc.Alert(
        dmc.List([dmc.ListItem(doubt) for doubt in compared.doubts], size="sm"),
        title="Compare with care",
        color="yellow",
        id="compare-doubts",
    )


# -- buckets --------------------------------------------------------------------------------------


def _buckets(shown: Shown, compared: SideBySide) -> Component:
    unit = unit_for(max(compared.spans.before_ns, compared.spans.after_ns))
    heads = ("", f"before {unit.name}", f"after {unit.name}", f"change {unit.name}", "change %")
    shown_parts = [part for part in (*compared.parts, compared.spans) if part.before_ns or part.after_ns]
    rows = [_part(shown, compared, part, unit) for part in shown_parts]
    rows += [
        _row(one.name, percent(one.before_pct), percent(one.after_pct), _points(one), "")
        for one in compared.figures
        if (one.before_pct, one.after_pct) != (None, None)
    ]
    what = "the step of median length of each" if compared.basis == "step" else "the whole window of each"
    return parts.panel(
        "Where the time goes",
        dmc.Text(sentence(compared), fw=600, fz=18, id="compare-sentence"),
        parts.graph(before_after(compared, shown.dark), "compare-buckets", name="before-and-after"),
        dmc.Table(
            [
                dmc.TableThead(dmc.TableTr([dmc.TableTh(head, ta="right" if head else "left") for head in heads])),
                dmc.TableTbody(rows, id="compare-table"),
            ],
            maw=760,
        ),
        note=f"Of {what}.",
    )


def _part(shown: Shown, compared: SideBySide, part: Part, unit: Unit) -> Component:
    sign = "+\u2009" if part.change_ns > 0 else "−\u2009" if part.change_ns < 0 else ""
    # What computes is work, not loss: more or less of it is neither good nor bad.
    judged = part.name != "compute" and abs(part.change_ns) >= _WORTH_COLOR * compared.spans.before_ns
    color = palette(shown.dark)["poor" if part.change_ns > 0 else "good"] if judged and part.change_ns else None
    change = f"{sign}{unit.number(abs(part.change_ns))}"
    relative = NOTHING if part.change_pct is None else f"{sign}{percent(abs(part.change_pct))}"
    return _row(part.name, unit.number(part.before_ns), unit.number(part.after_ns), change, relative, color=color)


def _points(figure: Figure) -> str:
    if figure.before_pct is None or figure.after_pct is None:
        return NOTHING
    if figure.after_pct == figure.before_pct:
        return "0"
    return f"{figure.after_pct - figure.before_pct:+.1f} points".replace("-", "−")


def _row(name: str, *cells: str, color: str | None = None) -> Component:
    style = {"fontVariantNumeric": "tabular-nums"}
    tinted = style | ({"color": color, "fontWeight": 600} if color else {})
    shown = [dmc.TableTd(cell, ta="right", style=tinted if number > 1 else style) for number, cell in enumerate(cells)]
    return dmc.TableTr([dmc.TableTd(name), *shown])


# -- findings -------------------------------------------------------------------------------------


def _findings(before: Shown, after: Shown, compared: SideBySide) -> Component:
    if not compared.findings:
        return parts.panel("Findings", parts.empty("Neither trace has any."))
    heads = ("", "rule", "before", "cost", "after", "cost")
    return parts.panel(
        "Findings",
        dmc.TableScrollContainer(
            dmc.Table(
                [
                    dmc.TableThead(dmc.TableTr([dmc.TableTh(head) for head in heads])),
                    dmc.TableTbody(
                        [_finding(before, after, change) for change in compared.findings], id="compare-findings"
                    ),
                ],
                verticalSpacing="sm",
            ),
            minWidth=720,
        ),
        note="Gone, new, or in both; costs are upper bounds over each whole window.",
    )


def _finding(before: Shown, after: Shown, change: Change) -> Component:
    found = change.before or change.after
    standing = _GOOD_NEWS if found is not None and found.severity == "info" else _STANDING
    color = palette(before.dark)[standing[change.standing]]
    return dmc.TableTr(
        [
            dmc.TableTd(change.standing, style={"color": color, "fontWeight": 700, "whiteSpace": "nowrap"}),
            dmc.TableTd(change.rule, style={"whiteSpace": "nowrap"}),
            *_side(before, change.before),
            *_side(after, change.after),
        ],
        style={"verticalAlign": "top"},
    )


def _side(shown: Shown, finding: Finding | None) -> list[Component]:
    if finding is None:
        return [dmc.TableTd("–", c="dimmed"), dmc.TableTd("")]
    cost = shown.section.unit.text(finding.cost_ns) if finding.cost_ns else ""
    link = parts.timeline_link(shown, finding.example)
    return [
        dmc.TableTd([dmc.Text(clean(finding.title, 400), size="sm"), *link]),
        dmc.TableTd(cost, style={"whiteSpace": "nowrap", "fontVariantNumeric": "tabular-nums"}),
    ]


# -- timelines ------------------------------------------------------------------------------------


def _timelines(before: Shown, after: Shown, compared: SideBySide) -> Component:
    margin = round(_MARGIN * compared.shown_ns)
    both = {"before": before, "after": after}
    data = {
        "sides": [
            {"element": _mount(name), "trace": one.opened.id, "offset": start - one.opened.lanes.origin_ns}
            for (name, one), start in zip(both.items(), compared.starts_ns, strict=True)
        ],
        "view": {"start": -margin, "end": compared.shown_ns + margin},
        "palette": palette(before.dark),
    }
    aligned = "the beginning of that step" if compared.basis == "step" else "the beginning of their windows"
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
        note=f"Aligned at {aligned}; zooming or moving one does the same to the other.",
    )


def _mount(name: str) -> str:
    return f"compare-timeline-{name}"


# -- callbacks ------------------------------------------------------------------------------------


def register(app: dash.Dash, library: Library) -> None:
    """The choice of the two traces, and their timelines."""
    base = app.config.requests_pathname_prefix

    @app.callback(
        Output("url", "href", allow_duplicate=True),
        Input("compare-before", "value"),
        Input("compare-after", "value"),
        State("url", "pathname"),
        State("url", "search"),
        prevent_initial_call=True,
    )
    def choose(before: str | None, after: str | None, pathname: str | None, search: str | None) -> Any:
        place = settled(library, parse(base, pathname, search))
        if before is None or (before, after) == (place.trace, place.other):
            return dash.no_update
        return Place(base=base, page="compare", trace=before, other=after).href()

    app.clientside_callback(
        ClientsideFunction("overlapscope_compare", "mount"),
        Output("compare-mounted", "children"),
        Input("compare-timelines", "data"),
    )
