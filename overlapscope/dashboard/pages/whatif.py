"""The page What if: the step time and the timeline to expect after changes to the program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import dash
import dash_mantine_components as dmc
import msgspec
from dash import ALL, Input, Output, State, dcc, html
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from overlapscope.analysis.average import judged_steps, median_step
from overlapscope.analysis.results import Device
from overlapscope.base.words import clean
from overlapscope.catalog.interventions import INTERVENTIONS, Intervention
from overlapscope.dashboard import parts, render
from overlapscope.dashboard.callbacks import Callbacks, Whole
from overlapscope.dashboard.context import PageContext, UrlState
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.opened import DrawnPrediction, WhatIfRequest
from overlapscope.errors import OverlapscopeError
from overlapscope.prediction import document
from overlapscope.prediction.interventions import name_and_argument
from overlapscope.prediction.result import WhatIf

LEAD = (
    "How long a step would take after a change, before anyone makes it. The recording is replayed with the change, and "
    "the timelines before and after stand one above the other."
)

CHOICE = "whatif-choice"
"""Type of the elements that each have the switch of a change."""


# -- The timelines ---------------------------------------------------------------------------------


def timelines(context: PageContext, prediction: DrawnPrediction, changes: Sequence[str]) -> dict[str, Any] | None:
    """Return the data of the timelines for the browser: the program above, the prediction of `changes` below.

    Both show the judged step of median length, or everything if there is none. None if nothing is predicted.
    """
    before = context.section.device
    if prediction.lanes is None or before is None:
        return None
    after = prediction.lanes.device(before.device).result
    parameters = {"predicted": msgspec.json.encode(changes).decode(), "device": before.device}
    step = median_step([before.steps[row] for row in judged_steps(before)])
    same = next((candidate for candidate in after.steps if step is not None and candidate.name == step.name), None)
    id, shown, step = context.opened.id, {"device": before.device}, None if same is None else step
    sides = [
        parts.side_at("before", id, context.opened.lanes, before, step, {}, **shown),
        parts.side_at("after", id, prediction.lanes, after, same, parameters, **shown),
    ]
    return parts.linked_timelines(context, "whatif", sides)


# -- The ladder ------------------------------------------------------------------------------------


def ladder(context: PageContext, prediction: WhatIf) -> Component:
    """Return the gain of each further change, the best first."""
    table = document.ladder(prediction)
    if table.rows:
        return parts.table_panel(context, table, "whatif-rungs-table")
    none = "None of these changes makes the step shorter."
    return dmc.Text(none if prediction.replay.valid else document.headline(prediction), size="sm", mt="sm")


_CLOCK_MS = 600
_WAIT_S = 0.3
"""Seconds to wait for a prediction; most are ready by then."""
_MAX_OPTIONS = 100
_NAMED: Any = {"aria-label": "changes"}
_MAX_CHANGES = 50


class _Question(msgspec.Struct, frozen=True):
    """A browser's request for a prediction."""

    trace: str
    device: Whole
    changes: tuple[str, ...] | None = None
    """None for the set that gains most."""


# -- The switches ----------------------------------------------------------------------------------


def layout(context: PageContext, device: Device) -> list[Component]:
    """Return the switches; callbacks show the prediction."""
    kinds = INTERVENTIONS.values()
    options = {kind.id: _options(kind, device) for kind in kinds if kind.argument}
    # If the address names no changes, begin with the fix of the first finding that has one.
    first = next((finding.saving.fix for finding in context.judged_section.findings if finding.saving), ())
    config = {
        "trace": context.opened.id,
        "device": device.device,
        "first": first,
        "kinds": [
            {"id": kind.id, "options": options.get(kind.id), "required": kind.argument_required} for kind in kinds
        ],
    }
    plain = context.loaded.plain is not None
    captions = {
        "before": "as it runs while nothing is recorded, replayed" if plain else "as recorded",
        "after": "as predicted",
    }
    aligned = "On the same scale, aligned at the beginning of the same step"
    note = f"{aligned}. Zooming or moving one moves the other as well."
    drawn = parts.timelines_panel("whatif", None, captions, note)
    return [
        render.panel(
            "Changes",
            _switches(context, device, first, options),
            html.Div(id="whatif-ladder"),
            # Beside the button, so that nothing else moves when it appears.
            beside=dmc.Group(
                [
                    html.Div(id="whatif-working", role="status"),
                    dmc.Button("Find the best", id="whatif-best", variant="light", size="xs"),
                ],
                gap="sm",
                wrap="nowrap",
            ),
            note="Switch on the changes that you would make. Point at one to see what it means.",
        ),
        html.Div(
            dmc.Stack(
                [
                    html.Div(id="whatif-answer"),
                    html.Div(drawn, id="whatif-drawn", hidden=True),
                    html.Div(id="whatif-details"),
                ],
                gap="md",
            ),
            id="whatif-shown",
        ),
        dcc.Store(id="whatif-page", data=config),
        dcc.Store(id="whatif-fill"),
        dcc.Store(id="whatif-asked"),
        dcc.Store(id="whatif-known"),
        dcc.Interval(id="whatif-clock", interval=_CLOCK_MS, disabled=True),
        dcc.Interval(id="whatif-best-clock", interval=_CLOCK_MS, disabled=True),
    ]


def _switches(
    context: PageContext, device: Device, first: tuple[str, ...], options: Mapping[str, list[str]]
) -> Component:
    prediction = None
    with suppress(OverlapscopeError):
        prediction = _prediction(context.library, _Question(context.opened.id, device.device, first))
    hidden = _hidden(device, prediction, first)
    return html.Fieldset(
        dmc.SimpleGrid(
            [
                html.Div(_choice(kind, options.get(kind.id, [])), id={"type": CHOICE, "id": kind.id}, hidden=is_hidden)
                for kind, is_hidden in zip(INTERVENTIONS.values(), hidden, strict=True)
            ],
            cols={"base": 1, "sm": 2, "lg": 3},
            spacing="sm",
        ),
        id="whatif-choices",
        className="whatif-choices",
        **_NAMED,
    )


def _options(kind: Intervention, device: Device) -> list[str]:
    """Return the choices for an argument in this trace, the most time-consuming first."""
    stalls = device.host_stalls
    if kind.arguments:
        named = [(cause, device.idle_by_cause.get(cause, 0)) for cause in kind.arguments]
        named = [(cause, ns) for cause, ns in named if ns]
    elif kind.argument == "CALL":
        # A call goes by its own name, or by that of the op that makes it.
        named = [(stall.call, stall.host_wait_ns) for stall in stalls]
        named += [(stall.op, stall.host_wait_ns) for stall in stalls if stall.op is not None]
    else:
        named = [(period.name, period.span_ns) for period in device.ranges]
    total: dict[str, int] = {}
    for name, ns in named:
        total[name] = total.get(name, 0) + ns
    return [name for name in sorted(total, key=lambda name: -total[name]) if name.strip()][:_MAX_OPTIONS]


def _hidden(device: Device, prediction: DrawnPrediction | None, changes: Sequence[str]) -> list[bool]:
    """Return whether to hide each switch: unless it is on, that of a change that cannot apply to the recording."""
    on = {name_and_argument(change)[0] for change in changes}
    return [
        kind.id not in on
        and (
            not _options(kind, device)
            if kind.argument_required
            else prediction is not None and kind.id not in prediction.applicable
        )
        for kind in INTERVENTIONS.values()
    ]


def _choice(kind: Intervention, options: list[str]) -> list[Component]:
    """Return a switch, with the choice of its argument below it."""
    name = html.Span([kind.title, html.Span(kind.id, className="whatif-id")])
    switch = dmc.Switch(id=_switch(kind), label=name, checked=False, size="sm", className="whatif-switch")
    explained = render.explained(html.Div(switch), kind.texts.meaning, w=340, position="bottom-start", openDelay=200)
    if not kind.argument:
        return [explained]
    choose = dmc.MultiSelect(
        id=_argument(kind),
        data=[{"value": option, "label": clean(option, 80)} for option in options],
        value=[],
        placeholder="choose" if kind.argument_required else "each step",
        display=None if options else "none",
        searchable=True,
        clearable=True,
        hidePickedOptions=True,
        nothingFoundMessage="nothing else here",
        size="xs",
        mt=4,
        **{"aria-label": f"{kind.title}: {kind.argument.lower()}"},
    )
    return [explained, choose]


def _switch(kind: Intervention) -> str:
    return f"whatif-{kind.id}"


def _argument(kind: Intervention) -> str:
    return f"whatif-{kind.id}-argument"


# -- Callbacks -------------------------------------------------------------------------------------

# The address sets the switches, the switches make the request, and its prediction is shown.
callbacks = Callbacks()


_KINDS = tuple(INTERVENTIONS.values())
_MOVED = [(_switch(kind), "checked") for kind in _KINDS]
_MOVED += [(_argument(kind), "value") for kind in _KINDS if kind.argument]
for _name, *_dependencies in (
    ("read", Output("whatif-fill", "data"), Input("whatif-page", "data")),
    ("fill", [Output(*moved) for moved in _MOVED], Input("whatif-fill", "data"), State("whatif-page", "data")),
    ("ask", Output("whatif-asked", "data"), [Input(*moved) for moved in _MOVED], State("whatif-page", "data")),
):
    callbacks.in_browser(("overlapscope_whatif", _name), *_dependencies)
callbacks.in_browser(
    ("overlapscope_linked", "mount"), Output("whatif-mounted", "children"), Input("whatif-timelines", "data")
)


# Predicting a large trace takes longer than an interval of the clock, and Dash discards the answer to an earlier
# tick. So the clock asks only whether the prediction is ready.
@callbacks.add(
    Output("whatif-known", "data"),
    Output("whatif-working", "children"),
    Output("whatif-shown", "className"),
    Output("whatif-clock", "disabled"),
    Input("whatif-asked", "data"),
    Input("whatif-clock", "n_intervals"),
    prevent_initial_call=True,
)
def look(context: PageContext, data: Any, ticks: int | None) -> Any:
    """Return whether the prediction is ready, or known to be impossible."""
    question = _question(data)
    if question is None:
        return dash.no_update, None, "", True
    try:
        is_ready = _prediction(context.library, question) is not None
    except OverlapscopeError:
        is_ready = True
    if not is_ready:
        working = dmc.Group([dmc.Loader(size="xs"), dmc.Text("Predicting", size="sm")], gap="xs")
        return dash.no_update, working, "whatif-stale", False
    return data, None, "", True


@callbacks.add(
    Output("whatif-answer", "children"),
    Output("whatif-details", "children"),
    Output("whatif-timelines", "data"),
    Output("whatif-drawn", "hidden"),
    Output("whatif-choices", "disabled"),
    Output("whatif-best", "disabled"),
    Output({"type": CHOICE, "id": ALL}, "hidden"),
    Input("whatif-known", "data"),
    prevent_initial_call=True,
)
def show(context: PageContext, data: Any) -> Any:
    """Return the prediction."""
    question, unknown = _question(data), [dash.no_update] * len(INTERVENTIONS)
    if question is None:
        raise PreventUpdate
    try:
        prediction = _prediction(context.library, question)
    except OverlapscopeError as error:
        return _failed(error), None, None, True, False, False, unknown
    asked_context = _asked_about(context, question)
    if prediction is None or asked_context.trace is None or asked_context.device is None:
        raise PreventUpdate
    drawn = timelines(asked_context, prediction, question.changes or ())
    invalid = not prediction.result.replay.valid
    _, verdict, *others = document.document(prediction.result).blocks
    bars = document.now_and_predicted(prediction.result)
    answer, *details = render.draw([verdict, *bars, *others], context.dark)
    return (
        answer,
        dmc.Paper(dmc.Stack(details, gap="sm"), withBorder=True, p="md") if details else None,
        drawn,
        drawn is None,
        invalid,
        invalid,
        _hidden(asked_context.device, prediction, question.changes or ()),
    )


@callbacks.add(
    Output("whatif-ladder", "children"),
    Output("whatif-fill", "data", allow_duplicate=True),
    Output("whatif-best", "loading"),
    Output("whatif-best-clock", "disabled"),
    Input("whatif-best", "n_clicks"),
    Input("whatif-best-clock", "n_intervals"),
    State("whatif-page", "data"),
    prevent_initial_call=True,
)
def find_best(context: PageContext, clicks: int | None, ticks: int | None, page: _Question | None) -> Any:
    """Return the changes that gain most, which are switched on."""
    if not clicks or page is None:
        return dash.no_update, dash.no_update, False, True
    question = _Question(page.trace, page.device)
    try:
        prediction = _prediction(context.library, question)
    except OverlapscopeError as error:
        return _failed(error), dash.no_update, False, True
    asked_context = _asked_about(context, question)
    if prediction is None or asked_context.trace is None:
        return dash.no_update, dash.no_update, True, False
    return ladder(asked_context, prediction.result), prediction.interventions, False, True


def _asked_about(context: PageContext, question: _Question) -> PageContext:
    """Return the context of the recording and device that a question is about."""
    url = UrlState(context.url.base, "whatif", question.trace, question.device)
    return PageContext.at(url, context.library, dark=context.dark)


def _question(data: Any) -> _Question | None:
    """Return the browser's request; None if it is invalid."""
    try:
        question = msgspec.convert(data, _Question)
    except msgspec.ValidationError:
        return None
    return question if len(question.changes or ()) <= _MAX_CHANGES else None


def _prediction(library: Library, question: _Question) -> DrawnPrediction | None:
    """Return the prediction; None until it is ready. Raises OverlapscopeError if it is impossible."""
    opened = library.get(question.trace)
    if opened is None:
        return None
    return library.predictions.get(opened, WhatIfRequest(question.device, question.changes), wait_s=_WAIT_S)


def _failed(error: OverlapscopeError) -> Component:
    return dmc.Alert(clean(str(error), 2000), title="There is no prediction", color="yellow", id="whatif-error")
