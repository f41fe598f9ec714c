"""Panels of the page What if: the answer, its figures, both timelines, and the assumptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
import msgspec
from dash import html
from dash.development.base_component import Component
from msgspec.structs import replace

from overlapscope.analysis.average import judged_steps
from overlapscope.analysis.periods import host_step
from overlapscope.analysis.steps import median_step
from overlapscope.base.words import NOTHING
from overlapscope.catalog.buckets import BUCKETS
from overlapscope.dashboard import parts, render
from overlapscope.dashboard.context import PageContext
from overlapscope.dashboard.opened import DrawnPrediction
from overlapscope.documents.model import Items, Part, with_code
from overlapscope.prediction import document
from overlapscope.prediction.result import Estimate, WhatIf

RUNG = "whatif-rung"
"""Type of the buttons that switch on the changes of a rung."""
_WORDS = {"good": "faster", "poor": "slower"}
_SIGNS = {"faster": "✓", "slower": "✕", "no gain": "=", "nothing changed": "=", "not predicted": "?"}
_ASSUMED = "What the recording does not show. At the upper end of the interval, all of these are wrong."
_REPLAY = "How well the replay explains the recording"


# -- The answer ------------------------------------------------------------------------------------


def answer(context: PageContext, prediction: WhatIf) -> Component:
    """Return the predicted step time with its interval in a sentence, or the reason for refusing a prediction."""
    headline = document.headline(prediction)
    word = _standing(prediction, headline.level)
    content = render.draw(document.remarks(prediction), context.dark)
    if prediction.predicted_step_ns is None:
        content += render.draw([Items(tuple(map(with_code, document.refusal(prediction))))], context.dark)
    else:
        content += [_bars(context, prediction, prediction.predicted_step_ns), _figures(context, prediction)]
    ids = ("whatif-standing", "whatif-sentence")
    return parts.answer(context, headline.level, word, headline.text, *content, ids=ids, sign=_SIGNS[word])


def _standing(prediction: WhatIf, level: str) -> str:
    if prediction.predicted_step_ns is None:
        return "not predicted"
    return _WORDS.get(level, "no gain" if prediction.interventions else "nothing changed")


def _bars(context: PageContext, prediction: WhatIf, predicted: Estimate) -> Component:
    """Return the measured and the predicted step on the same scale; a line spans the prediction's interval."""
    whole_ns, unit = max(prediction.baseline_step_ns, predicted.high, 1), document.unit(prediction)

    def row(word: str, buckets: Mapping[str, int], length_ns: int, *marks: Component) -> Component:
        amounts = [Part(name, ns, unit.text(ns), "", BUCKETS[name].id) for name, ns in buckets.items()]
        segments = render.segments(amounts, context.colors)
        bar = html.Div(segments, className="whatif-bar", style=_extent(0, length_ns, whole_ns))
        return html.Div([html.Span(word), html.Div([bar, *marks], className="whatif-scale")], className="whatif-row")

    interval = document.interval(predicted, unit)
    reach = _extent(predicted.low, predicted.high, whole_ns)
    line = [html.Div(className="whatif-interval", style=reach, title=f"{interval} {unit.name}")] if interval else []
    measured = {document.bucket(field): figure.measured for field, figure in prediction.buckets.items()}
    after = {document.bucket(field): figure.predicted.value for field, figure in prediction.buckets.items()}
    return html.Div(
        [row("before", measured, prediction.baseline_step_ns), row("after", after, predicted.value, *line)],
        className="whatif-bars",
        **render.UNREAD,
    )


def _extent(start_ns: int, end_ns: int, whole_ns: int) -> dict[str, str]:
    return {"left": f"{100 * start_ns / whole_ns:.3f}%", "width": f"{100 * (end_ns - start_ns) / whole_ns:.3f}%"}


def _figures(context: PageContext, prediction: WhatIf) -> Component:
    """Return every figure as measured and as predicted, with its interval, except those that are zero on both sides."""
    *buckets, total = document.buckets(prediction).texts() or [["", "", "", ""]]
    unit, overlap = f" {document.unit(prediction).name}", document.overlap(prediction).texts()
    lines = [("step" if prediction.steps else "window", *total[1:], unit), *((*line, unit) for line in buckets)]
    lines += [(*line, "" if line[2] == NOTHING else "%") for line in overlap if line[1:3] != [NOTHING, NOTHING]]
    figures = []
    for name, measured, predicted, between, of in lines:
        head = render.dotted(name, context.colors[BUCKETS[name].id]) if name in BUCKETS else [name]
        figures.append(html.Div([html.Dt(head), html.Dd(f"{measured} → {predicted}{of}"), html.Dd(between)]))
    return html.Dl(figures, className="whatif-figures", id="whatif-figures")


# -- The timelines ---------------------------------------------------------------------------------


def timelines(context: PageContext, prediction: DrawnPrediction, changes: Sequence[str]) -> dict[str, Any] | None:
    """Return the data of the timelines for the browser: the program above, the prediction of `changes` below.

    Both show the judged step of median length, or everything if there is none. None if nothing is predicted.
    """
    before = context.section.device
    if prediction.lanes is None or before is None:
        return None
    after = prediction.lanes.device(before.device).result
    asked = {"predicted": msgspec.json.encode(changes).decode(), "device": before.device}
    id, number, drawn = context.opened.id, {"device": before.device}, context.opened.lanes
    step = median_step([before.steps[row] for row in judged_steps(before)])
    same = next((candidate for candidate in after.steps if step is not None and candidate.name == step.name), None)
    sides = [
        parts.TimelineSide("before", id, drawn.origin_ns, before.window, {}, number),
        parts.TimelineSide("after", id, prediction.lanes.origin_ns, after.window, asked, number),
    ]
    if step is not None and same is not None:
        sides = [
            replace(side, window=period.window, host=host_step(lanes.analysis.trace, period.name))
            for side, period, lanes in zip(sides, (step, same), (drawn, prediction.lanes), strict=True)
        ]
    return parts.linked_timelines(context, "whatif", sides)


# -- Changes and assumptions -----------------------------------------------------------------------


def details(context: PageContext, prediction: WhatIf) -> Component | None:
    """Return the changes, the assumptions and the replay's fidelity; None if nothing is predicted."""
    if prediction.predicted_step_ns is None:
        return None
    assumptions, constants = document.assumptions(prediction), document.constants(prediction)
    assumptions = replace(assumptions, note=f"{_ASSUMED} {assumptions.note}".strip())
    changes, replay = tuple(document.changes(prediction)), Items(tuple(document.replay(prediction)))
    return dmc.Stack(
        [
            *([parts.drawn(context, "What to change", *changes, id="whatif-changes")] if changes else []),
            *([parts.table_panel(context, assumptions, "whatif-assumptions")] if assumptions.rows else []),
            *([parts.table_panel(context, constants, "whatif-constants")] if constants.rows else []),
            parts.drawn(context, _REPLAY, replay),
        ],
        gap="md",
    )


# -- The ladder ------------------------------------------------------------------------------------


def ladder(context: PageContext, prediction: WhatIf | None) -> Component | None:
    """Return the gain of each further change, the best first; None before a search."""
    if prediction is None:
        return None
    # Leaving out the saved times makes room for the buttons in a narrow window.
    table = document.ladder(prediction).without({"saved"})
    if not table.rows:
        message = (
            "None of these changes makes the step shorter."
            if prediction.replay.valid
            else document.headline(prediction).text
        )
        return dmc.Text(message, size="sm", mt="sm")
    buttons: list[Component | None] = [
        dmc.Button("use", id={"type": RUNG, "index": number}, variant="subtle", size="compact-xs")
        for number in range(len(table.rows))
    ]
    title = dmc.Text(table.title, fw=600, size="sm", mt="md")
    return html.Div([title, render.table(table, context.dark, "whatif-rungs-table", buttons)])
