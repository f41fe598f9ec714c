"""What surrounds every page: the header with the choice of trace, the navigation, and what is shown while loading."""

from __future__ import annotations

from typing import Any

import dash
import dash_mantine_components as dmc
import msgspec
from dash import ClientsideFunction, Input, Output, State, dcc, html
from dash.development.base_component import Component

from overlapscope.analysis.results import Window
from overlapscope.base.words import clean
from overlapscope.dashboard import notices
from overlapscope.dashboard.library import Library, Opened
from overlapscope.dashboard.moments import moved
from overlapscope.dashboard.pages import PAGES
from overlapscope.dashboard.place import RECORDED, Place, parse
from overlapscope.dashboard.shown import Shown, settled

_POLL_MS = 300
_PLAIN = "plain"
"""What the switch says where the address says nothing."""
_PROGRAMS = "Recording slows the host. Plain: the timeline replayed without what recording costs."

_SCHEME = """
function(clicks, known) {
    const system = window.matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
    const now = known || system;
    return clicks ? (now === 'dark' ? 'light' : 'dark') : now;
}
"""


def layout(base: str) -> Component:
    """The page's frame; what is in it comes from the callbacks."""
    return dmc.MantineProvider(
        id="mantine",
        theme={"primaryColor": "blue", "fontFamily": "system-ui, sans-serif", "defaultRadius": "sm"},
        children=[
            dcc.Location(id="url", refresh="callback-nav"),
            dcc.Store(id="scheme", storage_type="local"),
            dcc.Store(id="scheme-shown"),
            dcc.Store(id="loaded", data=0),
            dcc.Store(id="addressed"),
            dcc.Store(id="program-chosen"),
            dcc.Interval(id="loading-clock", interval=_POLL_MS, disabled=True),
            dmc.AppShell(
                id="shell",
                header={"height": 52},
                navbar={"width": 168, "breakpoint": "sm", "collapsed": {"mobile": True}},
                padding="md",
                children=[
                    dmc.AppShellHeader(_header(base)),
                    dmc.AppShellNavbar(html.Nav(id="navigation"), p="xs"),
                    dmc.AppShellMain(html.Div(id="content")),
                ],
            ),
        ],
    )


def _header(base: str) -> Component:
    return dmc.Group(
        h="100%",
        px="md",
        gap="sm",
        wrap="nowrap",
        children=[
            dmc.Burger(id="burger", size="sm", hiddenFrom="sm", opened=False, **{"aria-label": "navigation"}),
            dcc.Link("overlapscope", href=base, className="shell-name"),
            dmc.Select(
                id="trace-select",
                searchable=True,
                placeholder="no trace",
                nothingFoundMessage="no such trace",
                maxDropdownHeight=480,
                comboboxProps={"width": 520, "position": "bottom-start"},
                className="shell-trace",
                **{"aria-label": "trace"},
            ),
            dmc.Select(id="device-select", allowDeselect=False, className="shell-device", **{"aria-label": "device"}),
            html.Div(_switch(), id="program-switch"),
            dmc.Box(style={"flex": 1}),
            dmc.Button("Open", id="upload-button", variant="default", size="xs"),
            dmc.Menu(
                [
                    dmc.MenuTarget(dmc.Button("Export", id="export-button", variant="default", size="xs")),
                    dmc.MenuDropdown([], id="export-menu"),
                ]
            ),
            dmc.ActionIcon(
                "◐", id="scheme-toggle", variant="default", size="md", **{"aria-label": "switch light and dark"}
            ),
        ],
    )


def _switch() -> Component:
    """Which program is shown of a trace whose plain program is known (`Place.of`)."""
    return dmc.Tooltip(
        label=_PROGRAMS,
        multiline=True,
        w=280,
        withArrow=True,
        events={"hover": True, "focus": True, "touch": True},
        children=dmc.SegmentedControl(
            id="program-select",
            data=[{"value": RECORDED, "label": "Recorded"}, {"value": _PLAIN, "label": "Plain"}],
            value=_PLAIN,
            size="xs",
            **{"aria-label": "recorded or plain"},
        ),
    )


class _Chosen(msgspec.Struct, frozen=True):
    """The address at which the switch was used."""

    pathname: str
    search: str


def register(app: dash.Dash, library: Library, base: str) -> None:
    """The frame's callbacks."""
    app.clientside_callback(
        _SCHEME, Output("scheme", "data"), Input("scheme-toggle", "n_clicks"), State("scheme", "data")
    )
    app.clientside_callback(
        "function(scheme) { return [scheme || 'light', scheme || null]; }",
        Output("mantine", "forceColorScheme"),
        Output("scheme-shown", "data"),
        Input("scheme", "data"),
    )
    app.clientside_callback(
        ClientsideFunction("overlapscope_address", "complete"),
        Output("addressed", "data"),
        Input("trace-select", "value"),
        prevent_initial_call=True,
    )
    # In the browser, which knows what the timeline has written into the address since the page was shown.
    app.clientside_callback(
        ClientsideFunction("overlapscope_address", "device"),
        Output("url", "href", allow_duplicate=True),
        Input("device-select", "value"),
        State("device-select", "data"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction("overlapscope_address", "program"),
        Output("program-chosen", "data"),
        Input("program-select", "value"),
        prevent_initial_call=True,
    )
    app.clientside_callback("function(path) { return false; }", Output("burger", "opened"), Input("url", "pathname"))
    app.clientside_callback(
        "function(opened, shell) { return {...shell, collapsed: {mobile: !opened}}; }",
        Output("shell", "navbar"),
        Input("burger", "opened"),
        State("shell", "navbar"),
    )

    @app.callback(
        Output("content", "children"),
        Output("loading-clock", "disabled"),
        Output("navigation", "children"),
        Output("trace-select", "data"),
        Output("trace-select", "value"),
        Output("device-select", "data"),
        Output("device-select", "value"),
        Output("device-select", "style"),
        Output("program-select", "value"),
        Output("program-switch", "style"),
        Output("export-menu", "children"),
        Input("url", "pathname"),
        Input("url", "search"),
        Input("scheme-shown", "data"),
        Input("loaded", "data"),
    )
    def show(pathname: str | None, search: str | None, scheme: str | None, loaded: int) -> Any:
        if scheme is None:
            return dash.no_update
        place = settled(library, parse(base, pathname, search))
        content, waiting = _content(library, place, dark=scheme == "dark")
        devices, device = _devices(library, place)
        opened = library.opened(place.trace)
        page = PAGES.get(place.page)
        switched = opened is not None and opened.plain is not None and page is not None and page.switched
        return (
            content,
            not waiting,
            _navigation(place),
            _choices(library),
            place.trace,
            devices,
            device,
            {} if len(devices) > 1 else {"display": "none"},
            place.of or _PLAIN,
            {} if switched else {"display": "none"},
            _exports(place) if opened else [dmc.MenuItem("No trace is loaded", disabled=True)],
        )

    @app.callback(
        Output("loading", "children"),
        Output("loaded", "data"),
        Input("loading-clock", "n_intervals"),
        State("url", "pathname"),
        State("url", "search"),
        State("loaded", "data"),
        prevent_initial_call=True,
    )
    def look(intervals: int, pathname: str | None, search: str | None, loaded: int) -> Any:
        waiting = _missing(library, settled(library, parse(base, pathname, search)))
        if not waiting:
            return dash.no_update, loaded + 1
        return notices.loading_bar(waiting, library.loading(waiting)), dash.no_update

    @app.callback(
        Output("url", "href"),
        Input("trace-select", "value"),
        State("url", "pathname"),
        State("url", "search"),
        prevent_initial_call=True,
    )
    def go(trace: str | None, pathname: str | None, search: str | None) -> Any:
        place = settled(library, parse(base, pathname, search))
        return dash.no_update if trace is None or trace == place.trace else place.href(trace=trace)

    @app.callback(
        Output("url", "href", allow_duplicate=True),
        Input("program-chosen", "data"),
        prevent_initial_call=True,
    )
    def switch(chosen: _Chosen | None) -> Any:
        if chosen is None:
            return dash.no_update
        place = settled(library, parse(base, chosen.pathname, chosen.search))
        opened = library.opened(place.trace)
        return dash.no_update if opened is None else _switched(place, opened)


def _switched(place: Place, opened: Opened) -> str:
    """The URL of the same place in the other program; of a timeline around the same ops."""
    of = RECORDED if place.of is None else None
    before, after = opened.of(place.of), opened.of(of)
    device = before.section(place.device).device
    if device is None or place.start_ns is None or place.end_ns is None:
        return place.href(of=of)
    origin = before.lanes.origin_ns
    view = Window(start_ns=place.start_ns + origin, end_ns=place.end_ns + origin)
    view = moved(view, device.device, before.analysis.trace, after.analysis.trace)
    origin = after.lanes.origin_ns
    return place.href(of=of, start_ns=view.start_ns - origin, end_ns=view.end_ns - origin)


def _content(library: Library, place: Place, *, dark: bool) -> tuple[Component, bool]:
    """What is shown at a place, and whether something has to be loaded first."""
    page = PAGES.get(place.page)
    if page is None:
        return notices.no_page(place), False
    for id in (place.trace, place.other):
        if id is None or not page.needs_trace:
            continue
        if library.entry(id) is None:
            return notices.no_trace(place, id), False
        failure = library.failure(id)
        if failure is not None:
            return notices.unreadable(place, id, failure), False
    if page.needs_trace and place.trace is None:
        return notices.nothing_opened(place, reports=bool(library.ranks_files())), False
    waiting = _missing(library, place)
    if waiting is not None:
        return notices.loading(waiting, library.loading(waiting)), True
    shown = Shown(place, library, library.opened(place.trace), library.opened(place.other), dark)
    content: Component = page.module.layout(shown)
    return content, False


def _missing(library: Library, place: Place) -> str | None:
    """A trace of the place that is yet to be loaded; it is asked for."""
    page = PAGES.get(place.page)
    if page is None or not page.needs_trace:
        return None
    for id in (place.trace, place.other):
        if id is not None and library.entry(id) and library.opened(id) is None and library.failure(id) is None:
            library.request(id)
            return id
    return None


def _navigation(place: Place) -> list[Component]:
    return [
        dmc.NavLink(
            label=page.title,
            href=place.href(page.name),
            active=True if page.name == place.page else None,
            id=f"go-{page.name}",
        )
        for page in PAGES.values()
    ]


def _choices(library: Library) -> list[dict[str, str]]:
    return [{"value": entry.id, "label": clean(entry.id, 120)} for entry in library.entries()]


def _devices(library: Library, place: Place) -> tuple[list[dict[str, str]], str | None]:
    opened = library.opened(place.trace)
    if opened is None or not opened.analysis.devices:
        return [], None
    results = [analysis.result for analysis in opened.analysis.devices]
    choices = [
        {"value": str(one.device), "label": f"device {one.device}{f': {clean(one.name, 40)}' if one.name else ''}"}
        for one in results
    ]
    shown = opened.section(place.device).device
    return choices, str(shown.device) if shown else None


def _exports(place: Place) -> list[Component]:
    """Plain links: what they name is sent as a file. `assets/address.js` adds the span in view."""
    query = place.href().partition("?")[2]
    files = {
        "html": ("export.html", "This report as one HTML file"),
        "annotated": ("annotated", "The recording with causes, for Perfetto"),
    }
    return [
        dmc.MenuItem(label, href=f"{place.base}api/{route}?{query}", id=f"export-{name}", refresh=True)
        for name, (route, label) in files.items()
    ]
