"""The annotated copy of a trace, as a download."""

from __future__ import annotations

import itertools
import re

import flask

from overlapscope.dashboard.library import Library
from overlapscope.errors import OverlapscopeError
from overlapscope.views import annotated
from overlapscope.views.words import clean


def register(server: flask.Flask, library: Library) -> None:
    """Have `GET /api/annotated?trace=ID` stream the annotated copy of a trace. Errors are `{"error": SENTENCE}`."""

    @server.get("/api/annotated")
    def send_annotated() -> flask.typing.ResponseReturnValue:
        id = flask.request.args.get("trace", "")
        if library.entry(id) is None:
            return {"error": f"There is no trace {clean(id, 100)!r} here."}, 404
        try:
            opened = library.wait(id)
            blocks = annotated.write(opened.analysis, opened.path)
            # The first block is made before anything is sent, while there can still be an error.
            first = next(blocks)
        except OverlapscopeError as error:
            return {"error": clean(str(error))}, 409
        response = flask.Response(itertools.chain([first], blocks), mimetype="application/gzip")
        response.headers.set("Content-Disposition", "attachment", filename=_file_name(id))
        return response


def _file_name(id: str) -> str:
    """What the browser calls the file, after the last part of the trace's id."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", id.rpartition("/")[2]).strip("._")
    return f"{stem or 'trace'}.annotated.json.gz"
