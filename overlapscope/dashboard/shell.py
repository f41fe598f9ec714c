"""The frame of every page: the header with the choice of trace, the navigation, and the loading indicator."""

from __future__ import annotations

from typing import Any

import dash
import dash_mantine_components as dmc
import flask
import msgspec
from dash import Input, Output, State, dcc, html
from dash.development.base_component import Component
from dash.exceptions import DependencyException
from dash.resources import ResourceType

from overlapscope.analysis.figures import Window
from overlapscope.base.extras import missing
from overlapscope.base.words import clean
from overlapscope.dashboard import parts, routes, security
from overlapscope.dashboard.callbacks import LEAD, Callbacks, Dashboard
from overlapscope.dashboard.context import FIRST_PAGE, TRACES_PAGE, PageContext, UrlState, moved, url_of
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.opened import RECORDED, Opened
from overlapscope.dashboard.pages import PAGES, PageKind
from overlapscope.dashboard.render import draw, explained
from overlapscope.dashboard.upload import DroppedFiles
from overlapscope.timeline import browser

_POLL_MS = 300
_PLAIN = "plain"
"""The switch's value if the address names no program."""
_HIDDEN = {"display": "none"}
_PROGRAMS = "Recording slows the host. Plain shows the timeline replayed without that cost."

_SCHEME = """
function(clicks, known) {
    const system = window.matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
    const now = known || system;
    return clicks ? (now === 'dark' ? 'light' : 'dark') : now;
}
"""


def layout(base: str) -> Component:
    """Return the page's frame; callbacks fill it."""
    return dmc.MantineProvider(
        id="mantine",
        theme={
            "primaryColor": "blue",
            # Mantine's own shade for light is too faint for text (WCAG 2: 4.5 to 1).
            "primaryShade": {"light": 9, "dark": 8},
            "fontFamily": "system-ui, sans-serif",
            "defaultRadius": "sm",
        },
        children=[
            dcc.Location(id="url", refresh="callback-nav"),
            dcc.Store(id="scheme", storage_type="local"),
            dcc.Store(id="scheme-shown"),
            dcc.Store(id="loaded", data=0),
            dcc.Store(id="addressed"),
            dcc.Store(id="header-shown"),
            dcc.Store(id=LEAD),
            dcc.Store(id="program-chosen"),
            dcc.Interval(id="loading-clock", interval=_POLL_MS, disabled=True),
            dmc.AppShell(
                id="shell",
                # Narrow windows need two rows (`shell.css`).
                header={"height": {"base": 96, "sm": 52}},
                navbar={"width": 168, "breakpoint": "sm", "collapsed": {"mobile": True}},
                padding="md",
                children=[
                    dmc.AppShellHeader(_header(base)),
                    dmc.AppShellNavbar(html.Nav(id="navigation"), p="xs"),
                    # Beside the content, so that the clock always finds it; hidden once there is content (`shell.css`).
                    dmc.AppShellMain([html.Div(id="content"), dmc.Center(id="loading", mih="50vh")]),
                ],
            ),
        ],
    )


def _header(base: str) -> Component:
    return dmc.Group(
        h="100%",
        px="md",
        gap="sm",
        className="shell-header",
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
            dmc.Box(className="shell-space"),
            dmc.Button("Open", id="upload-button", variant="default", size="xs"),
            dmc.Menu(
                [
                    # The target itself says whether the menu is open, so it has to be the button.
                    dmc.MenuTarget("Export", boxWrapperProps={"component": "button", "className": "shell-export"}),
                    dmc.MenuDropdown([], id="export-menu"),
                ]
            ),
            dmc.ActionIcon(
                "◐", id="scheme-toggle", variant="default", size="md", **{"aria-label": "switch light and dark"}
            ),
        ],
    )


def _switch() -> Component:
    """Return the switch between a trace's recording and its plain program (`UrlState.of`)."""
    switch = dmc.SegmentedControl(
        id="program-select",
        data=[{"value": RECORDED, "label": "Recorded"}, {"value": _PLAIN, "label": "Plain"}],
        value=_PLAIN,
        size="xs",
        **{"aria-label": "recorded or plain"},
    )
    return explained(switch, _PROGRAMS)


callbacks = Callbacks()
callbacks.in_browser(_SCHEME, Output("scheme", "data"), Input("scheme-toggle", "n_clicks"), State("scheme", "data"))
callbacks.in_browser(
    "function(scheme) { return [scheme || 'light', scheme || null]; }",
    Output("mantine", "forceColorScheme"),
    Output("scheme-shown", "data"),
    Input("scheme", "data"),
)
callbacks.in_browser(
    ("overlapscope_address", "header"),
    Output("addressed", "data"),
    Input("header-shown", "data"),
    prevent_initial_call=True,
)
# In the browser, because the timeline changes the address after the page is shown.
for _choice in ("trace", "device"):
    callbacks.in_browser(
        ("overlapscope_address", _choice),
        Output("url", "href", allow_duplicate=True),
        Input(f"{_choice}-select", "value"),
        prevent_initial_call=True,
    )
callbacks.in_browser(
    ("overlapscope_address", "program"),
    Output("program-chosen", "data"),
    Input("program-select", "value"),
    prevent_initial_call=True,
)
callbacks.in_browser(
    ("overlapscope_address", "lead"),
    Output("url", "href", allow_duplicate=True),
    Input(LEAD, "data"),
    State("url", "pathname"),
    State("url", "search"),
    prevent_initial_call=True,
)
callbacks.in_browser("function(path) { return false; }", Output("burger", "opened"), Input("url", "pathname"))
callbacks.in_browser(
    "function(opened, shell) { return {...shell, collapsed: {mobile: !opened}}; }",
    Output("shell", "navbar"),
    Input("burger", "opened"),
    State("shell", "navbar"),
)


@callbacks.add(
    Output("content", "children"),
    Output("loading", "children"),
    Output("loading-clock", "disabled"),
    Output("navigation", "children"),
    Output("trace-select", "data"),
    Output("device-select", "data"),
    Output("device-select", "style"),
    Output("program-switch", "style"),
    Output("export-menu", "children"),
    Output("header-shown", "data"),
    Input("url", "pathname"),
    Input("url", "search"),
    Input("scheme-shown", "data"),
    Input("loaded", "data"),
)
def show(context: PageContext, loaded: int) -> Any:
    """Return the page of an address, and its header."""
    url, opened = context.url, context.trace
    waiting = _waits(context)
    devices, device = _devices(context)
    kind = PAGES.get(url.page)
    switched = opened is not None and opened.plain is not None and kind is not None and kind.switched
    return (
        _content(context, is_waiting=waiting is not None),
        waiting,
        waiting is None,
        _navigation(context),
        [{"value": entry.id, "label": clean(entry.id, 120)} for entry in context.library.entries()],
        devices,
        {} if len(devices) > 1 else _HIDDEN,
        {} if switched else _HIDDEN,
        _exports(context) if opened else [dmc.MenuItem("No trace is loaded", disabled=True)],
        {"trace": url.trace, "device": device, "program": url.of or _PLAIN, "page": url.page},
    )


@callbacks.add(
    Output("loading", "children", allow_duplicate=True),
    Output("loaded", "data"),
    Output("loading-clock", "disabled", allow_duplicate=True),
    Input("loading-clock", "n_intervals"),
    State("loaded", "data"),
    prevent_initial_call=True,
)
def look(context: PageContext, intervals: int, loaded: int) -> Any:
    """Return the progress of what the page waits for."""
    waiting = _waits(context)
    if waiting is None:
        # Stop the clock at once: another tick would build the page again while it is already in use.
        return dash.no_update, loaded + 1, True
    return waiting, dash.no_update, dash.no_update


@callbacks.leads(Input(parts.SAMPLES, "n_clicks"))
def open_samples(context: PageContext, clicks: int | None) -> Any:
    """Add the samples, and return the address of the list of traces."""
    if not clicks:
        return dash.no_update
    # An address that is shown already would not show the page again.
    return context.url.href(TRACES_PAGE, trace=context.library.add_samples())


class _Chosen(msgspec.Struct, frozen=True):
    """The address at which the switch was used."""

    pathname: str
    search: str


@callbacks.leads(Input("program-chosen", "data"))
def switch(context: PageContext, chosen: _Chosen | None) -> Any:
    """Return the address of the trace's other program."""
    if chosen is None:
        return dash.no_update
    url = url_of(context.library, context.url.base, chosen.pathname, chosen.search)
    opened = context.library.opened(url.trace)
    return dash.no_update if opened is None else _switched(url, opened)


def _switched(url: UrlState, opened: Opened) -> str:
    """Return the URL of the same place in the other program; in a timeline, around the same ops."""
    of = RECORDED if url.of is None else None
    before, after = opened.of(url.of), opened.of(of)
    device = before.section(url.device).device
    if device is None or url.start_ns is None or url.end_ns is None:
        return url.href(of=of)
    origin = before.lanes.origin_ns
    view = Window(start_ns=url.start_ns + origin, end_ns=url.end_ns + origin)
    view = moved(view, device.device, before.analysis.trace, after.analysis.trace)
    origin = after.lanes.origin_ns
    return url.href(of=of, start_ns=view.start_ns - origin, end_ns=view.end_ns - origin)


def _content(context: PageContext, *, is_waiting: bool) -> Component | list[Component]:
    """Return the page of an address, or the reason why there is none; empty while the page waits."""
    url, library = context.url, context.library
    kind = PAGES.get(url.page)
    if kind is None:
        others = ", ".join(other.page.title for name, other in PAGES.items() if name != FIRST_PAGE)
        onward = ["Go to ", dmc.Anchor("the overview", href=url.href("overview")), f", or to {others}."]
        return parts.notice(f"There is no page {clean(url.page, 60)!r}", parts.empty(onward))
    if kind.needs != "nothing":
        for id, _ in context.named:
            if library.entry(id) is None:
                return parts.no_trace(id)
            if (failure := library.failure(id)) is not None:
                return parts.notice(f"{clean(id, 100)} cannot be shown", clean(str(failure), 2000))
        if url.trace is None:
            return parts.nothing_opened(url, reports=bool(library.ranks_files()))
    if is_waiting:
        # With None, Dash would keep the paths of the previous content, and fail at a late answer for it.
        return []
    if kind.needs == "figures" and context.device is None:
        return parts.unusable(context)
    shown = kind.module.layout(context, *([context.device] if kind.needs == "figures" else []))
    if isinstance(shown, Component):
        return shown
    program = parts.which_program(context) if kind.switched else ""
    lead = " ".join(filter(None, (getattr(kind.module, "LEAD", ""), program)))
    return parts.page(kind.page.title, *draw(shown, context.dark), lead=lead)


def _waits(context: PageContext) -> Component | None:
    """Return the progress of what the page waits for, and request it; None if the page can be shown."""
    kind, library = PAGES.get(context.url.page), context.library
    if kind is None:
        return None
    if kind.needs == "nothing":
        waiting: Component | None = kind.module.waits(context) if hasattr(kind.module, "waits") else None
        return waiting
    for id, opened in context.named:
        if library.entry(id) and opened is None and library.failure(id) is None:
            library.request(id)
            state = library.loading(id)
            return parts.progress(f"{clean(id, 100)}: {state.stage}", state.part)
    return None


def _navigation(context: PageContext) -> list[Component]:
    url = context.url
    return [
        dmc.NavLink(
            label=page.title,
            # A second click on a page resets its choices.
            href=url.href(page.name, **dict.fromkeys(page.state if page.name == url.page else ())),
            active=True if page.name == url.page else None,
            id=f"go-{page.name}",
        )
        for page, kind in ((kind.page, kind) for kind in PAGES.values())
        if page.name == url.page or _is_useful(kind, context)
    ]


def _is_useful(kind: PageKind, context: PageContext) -> bool:
    """Return whether a page has anything to show.

    Without figures, every page that needs them would look like the overview.
    """
    library, page = context.library, kind.page
    if kind.needs != "nothing" and page.name != FIRST_PAGE and not library.entries():
        return False
    if kind.needs == "figures" and page.name != FIRST_PAGE:
        return context.trace is None or context.device is not None
    if page.name == TRACES_PAGE:
        return len(library.entries()) > 1
    if page.data:
        data = library.data.get(page.name)
        return data is not None and not data.is_empty
    if kind.extra is not None:
        return not missing(kind.extra)
    return not page.files or page.files in library.files_of_plugins


def _devices(context: PageContext) -> tuple[list[dict[str, str]], str | None]:
    """Return the choice of devices, and the selected device."""
    if context.trace is None or not context.opened.analysis.devices:
        return [], None
    choices = [
        {
            "value": str(device.device),
            "label": f"device {device.device}{f': {clean(device.name, 40)}' if device.name else ''}",
        }
        for device in (analysis.result for analysis in context.opened.analysis.devices)
    ]
    shown = context.section.device
    return choices, str(shown.device) if shown else None


def _exports(context: PageContext) -> list[Component]:
    """Return links to files. `assets/address.js` adds the visible span, `assets/perfetto.js` opens Perfetto's page."""
    query = context.url.href().partition("?")[2]
    files = {
        "html": ("export.html", "This report as one HTML file"),
        "annotated": ("annotated", "The recording with causes, for Perfetto"),
        "perfetto": ("annotated", "Open it in Perfetto (ui.perfetto.dev) ↗"),
    }
    if context.loaded.analysis.trace.host_activity:
        files["speedscope"] = ("speedscope", "The flame graph, for speedscope")
    return [
        dmc.MenuItem(label, href=f"{context.url.base}api/{route}?{query}", id=f"export-{name}", refresh=True)
        for name, (route, label) in files.items()
    ]


# -- Application -----------------------------------------------------------------------------------


def create(library: Library, uploads: DroppedFiles, *, base: str, token: str) -> dash.Dash:
    """Return the dashboard of a library below the path `base`, which has a slash at both ends."""
    server = flask.Flask(__name__)
    security.guard(server, token=token, base=base)
    routes.register(server, library, base)
    uploads.register(server)
    app = Dashboard(
        __name__,
        library=library,
        server=server,
        requests_pathname_prefix=base,
        routes_pathname_prefix="/",
        use_pages=False,
        suppress_callback_exceptions=True,
        title="overlapscope",
        update_title="",
    )
    app.index_string = app.index_string.replace("<html>", '<html lang="en">')
    for name in browser.scripts():
        app.scripts.append_script(_of_timeline(name))
    app.css.append_css(_of_timeline(browser.STYLE))
    server.register_error_handler(DependencyException, lambda error: ("There is no such file.\n", 404))
    app.layout = layout(base)
    callbacks.register(app)
    for kind in PAGES.values():
        getattr(kind.module, "callbacks", Callbacks()).register(app)
    return app


def _of_timeline(name: str) -> ResourceType:
    """Return a file of the timeline as a Dash resource.

    Its address changes with its contents, so that browsers may cache it for a year.
    """
    return {"namespace": "overlapscope", "relative_package_path": f"timeline/browser/{name}"}
