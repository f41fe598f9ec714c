"""The dashboard inside a notebook: served by the kernel's process, shown in a frame."""

from __future__ import annotations

import os
import secrets
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from overlapscope.dashboard.launch import launch

_SERVED: dict[tuple[Path, ...], str] = {}
"""The address of each set of traces that is being served: asked for again, it is shown again."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The dashboard as a notebook shows it."""

    url: str
    height: int

    def _repr_html_(self) -> str:
        return f'<iframe src="{escape(self.url)}" width="100%" height="{self.height}" style="border:0"></iframe>'


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and "IPKernelApp" in shell.config


def display(paths: Sequence[Path], *, height: int) -> None:
    """Show the traces below the running cell."""
    from IPython.display import display as show_in_cell

    show_in_cell(frame(paths, height=height))


def frame(paths: Sequence[Path], *, height: int) -> Frame:
    """A frame on the traces, which are served until the process ends.

    On a JupyterHub the page is reached through jupyter-server-proxy, elsewhere at this machine's own address.
    """
    key = tuple(path.resolve() for path in paths)
    if key not in _SERVED:
        _SERVED[key] = _serve(paths, os.environ.get("JUPYTERHUB_SERVICE_PREFIX"))
    return Frame(_SERVED[key], height)


def _serve(paths: Sequence[Path], hub: str | None) -> str:
    token = secrets.token_urlsafe(24)
    if hub is None:
        # The token is the path: the frame may be of another site than the notebook, where browsers keep no cookies.
        # A frame's address is in no history.
        server, _ = launch(paths, port=0, base=f"/{token}/", token=token)
        server.run_aside()
        return f"http://localhost:{server.port}/{token}/"
    port = _free_port()
    # The proxy serves each port under a path of its own.
    base = f"{hub.rstrip('/')}/proxy/{port}/"
    server, _ = launch(paths, port=port, base=base, token=token)
    server.run_aside()
    return f"{base}?token={token}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
