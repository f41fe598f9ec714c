"""Who may ask: the Host and Origin headers are checked, and a token where one is set, as Jupyter does.

On the loopback address a server is reachable by every page that the browser shows: one of another site could post to
it, or read from it under a name of its own that resolves to this machine (DNS rebinding). The Host header tells the
second, Sec-Fetch-Site and Origin the first.
"""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import urlencode, urlsplit

import flask

_HEADERS = {
    # Dash and Plotly put styles and small scripts into the page; nothing is ever loaded from elsewhere.
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-inline'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; "
    # A notebook shows the page in a frame.
    "frame-ancestors 'self' http://localhost:* http://127.0.0.1:* vscode-webview:",
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


def guard(server: flask.Flask, *, token: str | None, base: str) -> None:
    """Have every request checked, and every answer carry the headers that keep the page to itself.

    Without a token only requests to a loopback name are answered.
    """
    cookie = "overlapscope-token"

    @server.before_request
    def check() -> flask.typing.ResponseReturnValue | None:
        request = flask.request
        if token is None and not is_loopback(_host_name(request.host)):
            name = _host_name(request.host)
            return _refused(
                403,
                f"This server answers to localhost, not to {name!r}. Behind a proxy, or under another name, start it "
                "with --token.",
            )
        if request.method not in _SAFE_METHODS and not _same_origin(request):
            return _refused(403, "This request comes from another site's page.")
        if token is None:
            return None
        asked = request.args.get("token")
        if asked is not None and _equal(asked, token):
            rest = urlencode([pair for pair in request.args.items(multi=True) if pair[0] != "token"])
            answer = flask.redirect(f"{base.rstrip('/')}{request.path}{'?' if rest else ''}{rest}")
            answer.set_cookie(cookie, token, max_age=_WEEK_S, httponly=True, samesite="Strict", path=base)
            return answer
        scheme, _, sent = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() in ("token", "bearer") and _equal(sent.strip(), token):
            return None
        if _equal(request.cookies.get(cookie, ""), token):
            return None
        return _refused(401, "A token is needed: open the address that the server printed when it started.")

    @server.after_request
    def add_headers(response: flask.Response) -> flask.Response:
        for name, value in _HEADERS.items():
            response.headers.setdefault(name, value)
        return response


def _host_name(host: str) -> str:
    """A Host header without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _same_origin(request: flask.Request) -> bool:
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = request.headers.get("Origin")
    return origin is None or urlsplit(origin).netloc == request.host


def _equal(sent: str, token: str) -> bool:
    return hmac.compare_digest(sent.encode("utf-8", "replace"), token.encode())


def _refused(status: int, sentence: str) -> flask.Response:
    return flask.Response(f"{sentence}\n", status, content_type="text/plain; charset=utf-8")
