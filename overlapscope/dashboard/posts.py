"""What a browser posts to have a callback called.

A callback's values have to be of the types in its signature: they are foreign text. A post with others, or one that
fits no callback, is answered with 400 and one line in the log; what fails after that is ours, and is told of as such.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Annotated, Any, NoReturn, get_type_hints

import dash
import flask
import msgspec
from dash.exceptions import PreventUpdate
from werkzeug.exceptions import HTTPException

from overlapscope.base.words import clean

Whole = Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)]
"""A browser's numbers are exact up to here."""
Number = Annotated[float, msgspec.Meta(ge=-(1 << 53), le=1 << 53)]

_DISPATCH = "/_dash-update-component"


class Point(msgspec.Struct, frozen=True):
    """A point of a chart. What it holds depends on the chart."""

    x: Any = None
    y: Any = None
    customdata: Any = None


class Click(msgspec.Struct, frozen=True):
    """A click on a chart."""

    points: tuple[Point, ...] = ()


class _Property(msgspec.Struct):
    id: str | dict[str, str | int]
    property: str
    value: Any = None


class _Post(msgspec.Struct):
    output: str
    outputs: _Property | list[_Property]
    inputs: list[_Property]
    state: list[_Property] = []


class Dashboard(dash.Dash):
    """An application whose callbacks are called with values of the types that they state, or not at all."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        views = self.server.view_functions
        views[_DISPATCH] = functools.partial(self._answer, views[_DISPATCH])

    def callback(self, *arguments: Any, **options: Any) -> Callable[..., Any]:
        """As Dash has it."""
        register = super().callback(*arguments, **options)
        return lambda function: register(_checked(function))

    def _answer(self, dispatch: Callable[[], Any]) -> Any:
        flask.g.called = False
        try:
            flask.request.get_json()
            # Python's own reader, which Dash uses, takes NaN and halves of characters for JSON.
            post = msgspec.json.decode(flask.request.get_data(), type=_Post)
            if isinstance(post.outputs, list) != isinstance(self.callback_map[post.output]["output"], list):
                _refuse("The outputs are not those of the callback.")
            return dispatch()
        except (PreventUpdate, HTTPException):
            raise
        except Exception as error:
            if flask.g.called:
                raise
            # Whatever Dash makes of what it did not expect.
            _refuse(f"{type(error).__name__}: {error}")


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, for values that nobody has checked: it is called only with such as its signature states."""
    types = [stated for name, stated in get_type_hints(function, include_extras=True).items() if name != "return"]

    @functools.wraps(function)
    def call(*values: Any) -> Any:
        try:
            converted = [msgspec.convert(value, stated) for value, stated in zip(values, types, strict=True)]
        except msgspec.ValidationError as error:
            _refuse(str(error))
        flask.g.called = True
        return function(*converted)

    return call


def _refuse(why: str) -> NoReturn:
    sentence = f"This post of a callback makes no sense: {clean(why, 300)}"
    logging.getLogger(__name__).warning("%s", sentence)
    flask.abort(flask.Response(f"{sentence}\n", 400, content_type="text/plain; charset=utf-8"))
