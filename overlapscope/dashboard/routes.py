"""Routes besides pages: files to download, links to an instant of a trace, and the timeline's views and ops.

Failures are answered with `{"error": SENTENCE}`.
"""

from __future__ import annotations

import functools
import gzip
import itertools
import re
from collections.abc import Callable, Iterable
from typing import Any

import flask
import msgspec

from overlapscope import timeline as lanes
from overlapscope.analysis.figures import Window
from overlapscope.base.words import clean
from overlapscope.dashboard.context import PageContext, UrlState, parse
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.opened import Opened, WhatIfRequest
from overlapscope.errors import OverlapscopeError
from overlapscope.export import annotated, speedscope
from overlapscope.render import html
from overlapscope.timeline import Lanes
from overlapscope.timeline.file import TimeSpan, document

_View = Callable[[PageContext], flask.typing.ResponseReturnValue]


class Refused(Exception):
    """A request that cannot be answered; the message states the reason."""

    def __init__(self, sentence: str, status: int = 400) -> None:
        super().__init__(sentence)
        self.status = status


def register(server: flask.Flask, library: Library, base: str) -> None:
    """Register the routes. The first four wait for the trace, and require only the trace and an instant's times.

    - `GET /api/export.html?trace=ID&of=PROGRAM&from=NS&to=NS`: the report as a file that opens its timeline there
    - `GET /api/annotated?trace=ID`: the annotated copy of the trace, always of its recording
    - `GET /api/speedscope?trace=ID`: its sampled stacks
    - `GET /api/at?trace=ID&of=PROGRAM&start=NS&end=NS`: redirects to the timeline around a window of the recording
    - `GET /api/timeline/NAME?trace=ID&...`: answers of `_TIMELINE` from the plain program's timeline if the trace has
      one, with `of=recorded` from the recording's, with `predicted=["pin",...]&device=N` from the timeline predicted
      for these interventions. Invalid parameters are answered with 400, unknown things with 404, unfinished
      computations with 503.
    """
    views: dict[str, _View] = {
        "export.html": _send_report,
        "annotated": _send_annotated,
        "speedscope": _send_stacks,
        "at": _lead,
    }
    for name, view in views.items():
        server.add_url_rule(f"/api/{name}", name.partition(".")[0], functools.partial(_answer, library, base, view))
    for name, answer in _TIMELINE.items():
        respond = functools.partial(_respond, library, answer)
        server.add_url_rule(f"/api/timeline/{name}", f"timeline-{name}", respond, methods=["GET"])


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
    text = html.render(document(opened.page, [opened.lanes], _span(opened, context.url)))
    return _attached(text.encode("utf-8", "replace"), "text/html", opened.id, "html")


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
    return _attached(itertools.chain([first], blocks), "application/gzip", recording.id, "annotated.json.gz")


def _send_stacks(context: PageContext) -> flask.typing.ResponseReturnValue:
    stacks = speedscope.render([context.loaded.analysis.trace])
    return _attached(stacks, "application/json", context.loaded.id, "speedscope.json")


def _attached(body: bytes | Iterable[bytes], mimetype: str, id: str, ending: str) -> flask.Response:
    """Return a download, whose file name is made from the last part of the trace's id."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", id.rpartition("/")[2]).strip("._")
    response = flask.Response(body, mimetype=mimetype)
    response.headers.set("Content-Disposition", "attachment", filename=f"{stem or 'trace'}.{ending}")
    return response


def _lead(context: PageContext) -> flask.typing.ResponseReturnValue:
    start, end = (flask.request.args.get(name, type=int) for name in ("start", "end"))
    if start is None or end is None or abs(start) >= 1 << 63 or abs(end) >= 1 << 63:
        raise Refused("start and end are whole numbers of nanoseconds.")
    window, device = Window(start_ns=start, end_ns=max(start, end)), context.section.device
    if device is not None:
        window = context.moved(window, device.device)
    return flask.redirect(context.timeline_href(window))


# -- The timeline's canvas: binary views, and details of single ops --------------------------------

MAX_COLUMNS = 8_192
MAX_LANES = 1_000
"""Maximum number of lanes in a view. Traces have a lane per thread; a screen shows a hundred."""
_FARTHEST_NS = 1 << 53
"""Largest number that a browser represents exactly."""
_LONGEST_TEXT = 500
_PREDICTED_S = 20.0
"""Seconds to wait for a prediction that was dropped from memory since its page was shown."""
_SMALLEST_PACKED = 1_000

_TimelineAnswer = dict[str, Any] | bytes | None


def _respond(library: Library, answer: Callable[[Lanes], _TimelineAnswer]) -> flask.Response:
    try:
        return _response(answer(_lanes(library)))
    except Refused as refused:
        return _response({"error": str(refused)}, refused.status)
    except KeyError as missing:
        return _response({"error": f"This trace has no {missing.args[0]}."}, 404)


def _lanes(library: Library) -> Lanes:
    id = flask.request.args.get("trace")
    opened = library.opened(id)
    if opened is None:
        exists = library.entry(id) is not None
        raise Refused("This trace is not in memory; load the page again." if exists else "There is no such trace.", 404)
    interventions = flask.request.args.get("predicted")
    return (
        opened.of(flask.request.args.get("of")).lanes
        if interventions is None
        else _predicted(library, opened, interventions)
    )


def _predicted(library: Library, opened: Opened, interventions: str) -> Lanes:
    try:
        request = WhatIfRequest(_number("device"), tuple(msgspec.json.decode(interventions, type=list[str])))
    except msgspec.DecodeError:
        raise Refused("predicted is a JSON list of interventions.") from None
    try:
        prediction = library.predictions.get(opened, request, wait_s=_PREDICTED_S)
    except OverlapscopeError as error:
        raise Refused(str(error)) from None
    if prediction is None:
        raise Refused("This is still being predicted; try again in a moment.", 503)
    if prediction.lanes is None:
        raise Refused("Nothing is predicted for this trace, as its replay differs from it.", 404)
    return prediction.lanes


def _response(answer: _TimelineAnswer, status: int = 200) -> flask.Response:
    body = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
    headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
    if len(body) >= _SMALLEST_PACKED and flask.request.accept_encodings["gzip"] > 0:
        # The fastest level: compressing further would take longer than sending.
        body = gzip.compress(body, 1, mtime=0)
        headers["Content-Encoding"] = "gzip"
    content = "application/octet-stream" if isinstance(answer, bytes) else "application/json"
    return flask.Response(body, status, headers, content_type=content)


def _pixels(drawn: Lanes) -> _TimelineAnswer:
    start, end = _time("start"), _time("end")
    if end <= start:
        raise Refused("A view's end lies behind its start.")
    columns = _number("columns", 1, MAX_COLUMNS)
    wanted_lanes = flask.request.args.get("lanes", "")
    try:
        ids = [int(number) for number in wanted_lanes.split(",")] if wanted_lanes else []
    except ValueError:
        raise Refused("lanes is a list of numbers with commas between them.") from None
    if len(set(ids)) < len(ids):
        raise Refused("lanes names a lane twice.")
    if len(ids) > MAX_LANES:
        raise Refused(f"lanes names at most {MAX_LANES:,}.")
    return lanes.view(drawn, start, end, columns, ids)


def _at(drawn: Lanes) -> _TimelineAnswer:
    lane = _number("lane")
    row = lanes.nearest_op(drawn, lane, _time("start"), _time("end"))
    return None if row is None else lanes.op(drawn, lane, row)


def _search(drawn: Lanes) -> _TimelineAnswer:
    text = flask.request.args.get("text", "")
    if len(text) > _LONGEST_TEXT:
        raise Refused(f"text is at most {_LONGEST_TEXT} characters.")
    direction = _number("direction", -1, 1, otherwise=1)
    if direction == 0:
        raise Refused("direction is 1 or -1.")
    # The next match is found by lane and row, because several ops may begin at the same instant.
    given = "lane" in flask.request.args or "row" in flask.request.args
    after = lanes.LaneRow(_number("lane"), _number("row")) if given else _time("after", -_FARTHEST_NS)
    return lanes.search(drawn, text, after, direction)


def _worst(drawn: Lanes) -> _TimelineAnswer:
    wanted_kind = flask.request.args.get("kind", "")
    for kind in lanes.SUBJECTS:
        if kind == wanted_kind:
            return lanes.worst(drawn, kind, _number("number", otherwise=0))
    raise Refused(f"kind is one of {', '.join(lanes.SUBJECTS)}.")


def _time(name: str, otherwise: int | None = None) -> int:
    return _number(name, -_FARTHEST_NS, _FARTHEST_NS, otherwise)


def _number(name: str, least: int = 0, most: int = (1 << 31) - 1, otherwise: int | None = None) -> int:
    """Return a whole number from the query, `otherwise` if it is missing."""
    text = flask.request.args.get(name)
    if text is None and otherwise is not None:
        return otherwise
    try:
        value = int(text or "")
    except ValueError:
        raise Refused(f"{name} is a whole number.") from None
    if not least <= value <= most:
        raise Refused(f"{name} is from {least} to {most}.")
    return value


_TIMELINE: dict[str, Callable[[Lanes], _TimelineAnswer]] = {
    "model": lambda drawn: lanes.model(drawn, devices_only="devices" in flask.request.args),
    "view": _pixels,
    "op": lambda drawn: lanes.op(drawn, _number("lane"), _number("row")),
    "at": _at,
    "search": _search,
    "worst": _worst,
}
