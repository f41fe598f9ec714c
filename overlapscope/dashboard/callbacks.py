"""Callbacks of pages: functions of the page's context and of the values that a browser posts.

The values are foreign text, so they must have the types in the callback's signature. Other posts are answered with 400
and a line in the log. A failure after that check is our own, and is reported as such.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Annotated, Any, NoReturn, TypeVar, get_type_hints

import dash
import flask
import msgspec
from dash import ClientsideFunction, Input, Output, State
from dash.exceptions import PreventUpdate
from werkzeug.exceptions import HTTPException

from overlapscope.base.words import clean
from overlapscope.dashboard.context import PageContext, url_of
from overlapscope.dashboard.library import Library

Whole = Annotated[int, msgspec.Meta(ge=-(1 << 53), le=1 << 53)]
"""A whole number that a browser represents exactly."""
Number = Annotated[float, msgspec.Meta(ge=-(1 << 53), le=1 << 53)]

LEAD = "lead"
"""Id of the store that receives the results of `Callbacks.leads`."""
_DISPATCH = "/_dash-update-component"


T = TypeVar("T")


class ChartPoint(msgspec.Struct, frozen=True):
    """A point of a chart. The contents depend on the chart."""

    x: Any = None
    y: Any = None
    customdata: Any = None


class Click(msgspec.Struct, frozen=True):
    """A click on a chart."""

    points: tuple[ChartPoint, ...] = ()

    def first(self, kind: type[T]) -> T | None:
        """Return the first item of a point's `customdata`, if it is of that type."""
        lists = (point.customdata for point in self.points if isinstance(point.customdata, list))
        return next((values[0] for values in lists if values and type(values[0]) is kind), None)


Function = TypeVar("Function", bound=Callable[..., Any])

_SHOWN = (State("url", "pathname"), State("url", "search"), State("scheme-shown", "data"))
"""States from which the page's context is made; every callback gets them."""
_LEADS = Output(LEAD, "data", allow_duplicate=True)


class Callbacks:
    """Callbacks of a page, collected until an application registers them."""

    def __init__(self) -> None:
        self._in_server: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []
        self._in_browser: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = []

    def add(self, *dependencies: Any, **options: Any) -> Callable[[Function], Function]:
        """Register a function that takes the `PageContext`, then the values of its inputs and states, in that order.

        The address and the scheme are in the context instead. Otherwise this is Dash's `callback`.

        Returns:
            The decorator, which returns the function unchanged.
        """

        def keep(function: Function) -> Function:
            shown = tuple(shown for shown in _SHOWN if shown not in dependencies)
            self._in_server.append((function, dependencies + shown, options))
            return function

        return keep

    def leads(self, *dependencies: Any) -> Callable[[Function], Function]:
        """Register a function, as `add` does, whose result is an address to go to.

        The browser ignores the answer if the user has gone elsewhere in the meantime (`assets/address.js`).

        Returns:
            The decorator, which returns the function unchanged.
        """
        return self.add(_LEADS, *dependencies, prevent_initial_call=True)

    def in_browser(self, function: str | tuple[str, str], *dependencies: Any, **options: Any) -> None:
        """Register JavaScript: source text, or a function of the assets by namespace and name."""
        called = function if isinstance(function, str) else ClientsideFunction(*function)
        self._in_browser.append((called, dependencies, options))

    def register(self, app: Dashboard) -> None:
        """Register the callbacks with an application."""
        for function, dependencies, options in self._in_browser:
            app.clientside_callback(function, *dependencies, **options)
        for function, dependencies, options in self._in_server:
            app.callback(*dependencies, **options)(_checked(app, function, dependencies))


class _Property(msgspec.Struct):
    id: str | dict[str, str | int]
    property: str
    value: Any = None


class _Post(msgspec.Struct):
    output: str
    outputs: _Property | list[_Property | list[_Property]]
    inputs: list[_Property]
    state: list[_Property] = []


class Dashboard(dash.Dash):
    """An application that calls callbacks only with values of the types in their signatures."""

    def __init__(self, *arguments: Any, library: Library, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.library = library
        views = self.server.view_functions
        views[_DISPATCH] = functools.partial(self._answer, views[_DISPATCH])

    def _answer(self, dispatch: Callable[[], Any]) -> Any:
        flask.g.called = False
        try:
            flask.request.get_json()
            # Python's json module, which Dash uses, accepts NaN and lone surrogates.
            post = msgspec.json.decode(flask.request.get_data(), type=_Post)
            if _shape(post.outputs) != _shape(self.callback_map[post.output]["output"]):
                _refuse("The outputs are not those of the callback.")
            return dispatch()
        except (PreventUpdate, HTTPException):
            raise
        except Exception as error:
            if flask.g.called:
                raise
            # Dash raises various exceptions for unexpected posts.
            _refuse(f"{type(error).__name__}: {error}")


def _shape(outputs: Any) -> bool | list[bool]:
    """Return which outputs are of several components, as posted or as in the callback's definition."""
    if isinstance(outputs, list):
        return [isinstance(each, list) or isinstance(getattr(each, "component_id", ""), dict) for each in outputs]
    return False


def _checked(app: Dashboard, function: Callable[..., Any], dependencies: tuple[Any, ...]) -> Callable[..., Any]:
    """Return a callback that checks the values it gets.

    It calls `function` only with values of the types in its signature. If it leads to an address, the answer includes
    the address at which the user was.
    """
    read = [dependency for dependency in dependencies if isinstance(dependency, Input | State)]
    context_at = [read.index(shown) for shown in _SHOWN]
    hints = [hint for name, hint in get_type_hints(function, include_extras=True).items() if name != "return"][1:]

    @functools.wraps(function)
    def call(*values: Any) -> Any:
        try:
            pathname, search, scheme = (msgspec.convert(values[at], str | None) for at in context_at)
            inputs = [value for at, value in enumerate(values) if at not in context_at]
            converted = [msgspec.convert(value, hint) for value, hint in zip(inputs, hints, strict=True)]
        except msgspec.ValidationError as error:
            _refuse(str(error))
        flask.g.called = True
        if scheme is None:
            # The page is still starting; it posts again once it knows the scheme.
            raise PreventUpdate
        url = url_of(app.library, app.config.requests_pathname_prefix, pathname, search)
        answer = function(PageContext.at(url, app.library, dark=scheme == "dark"), *converted)
        if _LEADS not in dependencies or answer is dash.no_update:
            return answer
        return {"href": answer, "pathname": pathname, "search": search}

    return call


def _refuse(why: str) -> NoReturn:
    sentence = f"This post of a callback makes no sense: {clean(why, 300)}"
    logging.getLogger(__name__).warning("%s", sentence)
    flask.abort(flask.Response(f"{sentence}\n", 400, content_type="text/plain; charset=utf-8"))
