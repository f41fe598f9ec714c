"""Routes of the timeline's canvas: binary views, and details of single ops.

Every route is `GET /api/timeline/NAME?trace=ID&...`. The answer is from the plain program's timeline if the trace has
one, with `of=recorded` from the recording's, with `predicted=["pin",...]&device=N` from the timeline predicted for
these interventions. Invalid parameters are answered with 400, unknown things with 404, unfinished computations with
503, all with `{"error": SENTENCE}`.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from functools import partial
from typing import Any

import flask
import msgspec

from overlapscope import timeline as lanes
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.opened import Opened, WhatIfRequest
from overlapscope.dashboard.routes import Refused
from overlapscope.errors import OverlapscopeError
from overlapscope.timeline import Lanes

MOST_COLUMNS = 8_192
MOST_LANES = 1_000
"""Maximum number of lanes in a view. Traces have a lane per thread; a screen shows a hundred."""
_FARTHEST_NS = 1 << 53
"""Largest number that a browser represents exactly."""
_LONGEST_TEXT = 500
_PREDICTED_S = 20.0
"""Seconds to wait for a prediction that was dropped from memory since its page was shown."""
_SMALLEST_PACKED = 1_000

_Answer = dict[str, Any] | bytes | None


def register(server: flask.Flask, library: Library) -> None:
    """Register the routes of the timeline."""
    for name, answer in _ROUTES.items():
        server.add_url_rule(
            f"/api/timeline/{name}", f"timeline-{name}", partial(_respond, library, answer), methods=["GET"]
        )


def _respond(library: Library, answer: Callable[[Lanes], _Answer]) -> flask.Response:
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
        known = library.entry(id) is not None
        raise Refused("This trace is not in memory; load the page again." if known else "There is no such trace.", 404)
    asked = flask.request.args.get("predicted")
    return opened.of(flask.request.args.get("of")).lanes if asked is None else _predicted(library, opened, asked)


def _predicted(library: Library, opened: Opened, interventions: str) -> Lanes:
    try:
        asked = WhatIfRequest(_number("device"), tuple(msgspec.json.decode(interventions, type=list[str])))
    except msgspec.DecodeError:
        raise Refused("predicted is a JSON list of interventions.") from None
    try:
        found = library.predictions.get(opened, asked, wait_s=_PREDICTED_S)
    except OverlapscopeError as error:
        raise Refused(str(error)) from None
    if found is None:
        raise Refused("This is still being predicted; try again in a moment.", 503)
    if found.lanes is None:
        raise Refused("Nothing is predicted for this trace, as its replay differs from it.", 404)
    return found.lanes


def _response(answer: _Answer, status: int = 200) -> flask.Response:
    body = answer if isinstance(answer, bytes) else msgspec.json.encode(answer)
    headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
    if len(body) >= _SMALLEST_PACKED and flask.request.accept_encodings["gzip"] > 0:
        # The fastest level: compressing further would take longer than sending.
        body = gzip.compress(body, 1, mtime=0)
        headers["Content-Encoding"] = "gzip"
    content = "application/octet-stream" if isinstance(answer, bytes) else "application/json"
    return flask.Response(body, status, headers, content_type=content)


def _pixels(drawn: Lanes) -> _Answer:
    start, end = _time("start"), _time("end")
    if end <= start:
        raise Refused("A view's end lies behind its start.")
    columns = _number("columns", 1, MOST_COLUMNS)
    asked = flask.request.args.get("lanes", "")
    try:
        ids = [int(number) for number in asked.split(",")] if asked else []
    except ValueError:
        raise Refused("lanes is a list of numbers with commas between them.") from None
    if len(set(ids)) < len(ids):
        raise Refused("lanes names a lane twice.")
    if len(ids) > MOST_LANES:
        raise Refused(f"lanes names at most {MOST_LANES:,}.")
    return lanes.view(drawn, start, end, columns, ids)


def _at(drawn: Lanes) -> _Answer:
    lane = _number("lane")
    row = lanes.at(drawn, lane, _time("start"), _time("end"))
    return None if row is None else lanes.op(drawn, lane, row)


def _search(drawn: Lanes) -> _Answer:
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


def _worst(drawn: Lanes) -> _Answer:
    asked = flask.request.args.get("kind", "")
    for kind in lanes.SUBJECTS:
        if kind == asked:
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


_ROUTES: dict[str, Callable[[Lanes], _Answer]] = {
    "model": lanes.model,
    "view": _pixels,
    "op": lambda drawn: lanes.op(drawn, _number("lane"), _number("row")),
    "at": _at,
    "search": _search,
    "worst": _worst,
}
