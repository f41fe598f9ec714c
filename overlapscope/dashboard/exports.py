"""What can be taken along: the report of a trace as one HTML file, and the trace with its causes for Perfetto."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import flask
from msgspec import structs

from overlapscope.base.words import clean
from overlapscope.dashboard.library import Library, Opened
from overlapscope.dashboard.place import Place, parse
from overlapscope.errors import OverlapscopeError
from overlapscope.export import annotated
from overlapscope.render import html
from overlapscope.report.page import Page
from overlapscope.timeline.file import document
from overlapscope.timeline.tiles import Span


def register(server: flask.Flask, library: Library) -> None:
    """Have `GET /api/export.html?trace=ID&of=PROGRAM&device=N&from=NS&to=NS` send the view as a file that needs no
    server, and `GET /api/annotated?trace=ID` stream the annotated copy of a trace, which is always of its recording.

    All but the trace may be missing. Errors are `{"error": SENTENCE}`.
    """

    @server.get("/api/export.html")
    def send_report() -> flask.typing.ResponseReturnValue:
        place = parse("/", None, flask.request.query_string.decode("ascii", "replace"))
        if library.entry(place.trace) is None:
            return {"error": f"There is no trace {clean(place.trace or '', 100)!r} here."}, 404
        try:
            opened = library.wait(place.trace or "").of(place.of)
            text = html.render(document(_page(opened, place.device), [opened.lanes], _span(opened, place)))
        except OverlapscopeError as error:
            return {"error": clean(str(error))}, 409
        response = flask.Response(text.encode("utf-8", "replace"), mimetype="text/html")
        response.headers.set("Content-Disposition", "attachment", filename=_file_name(opened.id, "html"))
        return response

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
        response.headers.set("Content-Disposition", "attachment", filename=_file_name(id, "annotated.json.gz"))
        return response


def _page(opened: Opened, device: int | None) -> Page:
    """The report, of one device where one is asked for that the trace has."""
    report = opened.report
    if any(one.device == device for one in report.devices):
        traces = tuple(
            structs.replace(trace, devices=tuple(one for one in trace.devices if one.device == device))
            for trace in report.traces
        )
        findings = tuple(finding for finding in report.findings if finding.device == device)
        report = structs.replace(report, traces=traces, findings=findings)
    return replace(opened.page, report=report, verbose=False)


def _span(opened: Opened, place: Place) -> Span | None:
    """What the timeline shows in the dashboard, where the URL says so and it makes sense."""
    if place.start_ns is None or place.end_ns is None:
        return None
    lanes = opened.lanes
    start, end = max(place.start_ns, lanes.start_ns), min(place.end_ns, lanes.end_ns)
    return Span(start, end) if start < end else None


def _file_name(id: str, ending: str) -> str:
    """What the browser calls the file, after the last part of the trace's id."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", id.rpartition("/")[2]).strip("._")
    return f"{stem or 'trace'}.{ending}"
