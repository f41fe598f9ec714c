"""Routes besides pages: files to download, and links to an instant of a trace.

Failures are answered with `{"error": SENTENCE}`.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable

import flask
from msgspec import structs
from msgspec.structs import replace

from overlapscope.analysis.figures import Window
from overlapscope.base.words import clean
from overlapscope.dashboard.context import PageContext
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.opened import Opened
from overlapscope.dashboard.url import UrlState, moved, parse
from overlapscope.errors import OverlapscopeError
from overlapscope.export import annotated
from overlapscope.render import html
from overlapscope.report.page import Page
from overlapscope.timeline.file import TimeSpan, document

_View = Callable[[PageContext], flask.typing.ResponseReturnValue]


class Refused(Exception):
    """A request that cannot be answered; the message states the reason."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


def register(server: flask.Flask, library: Library, base: str) -> None:
    """Register these routes, which wait for the trace. Only the trace and an instant's times are required.

    - `GET /api/export.html?trace=ID&of=PROGRAM&device=N&from=NS&to=NS`: the view as a self-contained file
    - `GET /api/annotated?trace=ID`: the annotated copy of the trace, always of its recording
    - `GET /api/at?trace=ID&of=PROGRAM&start=NS&end=NS`: redirects to the timeline around a window of the recording
    """
    views: dict[str, _View] = {"export.html": _send_report, "annotated": _send_annotated, "at": _lead}
    for name, view in views.items():
        server.add_url_rule(f"/api/{name}", name.partition(".")[0], functools.partial(_answer, library, base, view))


def _answer(library: Library, base: str, view: _View) -> flask.typing.ResponseReturnValue:
    url = parse(base, None, flask.request.query_string.decode("ascii", "replace"))
    if url.trace is None or library.entry(url.trace) is None:
        return {"error": f"There is no trace {clean(url.trace or '', 100)!r} here."}, 404
    try:
        return view(PageContext(url, library, library.wait(url.trace)))
    except OverlapscopeError as error:
        return {"error": clean(str(error))}, 409
    except Refused as refused:
        return {"error": str(refused)}, refused.status


def _send_report(context: PageContext) -> flask.typing.ResponseReturnValue:
    opened = context.opened
    text = html.render(document(_page(opened, context.url.device), [opened.lanes], _span(opened, context.url)))
    response = flask.Response(text.encode("utf-8", "replace"), mimetype="text/html")
    response.headers.set("Content-Disposition", "attachment", filename=_file_name(opened.id, "html"))
    return response


def _page(opened: Opened, device: int | None) -> Page:
    """Return the report, reduced to a device if the trace has it."""
    report = opened.report
    if any(candidate.device == device for candidate in report.devices):
        traces = tuple(
            structs.replace(
                trace, devices=tuple(candidate for candidate in trace.devices if candidate.device == device)
            )
            for trace in report.traces
        )
        findings = tuple(finding for finding in report.findings if finding.device == device)
        report = structs.replace(report, traces=traces, findings=findings)
    return replace(opened.page, report=report, verbose=False)


def _span(opened: Opened, url: UrlState) -> TimeSpan | None:
    """Return the timeline's visible span, if the URL has a valid one."""
    if url.start_ns is None or url.end_ns is None:
        return None
    lanes = opened.lanes
    start, end = max(url.start_ns, lanes.start_ns), min(url.end_ns, lanes.end_ns)
    return TimeSpan(start, end) if start < end else None


def _send_annotated(context: PageContext) -> flask.typing.ResponseReturnValue:
    recording = context.loaded
    blocks = annotated.write(recording.analysis, recording.path)
    # Make the first block before sending anything, while an error can still be answered.
    first = next(blocks)
    response = flask.Response(itertools.chain([first], blocks), mimetype="application/gzip")
    response.headers.set("Content-Disposition", "attachment", filename=_file_name(recording.id, "annotated.json.gz"))
    return response


def _file_name(id: str, ending: str) -> str:
    """Return the download's file name, made from the last part of the trace's id."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", id.rpartition("/")[2]).strip("._")
    return f"{stem or 'trace'}.{ending}"


def _lead(context: PageContext) -> flask.typing.ResponseReturnValue:
    start, end = (flask.request.args.get(name, type=int) for name in ("start", "end"))
    if start is None or end is None or abs(start) >= 1 << 63 or abs(end) >= 1 << 63:
        raise Refused("start and end are whole numbers of nanoseconds.")
    window, device = Window(start_ns=start, end_ns=max(start, end)), context.section.device
    if device is not None:
        recorded, shown = context.loaded.analysis.trace, context.opened.analysis.trace
        window = moved(window, device.device, recorded, shown)
    return flask.redirect(context.timeline_href(window))
