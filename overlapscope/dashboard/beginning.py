"""The server's answers while the application is being imported.

A page shows the verdict as soon as it is known, until the application's own page replaces it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from importlib import resources
from typing import TYPE_CHECKING, Any

import flask
import msgspec
from werkzeug.wrappers import Request

from overlapscope.base.words import clean
from overlapscope.dashboard import security
from overlapscope.dashboard.context import PageContext, url_of
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.url import FIRST_PAGE
from overlapscope.documents.colors import palette
from overlapscope.errors import OverlapscopeError
from overlapscope.report.verdict import judge

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

_PATH = "/api/beginning"
_VERDICT_FIRST_S = 4.0
"""Seconds to wait for the first trace before importing the application; both at once would only slow each other down.
"""
_ANSWER_S = 0.3
_LOOK_S = 0.02


class Beginning:
    """A WSGI application that delegates to the application that `make` returns, once a thread has made it.

    Until then a browser gets a page that waits, and other requests wait. Unauthorized requests are refused at once.
    """

    def __init__(self, library: Library, make: Callable[[], flask.Flask], *, base: str, token: str) -> None:
        self._library = library
        self._base = base
        self._token = token
        self._whole: Future[flask.Flask] = Future()
        self._page = _page(base)
        self._early = flask.Flask(__name__, static_folder=None)
        security.guard(self._early, token=token, base=base)
        self._early.add_url_rule(_PATH, "tell", self._tell)
        self._early.add_url_rule("/", "show", self._show)
        self._early.add_url_rule("/<path:path>", "show", self._show)
        threading.Thread(target=self._begin, args=(make,), name="overlapscope-beginning", daemon=True).start()

    def __call__(self, environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        request = Request(environ)
        early = request.path == _PATH or not (self._whole.done() or self._waits(request))
        return (self._early if early else self._whole.result()).wsgi_app(environ, start)

    def _waits(self, request: Request) -> bool:
        """Return whether a request has to wait, unlike a browser's for a page, which `Sec-Fetch-Dest` reveals."""
        shown = request.headers.get("Sec-Fetch-Dest") in ("document", "iframe")
        return not shown and security.refusal(request, self._token) is None

    def _begin(self, make: Callable[[], flask.Flask]) -> None:
        for entry in self._library.entries()[:1]:
            with suppress(OverlapscopeError):
                self._library.get(entry.id, _VERDICT_FIRST_S)
        try:
            self._whole.set_result(make())
        except BaseException as error:
            self._whole.set_exception(error)

    def _show(self, path: str = "") -> flask.Response:
        answer = flask.Response(self._page, content_type="text/html; charset=utf-8")
        answer.headers["Cache-Control"] = "no-store"
        return answer

    def _tell(self) -> dict[str, Any]:
        """Answer when something is new, or after a moment."""
        asked = flask.request.args
        url = url_of(self._library, self._base, asked.get("path"), asked.get("search"))
        until = time.monotonic() + _ANSWER_S
        # Other pages show no verdict, so an immediate answer would only be asked for again.
        speaks = url.page == FIRST_PAGE and asked.get("known") != "true"
        while not self._whole.done() and time.monotonic() < until:
            if speaks and self._library.opened(url.trace) is not None:
                break
            time.sleep(_LOOK_S)
        context = PageContext.at(url, self._library)
        verdict = None
        if speaks and context.trace is not None:
            judgement = judge(context.section)
            verdict = {
                name: getattr(judgement, name) for name in ("level", "subject", "lead", "why", "remedy", "notes")
            }
        return {"done": self._whole.done(), "stage": self._stage(context), "verdict": verdict}

    def _stage(self, context: PageContext) -> str:
        id = context.url.trace
        if id is None or context.trace is not None or self._library.entry(id) is None:
            return "Preparing the page…"
        state = self._library.loading(id)
        done = "" if state.part is None else f" {state.part:.0%}"
        return f"{clean(id, 100)}: {state.stage}{done}"


def _page(base: str) -> str:
    text = (resources.files("overlapscope.dashboard") / "beginning.html").read_text("utf-8")
    for name, dark in (("COLORS_LIGHT", False), ("COLORS_DARK", True)):
        colors = palette(dark)
        used = ("panel", "text", "muted", "grid", "good", "fair", "poor")
        text = text.replace(name, " ".join(f"--{color}: {colors[color]};" for color in used))
    address = msgspec.json.encode(f"{base.rstrip('/')}{_PATH}").decode()
    return text.replace("ADDRESS", address.replace("<", "\\u003c"))
