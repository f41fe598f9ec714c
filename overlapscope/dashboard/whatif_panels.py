"""What the page What if shows of a prediction: the answer, its figures, both timelines, and what it rests on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
import msgspec
from dash import html
from dash.development.base_component import Component

from overlapscope.analysis.results import Device, Window
from overlapscope.analysis.spans import median_step
from overlapscope.base.words import Unit, bare_percent, clean, percent
from overlapscope.dashboard import parts
from overlapscope.dashboard.context import PageContext
from overlapscope.dashboard.predictions import Predicted
from overlapscope.dashboard.render import plain_table
from overlapscope.documents.colors import bucket_color, palette
from overlapscope.prediction.result import Change, Estimate, Percentage, WhatIf
from overlapscope.views.old_tables import Table, prose, without
from overlapscope.views.whatif import tables, words

RUNG = "whatif-rung"
"""The type of the buttons that switch on what a rung consists of."""
_MARGIN = 0.02
"""Of the span shown, on either side."""
_WORDS = {"good": "faster", "poor": "slower"}
_SIGNS = {"faster": "✓", "slower": "✕", "no gain": "=", "nothing changed": "=", "not predicted": "?"}
_ASSUMED = "What the recording does not tell. The interval's upper end has everything wrong that has a cost."
_REPLAY = "How well the replay explains the recording"


# -- the answer -----------------------------------------------------------------------------------


def answer(context: PageContext, found: WhatIf) -> Component:
    """What a step would take, in one sentence with its interval; or why nobody can say."""
    told = words.headline(found)
    color = palette(context.dark)[told.level]
    word = _standing(found, told.level)
    head = dmc.Group(
        [html.Span(_SIGNS[word], **parts.UNREAD), html.Span(word, id="whatif-standing")],
        gap=8,
        style={"color": color, "fontWeight": 700},
    )
    said: list[Component] = [
        dmc.Text(told.text, fw=600, fz=22, lh=1.3, mt=4, id="whatif-sentence"),
        dmc.Text(words.subject(found), c="dimmed", size="sm", mt=4),
        *(dmc.Text(_coded(sentence), c="dimmed", size="sm", mt=4) for sentence in words.program(found)),
    ]
    said += [dmc.Text(_coded(doubt), size="sm", mt=4, c=palette(context.dark)["fair"]) for doubt in words.doubts(found)]
    if found.predicted_step_ns is None:
        said.append(_list([_coded(sentence) for sentence in words.refusal(found)]))
    else:
        said += [_bars(context, found, found.predicted_step_ns), _figures(context, found, found.predicted_step_ns)]
    return dmc.Paper([head, *said], withBorder=True, p="md", style={"borderLeft": f"6px solid {color}"})


def _standing(found: WhatIf, level: str) -> str:
    if found.predicted_step_ns is None:
        return "not predicted"
    return _WORDS.get(level, "no gain" if found.interventions else "nothing changed")


def _bars(context: PageContext, found: WhatIf, predicted: Estimate) -> Component:
    """The step as measured and as predicted, on one scale; a line reaches as far as the interval does."""
    whole_ns = max(found.baseline_step_ns, predicted.high, 1)
    unit, colors = words.unit(found), palette(context.dark)

    def row(word: str, buckets: Mapping[str, int], length_ns: int, *marks: Component) -> Component:
        bar = html.Div(_segments(buckets, unit, colors), className="whatif-bar", style=_extent(0, length_ns, whole_ns))
        scale = html.Div([bar, *marks], className="whatif-scale")
        return html.Div([html.Span(word), scale], className="whatif-row")

    told = words.interval(predicted, unit)
    reach = _extent(predicted.low, predicted.high, whole_ns)
    line = [html.Div(className="whatif-interval", style=reach, title=f"{told} {unit.name}")] if told else []
    measured = {name: figure.measured for name, figure in found.buckets.items()}
    after = {name: figure.predicted.value for name, figure in found.buckets.items()}
    return html.Div(
        [row("measured", measured, found.baseline_step_ns), row("predicted", after, predicted.value, *line)],
        className="whatif-bars",
        **parts.UNREAD,
    )


def _extent(start_ns: int, end_ns: int, whole_ns: int) -> dict[str, str]:
    return {"left": f"{100 * start_ns / whole_ns:.3f}%", "width": f"{100 * (end_ns - start_ns) / whole_ns:.3f}%"}


def _segments(buckets: Mapping[str, int], unit: Unit, colors: Mapping[str, str]) -> list[Component]:
    return [
        html.Div(
            title=f"{_bucket(name)}: {unit.text(ns)}",
            style={"flexGrow": ns, "background": colors[bucket_color(_bucket(name))]},
        )
        for name, ns in buckets.items()
        if ns
    ]


def _bucket(field: str) -> str:
    """`exposed copy` of `exposed_copy_ns`."""
    return field.removesuffix("_ns").replace("_", " ")


def _figures(context: PageContext, found: WhatIf, predicted: Estimate) -> Component:
    """Every figure as measured and as predicted, and its interval; what is nothing on either side is left out."""
    unit, colors = words.unit(found), palette(context.dark)

    def time(name: str, measured_ns: int, one: Estimate, color: str = "") -> Component:
        change = f"{unit.number(measured_ns)} → {unit.text(one.value)}"
        return _figure(name, color, change, words.interval(one, unit))

    figures = [time("step" if found.steps else "window", found.baseline_step_ns, predicted)]
    for field, one in found.buckets.items():
        if one.measured or one.predicted.high:
            name = _bucket(field)
            figures.append(time(name, one.measured, one.predicted, colors[bucket_color(name)]))
    for name, part in (("hidden copies", found.hidden_copy_pct), ("overlap efficiency", found.efficiency_pct)):
        if part is not None and (part.measured, part.predicted) != (None, None):
            change = f"{bare_percent(part.measured)} → {percent(part.predicted)}"
            figures.append(_figure(name, "", change, _between_pct(part)))
    return html.Dl(figures, className="whatif-figures", id="whatif-figures")


def _figure(name: str, color: str, change: str, between: str) -> Component:
    dot = [html.Span(className="timeline-dot", style={"background": color})] if color else []
    return html.Div([html.Dt([*dot, name]), html.Dd(change), html.Dd(between)])


def _between_pct(part: Percentage) -> str:
    low, high = bare_percent(part.low), bare_percent(part.high)
    return "" if low == high else f"{low} to {high}"


# -- the timelines --------------------------------------------------------------------------------


def timelines(context: PageContext, found: Predicted, changes: Sequence[str]) -> dict[str, Any] | None:
    """What the browser mounts: the recording above, the prediction of `changes` below. None where nothing is
    predicted."""
    before = context.section.device
    if found.lanes is None or before is None:
        return None
    after = found.lanes.device(before.device).result
    windows = _aligned(before, after)
    shown_ns = max(window.end_ns - window.start_ns for window in windows)
    margin = round(_MARGIN * shown_ns)
    asked = msgspec.json.encode(changes).decode()
    origins = (context.opened.lanes.origin_ns, found.lanes.origin_ns)
    of: tuple[dict[str, Any], ...] = ({}, {"predicted": asked, "device": before.device})
    return {
        "sides": [
            {
                "element": f"whatif-timeline-{name}",
                "trace": context.opened.id,
                "of": of[number],
                "offset": windows[number].start_ns - origins[number],
                "device": before.device,
            }
            for number, name in enumerate(("before", "after"))
        ],
        "view": {"start": -margin, "end": shown_ns + margin},
        "palette": palette(context.dark),
    }


def _aligned(before: Device, after: Device) -> tuple[Window, Window]:
    """The step of median length of those whose end is known, and the same step as predicted; else the windows."""
    step = median_step(msgspec.structs.replace(before, steps=before.steps[:-1] or before.steps))
    same = next((one for one in after.steps if step is not None and one.name == step.name), None)
    return (before.window, after.window) if step is None or same is None else (step.window, same.window)


# -- the figures and what they rest on ------------------------------------------------------------


def details(context: PageContext, found: WhatIf) -> Component | None:
    """Below the timelines: what was changed and how, and what that rests on. None where nothing is predicted."""
    if found.predicted_step_ns is None:
        return None
    assumed, known = tables.assumptions(found), tables.constants(found)
    return dmc.Stack(
        [
            *([_changes(words.in_order(found))] if found.interventions else []),
            *([_table(context, assumed, "whatif-assumptions", _ASSUMED)] if assumed.rows else []),
            *([_table(context, known, "whatif-constants")] if known.rows else []),
            parts.panel(_REPLAY, _list(words.replay(found))),
        ],
        gap="md",
    )


def _table(context: PageContext, table: Table, id: str, note: str = "") -> Component:
    return parts.panel(table.title, plain_table(context, table, {}, id), note=f"{note} {table.note}".strip())


def _changes(changes: Sequence[Change]) -> Component:
    cards = dmc.Stack([_change(change) for change in changes], gap="md", mt="xs")
    return parts.panel("What to change", cards, id="whatif-changes")


def _change(change: Change) -> Component:
    head = dmc.Group(
        [dmc.Text(clean(change.title, 200), fw=600), html.Span(words.option(change), className="whatif-id")], gap=0
    )
    what = dmc.Text("\n".join(prose(change.what)), size="sm", className="prose")
    if not change.touched:
        return html.Div([head, what])
    advice = dmc.Text(_coded(change.advice), size="sm", className="prose")
    places = [html.Div(f"at {clean(place, 200)}", className="place") for place in change.where]
    return html.Div([head, what, advice, *places])


def _coded(text: str) -> list[Component | str]:
    """Sentences of ours with their code; a line break stays one."""
    lines = "\n".join(prose(text)).split("`")
    return [dmc.Code(part) if number % 2 else part for number, part in enumerate(lines)]


def _list(told: Iterable[str | list[Component | str]]) -> Component:
    return dmc.List([dmc.ListItem(one) for one in told], size="sm", mt="xs", id="whatif-replay")


# -- the ladder -----------------------------------------------------------------------------------


def ladder(context: PageContext, found: WhatIf | None) -> Component | None:
    """What each further change gains, the best first; None where nothing was searched for or found."""
    if found is None:
        return None
    table = tables.ladder(found)
    if not table.rows:
        said = "None of these changes makes it shorter." if found.replay.valid else words.headline(found).text
        return dmc.Text(said, size="sm", mt="sm")
    buttons: list[Component | None] = [
        dmc.Button("use", id={"type": RUNG, "index": number}, variant="subtle", size="compact-xs")
        for number in range(len(table.rows))
    ]
    title = dmc.Text(table.title, fw=600, size="sm", mt="md")
    # Without the times saved there is room for the buttons in a narrow window.
    return html.Div([title, plain_table(context, without(table, tables.SAVED), {}, "whatif-rungs-table", buttons)])
