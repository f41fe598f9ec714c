"""Starting the dashboard: what must be installed, the server, and the browser that opens it.

Dash is imported while the first trace is being read, so nothing here imports it at once.
"""

from __future__ import annotations

import os
import secrets
import sys
import webbrowser
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from overlapscope.errors import MissingPackage, UsageError
from overlapscope.streams import tell

if TYPE_CHECKING:
    from overlapscope.dashboard.serve import Listening

UPLOAD_BYTES = 4 << 30
"""Size of the largest file that may be dropped onto the page, unless the caller says otherwise."""

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
    """A server of the traces, to be run, and the address to open, with the token where one is needed.

    `base` is a path with a slash at both ends. Where `host` is not this machine alone, a token is made up if none is
    given; an empty one is none.

    Raises UnreadableTrace where a source is missing, UsageError where the address cannot be had.
    """
    from overlapscope.dashboard.library import Library
    from overlapscope.sources import LIMIT_BYTES

    library = Library(sources, limit_bytes=LIMIT_BYTES if limit_bytes is None else limit_bytes, cache=cache)
    for entry in library.entries()[:1]:
        library.request(entry.id)

    from overlapscope.dashboard import upload
    from overlapscope.dashboard.security import is_loopback, refusal
    from overlapscope.dashboard.serve import Listening
    from overlapscope.dashboard.server import create

    # Nothing must not be let in by an empty token, as of a variable that is not set.
    token = token or (None if is_loopback(host) else secrets.token_urlsafe(24))
    app = create(library, base=base, token=token, upload_bytes=upload_bytes)
    listening = Listening(
        app.server,
        host=host,
        port=port,
        base=base,
        body_bytes=upload_bytes,
        admits=lambda request: upload.is_upload(request) and refusal(request, token) is None,
    )
    # Reports alone have one page.
    page = "ranks" if library.ranks_files() and not library.entries() else ""
    query = f"?{urlencode({'token': token})}" if token else ""
    return listening, f"{listening.url}{page}{query}"


def open_browser(url: str) -> None:
    """Open the address in a window, where there are windows: a text browser would take the terminal."""
    windows = sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    if windows:
        webbrowser.open(url)


def show(sources: Sequence[str], *, height: int) -> None:
    """Show the dashboard from Python; see `Report.show`."""
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
