"""The application: routes, callbacks and access control."""

from __future__ import annotations

import dash
import flask
from dash.exceptions import DependencyException
from dash.resources import ResourceType

from overlapscope.dashboard import routes, security, shell, timeline_routes
from overlapscope.dashboard.callbacks import Dashboard
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.pages import PAGES
from overlapscope.dashboard.upload import DroppedFiles
from overlapscope.timeline import browser


def create(library: Library, uploads: DroppedFiles, *, base: str, token: str) -> dash.Dash:
    """Return the dashboard of a library below the path `base`, which has a slash at both ends."""
    server = flask.Flask(__name__)
    security.guard(server, token=token, base=base)
    timeline_routes.register(server, library)
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
    app.layout = shell.layout(base)
    for part in (shell, *(page.module for page in PAGES.values())):
        part.callbacks.register(app)
    return app


def _of_timeline(name: str) -> ResourceType:
    """Return a file of the timeline as a Dash resource.

    Its address changes with its contents, so that browsers may cache it for a year.
    """
    return {"namespace": "overlapscope", "relative_package_path": f"timeline/browser/{name}"}
