"""Who may ask: the Host and Origin headers are checked, and a token where one is set, as Jupyter does.

On the loopback address a server is reachable by every page that the browser shows: one of another site could post to
it, or read from it under a name of its own that resolves to this machine (DNS rebinding). The Host header tells the
second, Sec-Fetch-Site and Origin the first.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from urllib.parse import urlencode, urlsplit

import flask
from werkzeug.wrappers import Request

_HEADERS = {
    # Dash and Plotly put styles and small scripts into the page; nothing is ever loaded from elsewhere.
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-inline'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; "
    # A notebook shows the page in a frame.
    "frame-ancestors 'self' http://localhost:* http://127.0.0.1:* vscode-webview:",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_WEEK_S = 7 * 24 * 3600
_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}


def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine alone."""
    if host.lower() == "localhost" or host.lower().endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def refusal(request: Request, token: str | None) -> tuple[int, str] | None:
    """Status and sentence where a request is not to be answered.

    Without a token only requests to a loopback name are answered.
    """
    name = _host_name(request.host)
    if token is None and not is_loopback(name):
        return 403, (
            f"This server answers to localhost, not to {name!r}. Behind a proxy, or under another name, start it "
            "with --token."
        )
    # A link may lead here from anywhere, and a notebook's page shows this one in a frame.
    navigates = request.method in _SAFE_METHODS and request.headers.get("Sec-Fetch-Mode") in (None, "navigate")
    if not navigates and not _same_origin(request):
        return 403, "This request comes from another site's page."
    if token is not None and not _knows(request, token):
        return 401, "A token is needed: open the address that the server printed when it started."
    return None


def _knows(request: Request, token: str) -> bool:
    scheme, _, sent = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() in ("token", "bearer") and _equal(sent.strip(), token):
        return True
    return _equal(request.cookies.get(_cookie(token), ""), token)


def _cookie(token: str) -> str:
    """The cookie's name. Browsers send a name's cookies to every port of it: each server has one of its own."""
    return f"overlapscope-{hashlib.sha256(token.encode()).hexdigest()[:12]}"


def guard(server: flask.Flask, *, token: str | None, base: str) -> None:
    """Have every request checked (`refusal`), and every answer carry the headers that keep the page to itself."""

    @server.before_request
    def check() -> flask.typing.ResponseReturnValue | None:
        request = flask.request
        refused = refusal(request, token)
        if refused is not None and refused[0] != 401:
            return _refused(*refused)
        asked = request.args.get("token")
        if token is not None and asked is not None and _equal(asked, token):
            rest = urlencode([pair for pair in request.args.items(multi=True) if pair[0] != "token"])
            answer = flask.redirect(f"{base.rstrip('/')}{request.path}{'?' if rest else ''}{rest}")
            answer.set_cookie(_cookie(token), token, max_age=_WEEK_S, httponly=True, samesite="Strict", path=base)
            return answer
        return None if refused is None else _refused(*refused)

    @server.after_request
    def add_headers(response: flask.Response) -> flask.Response:
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        return response


def _host_name(host: str) -> str:
    """A Host header without its port; empty where it makes no sense."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _same_origin(request: Request) -> bool:
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = request.headers.get("Origin")
    return origin is None or origin.partition("://")[2] == request.host


def _equal(sent: str, token: str) -> bool:
    return hmac.compare_digest(sent.encode("utf-8", "replace"), token.encode())


def _refused(status: int, sentence: str) -> flask.Response:
    return flask.Response(f"{sentence}\n", status, content_type="text/plain; charset=utf-8")
