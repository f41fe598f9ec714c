"""The WSGI server: waitress, which needs no server in front of it on this machine.

Waitress closes connections that stay silent. A byte now and then keeps one open, so a dashboard that strangers can
reach belongs behind a proxy (`docs/guides/dashboard.md`).
"""

from __future__ import annotations

import copy
import functools
import hmac
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from importlib import resources
from types import FrameType
from typing import TYPE_CHECKING, Any

import flask
import msgspec
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser
from waitress.server import BaseWSGIServer, create_server
from werkzeug.wrappers import Request

from overlapscope.base.words import clean
from overlapscope.dashboard import security
from overlapscope.dashboard.context import FIRST_PAGE, PageContext, url_of
from overlapscope.dashboard.library import Library
from overlapscope.errors import OverlapscopeError, UsageError
from overlapscope.render.html import theme_css
from overlapscope.report.verdict import judge

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

DEFAULT_PORT = 8050
_THREADS = 16
"""Number of threads. A browser opens some six connections; ten browsers must not wait for each other."""
_HEAD_BYTES = 64 << 10
_LAST_S = 0.5
"""Seconds that the server, at its end, waits for answers in progress. An answer that waits for a trace may take
minutes."""
_ENDING_SIGNALS = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]

_CONNECTIONS = 128
"""Maximum number of connections. Each takes one or two file descriptors; some systems give a process 256."""
_SILENT_S = 60
"""Seconds without a byte after which a connection is closed."""

BodyBytes = Callable[[Request], int]
"""Returns the number of bytes that a request's body may have, 0 if the application will refuse the request. It gets the
head."""


class Listening:
    """A server that has its address; it answers once it is run."""

    def __init__(self, app: WSGIApplication, *, host: str, port: int | None, base: str, body_bytes: BodyBytes) -> None:
        """Bind to an address: port None means the usual port, or any free port if that is taken; 0 any free port.

        Raises:
            UsageError: The address is not available.
        """
        # Waitress warns of requests that wait on a busy machine or are cut off at the end, which need no action.
        logging.getLogger("waitress").setLevel(logging.ERROR)
        self.host, self.base = host, base

        # A proxy may pass the base path on or leave it out: both work.
        def serve(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
            return app(below(environ, base), start)

        self._server, sockets = _bound(serve, host, port)
        self.port = int(getattr(self._server, "effective_port", 0) or self._server.effective_listen[0][1])

        def allowed(head: dict[str, Any]) -> int:
            return body_bytes(Request(below(head, base)))

        dispatcher = self._server.task_dispatcher
        dispatcher.shutdown = functools.partial(dispatcher.shutdown, timeout=_LAST_S)
        for server in sockets.values():
            if isinstance(server, BaseWSGIServer):
                parser = staticmethod(functools.partial(_Parser, allowed, server.effective_port))
                server.channel_class = type("Channel", (HTTPChannel,), {"parser_class": parser})

    @property
    def url(self) -> str:
        """The address to open on this machine."""
        everywhere = self.host in ("0.0.0.0", "::")
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{'127.0.0.1' if everywhere else name}:{self.port}{self.base}"

    def run(self) -> None:
        """Answer until Ctrl-C, until asked to end, or until the terminal closes. For the main thread."""

        def stop(number: int, frame: FrameType | None) -> None:
            raise SystemExit

        # Ignored signals stay ignored: under nohup, the server outlives its terminal.
        before = {
            number: signal.getsignal(number) for number in _ENDING_SIGNALS if signal.getsignal(number) != signal.SIG_IGN
        }
        for ending in before:
            signal.signal(ending, stop)
        try:
            # Waitress ends on either exception and doesn't raise it again.
            self._server.run()
        finally:
            for ending, handler in before.items():
                signal.signal(ending, handler)

    def run_aside(self) -> None:
        """Answer in a thread until the process ends."""
        threading.Thread(target=self._server.run, name="overlapscope-server", daemon=True).start()


def _bound(app: WSGIApplication, host: str, port: int | None) -> tuple[Any, dict[int, Any]]:
    """Return waitress's server of an address (`Listening`), and its sockets."""
    if port is None:
        with suppress(UsageError):
            return _bound(app, host, DEFAULT_PORT)
    sockets: dict[int, Any] = {}
    try:
        server = create_server(
            app,
            map=sockets,
            host=host,
            port=port or 0,
            threads=_THREADS,
            max_request_header_size=_HEAD_BYTES,
            # An answer that is read slowly waits on the disk, not in a thread.
            outbuf_high_watermark=sys.maxsize,
            connection_limit=_CONNECTIONS,
            channel_timeout=_SILENT_S,
            asyncore_use_poll=True,
            ident=None,
        )
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"port {port} of {host} cannot be had ({reason}); choose another with --port.") from None
    except ValueError:
        # Waitress raises this for a name that cannot be resolved.
        raise UsageError(f"{host}: is no address of this machine; choose another with --host.") from None
    return server, sockets


def below(environ: dict[str, Any], base: str) -> dict[str, Any]:
    """Return a request's environment with the base path, if present, moved from its path to `SCRIPT_NAME`."""
    path = environ.get("PATH_INFO", "")
    # Compare in constant time, because the path may be a secret.
    if not hmac.compare_digest(f"{path}/"[: len(base)].encode(), base.encode()):
        return environ
    return environ | {"SCRIPT_NAME": base.rstrip("/"), "PATH_INFO": f"/{path[len(base) :]}"}


class _Parser(HTTPRequestParser):  # type: ignore[misc]
    """A parser that reads a body only as far as the head allows.

    Waitress stores the whole body before it asks the application, so that strangers could fill the disk.
    """

    adj: Any
    body_rcv: Any

    def __init__(self, allowed: Callable[[dict[str, Any]], int], port: int, adj: Any) -> None:
        super().__init__(adj)
        self._allowed = allowed
        self._port = port

    def parse_header(self, header_plus: bytes) -> None:
        """Parse the head, then decide how much of a body may follow."""
        super().parse_header(header_plus)
        head = {f"HTTP_{name}": value for name, value in self.headers.items()}
        head |= {"REQUEST_METHOD": self.command, "PATH_INFO": self.path, "SERVER_PORT": str(self._port)}
        bytes_allowed = self._allowed(head)
        if bytes_allowed:
            self.adj = copy.copy(self.adj)
            self.adj.max_request_body_size = bytes_allowed
        elif self.body_rcv is not None:
            # Ignore everything after the head, above all another request: the answer closes the connection.
            self.body_rcv, self.content_length, self.expect_continue = None, 0, False
            self.headers["CONNECTION"] = "close"


# -- Answers while the application is being imported -----------------------------------------------

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
        parameters = flask.request.args
        url = url_of(self._library, self._base, parameters.get("path"), parameters.get("search"))
        until = time.monotonic() + _ANSWER_S
        # Other pages show no verdict, so an immediate answer would only be asked for again.
        shows_verdict = url.page == FIRST_PAGE and parameters.get("known") != "true"
        while not self._whole.done() and time.monotonic() < until:
            if shows_verdict and self._library.opened(url.trace) is not None:
                break
            time.sleep(_LOOK_S)
        context = PageContext.at(url, self._library)
        verdict = None
        if shows_verdict and context.trace is not None:
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
    address = msgspec.json.encode(f"{base.rstrip('/')}{_PATH}").decode()
    return text.replace("COLORS", theme_css()).replace("ADDRESS", address.replace("<", "\\u003c"))
