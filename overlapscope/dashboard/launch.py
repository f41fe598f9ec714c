"""Start of the dashboard: required packages, the server, and the browser or notebook that shows it.

Nothing here imports Dash at once, because the server answers while Dash is being imported (`server.Beginning`), nor the
analysis, because `overlapscope run` checks here for packages and must not import numpy into the program.
"""

from __future__ import annotations

import functools
import os
import secrets
import socket
import sys
import webbrowser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from overlapscope.base import extras
from overlapscope.base.output import tell
from overlapscope.base.registry import load
from overlapscope.base.words import listed
from overlapscope.errors import MissingPackage, UsageError

if TYPE_CHECKING:
    from flask import Flask
    from werkzeug.wrappers import Request

    from overlapscope.api import Job
    from overlapscope.dashboard.library import Library
    from overlapscope.dashboard.server import Listening
    from overlapscope.dashboard.upload import DroppedFiles

UPLOAD_BYTES = 4 << 30
"""Default limit for the total size of files dropped onto the page."""

_SMALL_BODY_BYTES = 16 << 20
"""Size that any request's body may have; the page itself sends less."""


def require_packages() -> None:
    """Raise MissingPackage if the dashboard's extra is not installed."""
    missing = extras.missing("dashboard")
    if missing:
        raise MissingPackage(
            f"the dashboard needs {listed(missing)}, not installed here. {extras.how_to_install('dashboard')}"
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
    compare: bool = False,
    chosen: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Listening, str]:
    """Return a server of the traces, ready to run, and the address to open, with the token.

    Args:
        sources: Traces, patterns and directories.
        host: Name or address to listen on.
        port: Port to listen on; see `Listening`.
        base: Path of the dashboard, with a slash at both ends.
        token: The server's token; by default that of `security.own_token`.
        limit_bytes: Limit for the unpacked size of a trace.
        cache: Whether to use the cache of read traces.
        upload_bytes: Limit for the total size of dropped files.
        compare: Whether to open the page Compare with the first and the second trace.
        chosen: Data for pages with options of their own, by page.

    Raises:
        UnreadableTrace: A source is missing.
        UsageError: The address, the token, the number of traces to compare, or the data for a page is wrong.
    """
    from overlapscope.dashboard.library import Library
    from overlapscope.dashboard.pages import with_data
    from overlapscope.dashboard.source import is_private
    from overlapscope.reading import LIMIT_BYTES

    limit_bytes = LIMIT_BYTES if limit_bytes is None else limit_bytes
    library = Library(sources, limit_bytes=limit_bytes, cache=cache, shows_source=is_private(host, base))
    entries = library.entries()
    if compare and len(entries) != 2:
        raise UsageError(f"--compare takes two traces, the one before and the one after; here are {len(entries)}.")
    for entry in entries[:1]:
        library.request(entry.id)
    # The first trace is read meanwhile.
    library.data = {name: load(page.data)(chosen.get(name)) for name, page in with_data().items() if page.data}

    from overlapscope.dashboard import security
    from overlapscope.dashboard.server import Beginning, Listening
    from overlapscope.dashboard.upload import DroppedFiles

    server_token = security.own_token() if token is None else token
    uploads = DroppedFiles(library, upload_bytes)
    make = functools.partial(_application, library, uploads, base=base, token=server_token)
    app = Beginning(library, make, base=base, token=server_token)
    body_bytes = functools.partial(_body_bytes, uploads, server_token)
    listening = Listening(app, host=host, port=port, base=base, body_bytes=body_bytes)
    query = {"trace": entries[0].id, "with": entries[1].id} if compare else {}
    # Without traces, there is only the page of the reports or of the chosen data.
    other = "" if entries else "ranks" if library.ranks_files() else next(iter(chosen), "")
    return listening, f"{listening.url}{'compare' if compare else other}?{urlencode(query | {'token': server_token})}"


def _body_bytes(uploads: DroppedFiles, token: str, request: Request) -> int:
    """Return the size of the body to read."""
    from overlapscope.dashboard import security

    if security.refusal(request, token) is not None:
        return 0
    # A body slightly above the limit is read, so that the refusal can say why.
    return _SMALL_BODY_BYTES + (uploads.room_bytes if uploads.brings(request) else 0)


def _application(library: Library, uploads: DroppedFiles, *, base: str, token: str) -> Flask:
    # Dash imports all of IPython to detect notebooks, a fifth of its import time.
    is_notebook = "IPython" in sys.modules
    if not is_notebook:
        sys.modules["IPython"] = None  # type: ignore[assignment]
    try:
        from overlapscope.dashboard.shell import create
    finally:
        if not is_notebook:
            del sys.modules["IPython"]
    return create(library, uploads, base=base, token=token).server


def has_windows() -> bool:
    """Return whether this machine can open a window."""
    return sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))


def open_browser(url: str) -> None:
    """Open the address in a window, if possible: a text browser would take over the terminal.

    As with Jupyter, the browser gets a file that redirects to the address, because arguments are visible to other users
    and the address has the token. The file is deleted when the process ends.
    """
    if has_windows():
        from overlapscope.dashboard.upload import own_directory

        leads = own_directory() / "open.html"
        leads.write_text(f'<!DOCTYPE html><meta http-equiv="refresh" content="0;url={escape(url)}">', "utf-8")
        webbrowser.open(leads.as_uri())


def show(job: Job, *, height: int = 800) -> None:
    """Show the dashboard of a report's traces.

    In a notebook it is a frame of that height, elsewhere a page in a browser until Ctrl-C.

    Raises:
        UsageError: A trace's file is gone.
        MissingPackage: The dashboard is not installed.
    """
    require_packages()
    from overlapscope.api import files_of

    paths = [Path(source) for source in files_of(job)]
    for path in paths:
        if not path.is_file():
            raise UsageError(f"{path}: there is no such file here; the dashboard shows traces, not their reports.")
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is not None and "IPKernelApp" in shell.config:
        from IPython.display import display

        display(frame(paths, height=height))
        return
    server, url = launch(paths)
    tell(f"Serving at {url}  (Ctrl-C to end)")
    open_browser(url)
    server.run()


# -- Notebooks -------------------------------------------------------------------------------------

_SERVED: dict[tuple[Path, ...], str] = {}
"""Address of each set of traces that is being served, to be shown again on request."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The dashboard in a notebook."""

    url: str
    height: int

    def _repr_html_(self) -> str:
        return f'<iframe src="{escape(self.url)}" width="100%" height="{self.height}" style="border:0"></iframe>'


def frame(paths: Sequence[Path], *, height: int) -> Frame:
    """Return a frame with the traces, which are served until the process ends.

    On a JupyterHub the page is reached through jupyter-server-proxy, elsewhere at this machine's own address.
    """
    key = tuple(path.resolve() for path in paths)
    if key not in _SERVED:
        _SERVED[key] = _serve(paths, os.environ.get("JUPYTERHUB_SERVICE_PREFIX"))
    return Frame(_SERVED[key], height)


def _serve(paths: Sequence[Path], hub: str | None) -> str:
    token = secrets.token_urlsafe(24)
    # The proxy serves each port below its own path. Elsewhere the token is the path: the frame may be of another site
    # than the notebook, where browsers keep no cookies. A frame's address is in no browser's history.
    port = 0 if hub is None else _free_port()
    base = f"/{token}/" if hub is None else f"{hub.rstrip('/')}/proxy/{port}/"
    server, _ = launch(paths, port=port, base=base, token=token)
    server.run_aside()
    return f"http://localhost:{server.port}{base}" if hub is None else f"{base}?token={token}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
