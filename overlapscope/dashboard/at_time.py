"""Links to an instant of a trace that need not be loaded yet."""

from __future__ import annotations

from urllib.parse import urlencode

import flask

from overlapscope.analysis.results import Window
from overlapscope.base.words import clean
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.moments import moved
from overlapscope.dashboard.parts import timeline_href
from overlapscope.dashboard.place import Place, parse
from overlapscope.dashboard.shown import Shown
from overlapscope.errors import OverlapscopeError

_ROUTE = "api/at"


def register(server: flask.Flask, library: Library, base: str) -> None:
    """Have `GET /api/at?trace=ID&of=PROGRAM&start=NS&end=NS` lead to the timeline around that window, once the
    trace is loaded.

    Times are those of the recording. All but `of` must be given. Errors are `{"error": SENTENCE}`.
    """

    @server.get(f"/{_ROUTE}")
    def lead() -> flask.typing.ResponseReturnValue:
        id = flask.request.args.get("trace", "")
        if library.entry(id) is None:
            return {"error": f"There is no trace {clean(id, 100)!r} here."}, 404
        start, end = (flask.request.args.get(name, type=int) for name in ("start", "end"))
        if start is None or end is None or abs(start) >= 1 << 63 or abs(end) >= 1 << 63:
            return {"error": "start and end are whole numbers of nanoseconds."}, 400
        try:
            opened = library.wait(id)
        except OverlapscopeError as error:
            return {"error": clean(str(error))}, 409
        of = parse(base, None, flask.request.query_string.decode("ascii", "replace")).of
        shown = Shown(Place(base=base, trace=id, of=of), library, opened, None, False)
        window, device = Window(start_ns=start, end_ns=max(start, end)), shown.section.device
        if device is not None:
            window = moved(window, device.device, opened.analysis.trace, shown.opened.analysis.trace)
        return flask.redirect(timeline_href(shown, window))


def href(place: Place, trace: str, window: Window) -> str:
    """The URL of that route."""
    of = {} if place.of is None else {"of": place.of}
    query = urlencode({"trace": trace, **of, "start": window.start_ns, "end": window.end_ns}, safe="/")
    return f"{place.base}{_ROUTE}?{query}"
