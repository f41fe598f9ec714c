"""The dashboard of a made-up trace, which says how long it took to answer: `python -m benchmarks.dashboard_server OPS`.

Prints its address once everything is loaded. `/benchmark/views` answers with the times and bytes of the timeline's
views, and forgets them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import flask

from benchmarks.synthetic_trace import make
from overlapscope.dashboard import library as libraries
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.server import Listening
from overlapscope.dashboard.shell import create
from overlapscope.dashboard.upload import DroppedFiles

VIEW = "/api/timeline/view"
TOKEN = "known to the benchmark"


def main() -> None:
    ops = int(sys.argv[1])
    library = Library()
    with mock.patch.object(libraries, "load", return_value=make(ops)):
        id = library.add(Path("synthetic.json"), "synthetic.json")
        library.wait(id)
    server: flask.Flask = create(library, DroppedFiles(library, 1), base="/", token=TOKEN).server
    views: list[tuple[float, int]] = []

    @server.get("/benchmark/views")
    def taken() -> dict[str, Any]:
        seen = views.copy()
        views.clear()
        return {"views": seen}

    server.wsgi_app = timed(server.wsgi_app, views)  # type: ignore[method-assign]
    listening = Listening(server, host="127.0.0.1", port=0, base="/", body_bytes=lambda request: 1 << 24)
    print(f"{listening.url}timeline?trace={id}", flush=True)
    listening.run()


def timed(app: Callable[..., Iterable[bytes]], views: list[tuple[float, int]]) -> Callable[..., Iterable[bytes]]:
    """Return the application, with seconds and bytes of every view noted."""

    def call(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] != VIEW:
            return app(environ, start)
        begin = time.perf_counter()
        body = b"".join(app(environ, start))
        views.append((time.perf_counter() - begin, len(body)))
        return [body]

    return call


if __name__ == "__main__":
    main()
