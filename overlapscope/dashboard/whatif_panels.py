"""What the page What if shows of a prediction: the answer, its figures, both timelines, and what it rests on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import dash_mantine_components as dmc
import msgspec
from dash import html
from dash.development.base_component import Component

from overlapscope.analysis.results import Device, Window
from overlapscope.analysis.steps import median_step
from overlapscope.base.words import Unit, bare_percent, percent
from overlapscope.catalog.buckets import BUCKETS
from overlapscope.dashboard import parts, render
from overlapscope.dashboard.context import PageContext
from overlapscope.dashboard.predictions import Predicted
from overlapscope.documents.model import Items, with_code
from overlapscope.prediction import document
from overlapscope.prediction.result import Estimate, Percentage, WhatIf

RUNG = "whatif-rung"
"""The type of the buttons that switch on what a rung consists of."""
_WORDS = {"good": "faster", "poor": "slower"}
_SIGNS = {"faster": "✓", "slower": "✕", "no gain": "=", "nothing changed": "=", "not predicted": "?"}
_ASSUMED = "What the recording does not tell. The interval's upper end has everything wrong that has a cost."
_REPLAY = "How well the replay explains the recording"


# -- the answer -----------------------------------------------------------------------------------


def answer(context: PageContext, found: WhatIf) -> Component:
    """What a step would take, in one sentence with its interval; or why nobody can say."""
    told = document.headline(found)
    word = _standing(found, told.level)
    said = render.draw(document.remarks(found), context.dark)
    if found.predicted_step_ns is None:
        said += render.draw([Items(tuple(map(with_code, document.refusal(found))))], context.dark)
    else:
        said += [_bars(context, found, found.predicted_step_ns), _figures(context, found, found.predicted_step_ns)]
    ids = ("whatif-standing", "whatif-sentence")
    return parts.answer(context, told.level, word, told.text, *said, ids=ids, sign=_SIGNS[word])


def _standing(found: WhatIf, level: str) -> str:
    if found.predicted_step_ns is None:
        return "not predicted"
    return _WORDS.get(level, "no gain" if found.interventions else "nothing changed")


def _bars(context: PageContext, found: WhatIf, predicted: Estimate) -> Component:
    """The step as measured and as predicted, on one scale; a line reaches as far as the interval does."""
    whole_ns = max(found.baseline_step_ns, predicted.high, 1)
    unit, colors = document.unit(found), context.colors

    def row(word: str, buckets: Mapping[str, int], length_ns: int, *marks: Component) -> Component:
        bar = html.Div(_segments(buckets, unit, colors), className="whatif-bar", style=_extent(0, length_ns, whole_ns))
        scale = html.Div([bar, *marks], className="whatif-scale")
        return html.Div([html.Span(word), scale], className="whatif-row")

    told = document.interval(predicted, unit)
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
            style={"flexGrow": ns, "background": colors[BUCKETS[_bucket(name)].id]},
        )
        for name, ns in buckets.items()
        if ns
    ]


def _bucket(field: str) -> str:
    """`exposed copy` of `exposed_copy_ns`."""
    return field.removesuffix("_ns").replace("_", " ")


def _figures(context: PageContext, found: WhatIf, predicted: Estimate) -> Component:
    """Every figure as measured and as predicted, and its interval; what is nothing on either side is left out."""
    unit, colors = document.unit(found), context.colors

    def time(name: str, measured_ns: int, one: Estimate, color: str = "") -> Component:
        change = f"{unit.number(measured_ns)} → {unit.text(one.value)}"
        return _figure(name, color, change, document.interval(one, unit))

    figures = [time("step" if found.steps else "window", found.baseline_step_ns, predicted)]
    for field, one in found.buckets.items():
        if one.measured or one.predicted.high:
            name = _bucket(field)
            figures.append(time(name, one.measured, one.predicted, colors[BUCKETS[name].id]))
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
    first, second = _aligned(before, found.lanes.device(before.device).result)
    asked = {"predicted": msgspec.json.encode(changes).decode(), "device": before.device}
    id, number = context.opened.id, {"device": before.device}
    sides = (
        parts.Side("before", id, context.opened.lanes.origin_ns, first, {}, number),
        parts.Side("after", id, found.lanes.origin_ns, second, asked, number),
    )
    return parts.linked_timelines(context, "whatif", sides)


def _aligned(before: Device, after: Device) -> tuple[Window, Window]:
    """The step of median length of those whose end is known, and the same step as predicted; else the windows."""
    step = median_step(before.steps[:-1] or before.steps)
    same = next((one for one in after.steps if step is not None and one.name == step.name), None)
    return (before.window, after.window) if step is None or same is None else (step.window, same.window)


# -- the figures and what they rest on ------------------------------------------------------------


def details(context: PageContext, found: WhatIf) -> Component | None:
    """Below the timelines: what was changed and how, and what that rests on. None where nothing is predicted."""
    if found.predicted_step_ns is None:
        return None
    assumed, known = document.assumptions(found), document.constants(found)
    assumed = replace(assumed, note=f"{_ASSUMED} {assumed.note}".strip())
    changes, replay = tuple(document.changes(found)), Items(tuple(document.replay(found)))
    return dmc.Stack(
        [
            *([parts.drawn(context, "What to change", *changes, id="whatif-changes")] if changes else []),
            *([parts.table_panel(context, assumed, "whatif-assumptions")] if assumed.rows else []),
            *([parts.table_panel(context, known, "whatif-constants")] if known.rows else []),
            parts.drawn(context, _REPLAY, replay),
        ],
        gap="md",
    )


# -- the ladder -----------------------------------------------------------------------------------


def ladder(context: PageContext, found: WhatIf | None) -> Component | None:
    """What each further change gains, the best first; None where nothing was searched for or found."""
    if found is None:
        return None
    # Without the times saved there is room for the buttons in a narrow window.
    table = document.ladder(found).without({"saved"})
    if not table.rows:
        said = "None of these changes makes it shorter." if found.replay.valid else document.headline(found).text
        return dmc.Text(said, size="sm", mt="sm")
    buttons: list[Component | None] = [
        dmc.Button("use", id={"type": RUNG, "index": number}, variant="subtle", size="compact-xs")
        for number in range(len(table.rows))
    ]
    title = dmc.Text(table.title, fw=600, size="sm", mt="md")
    return html.Div([title, render.table(table, context.dark, "whatif-rungs-table", buttons)])
