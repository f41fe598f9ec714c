"""The application: its routes, its callbacks and what guards them."""

from __future__ import annotations

import logging

import dash
import flask

from overlapscope.dashboard import at_time, exports, security, shell, timeline_routes, upload
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.pages import PAGES


def create(library: Library, *, base: str = "/", token: str | None = None, upload_bytes: int) -> dash.Dash:
    """The dashboard of a library, below the path `base` (with a slash at both ends)."""
    server = flask.Flask(__name__)
    security.guard(server, token=token, base=base)
    timeline_routes.register(server, library)
    exports.register(server, library)
    at_time.register(server, library, base)
    upload.register(server, library, upload_bytes)
    app = dash.Dash(
        __name__,
        server=server,  # type: ignore[arg-type]
        requests_pathname_prefix=base,
        routes_pathname_prefix="/",
        use_pages=False,
        suppress_callback_exceptions=True,
        title="overlapscope",
        update_title="",
        on_error=_log,
    )
    app.layout = shell.layout(base)
    shell.register(app, library, base)
    for page in PAGES.values():
        register = getattr(page.module, "register", None)
        if register is not None:
            register(app, library)
    return app


def _log(error: Exception) -> None:
    logging.getLogger(__name__).error("A callback failed.", exc_info=error)
    raise error
