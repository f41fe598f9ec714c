"""Starting the dashboard: what must be installed, the server, and the browser that opens it.

Dash is imported while the first trace is being read, so nothing here imports it at once.
"""

from __future__ import annotations

import os
import sys
import webbrowser
from collections.abc import Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from overlapscope.base.output import tell
from overlapscope.dashboard.scratch import own_directory
from overlapscope.errors import MissingPackage, UsageError

if TYPE_CHECKING:
    from werkzeug.wrappers import Request

    from overlapscope.dashboard.serve import Listening

UPLOAD_BYTES = 4 << 30
"""What the files that are dropped onto the page may take together, unless the caller says otherwise."""

_SMALL_BODY_BYTES = 16 << 20
"""What any request may bring: more than the page itself ever sends."""

_PACKAGES = ("dash", "dash_ag_grid", "dash_mantine_components", "waitress")


def require_packages() -> None:
    """Raises MissingPackage where the dashboard's extra is not installed."""
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingPackage(
            f"the dashboard needs {', '.join(missing)}, not installed here: pip install 'overlapscope[dashboard]'."
        )


def launch(
    sources: Sequence[Path],
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    base: str = "/",
    token: str | None = None,
    limit_bytes: int | None = None,
    cache: bool = True,
    upload_bytes: int = UPLOAD_BYTES,
) -> tuple[Listening, str]:
    """A server of the traces, to be run, and the address to open, with the token.

    `base` is a path with a slash at both ends. Without a token that of `security.own_token` is taken.

    Raises UnreadableTrace where a source is missing, UsageError where the address cannot be had or the token is bad.
    """
    from overlapscope.dashboard.library import Library
    from overlapscope.reading import LIMIT_BYTES

    library = Library(sources, limit_bytes=LIMIT_BYTES if limit_bytes is None else limit_bytes, cache=cache)
    for entry in library.entries()[:1]:
        library.request(entry.id)

    from overlapscope.dashboard import security
    from overlapscope.dashboard.serve import Listening
    from overlapscope.dashboard.server import create
    from overlapscope.dashboard.upload import Uploads

    token = security.own_token() if token is None else token
    uploads = Uploads(library, upload_bytes)
    app = create(library, uploads, base=base, token=token)

    def body_bytes(request: Request, coming_bytes: int) -> int:
        if security.refusal(request, token) is not None:
            return 0
        # What is a little too large is refused in a sentence.
        room = uploads.room_bytes - coming_bytes if uploads.brings(request) else 0
        return max(room, 0) + _SMALL_BODY_BYTES

    listening = Listening(app.server, host=host, port=port, base=base, body_bytes=body_bytes)
    # Reports alone have one page.
    page = "ranks" if library.ranks_files() and not library.entries() else ""
    return listening, f"{listening.url}{page}?{urlencode({'token': token})}"


def open_browser(url: str) -> None:
    """Open the address in a window, where there are windows: a text browser would take the terminal.

    The browser is told of a file that leads to the address, as Jupyter does: its arguments are no secret, and the
    address has the token. The file goes when the process ends.
    """
    windows = sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    if windows:
        leads = own_directory() / "open.html"
        leads.write_text(f'<!DOCTYPE html><meta http-equiv="refresh" content="0;url={escape(url)}">', "utf-8")
        webbrowser.open(leads.as_uri())


def show(sources: Sequence[str], *, height: int) -> None:
    """Show the dashboard from Python; see `overlapscope.show`."""
    require_packages()
    paths = [Path(source) for source in sources]
    for path in paths:
        if not path.is_file():
            raise UsageError(f"{path}: there is no such file here; the dashboard shows traces, not their reports.")
    from overlapscope.dashboard import notebook

    if notebook.in_notebook():
        notebook.display(paths, height=height)
        return
    server, url = launch(paths)
    tell(f"Serving at {url}  (Ctrl-C to end)")
    open_browser(url)
    server.run()
