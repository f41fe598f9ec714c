"""Access control: as with Jupyter, requests need the server's token.

Every user of a machine can reach its loopback address, and so can every page that the browser shows, even under a name
of its own that resolves to this machine (DNS rebinding). None of them has the token. A browser that has shown it gets a
cookie; Sec-Fetch-Site and Origin reveal requests that another site's page makes.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import platform
import secrets
import zlib
from urllib.parse import urlencode

import flask
from itsdangerous import BadSignature, TimestampSigner
from werkzeug.wrappers import Request

from overlapscope.errors import UsageError

VARIABLE = "OVERLAPSCOPE_TOKEN"
"""Environment variable with the token to use. A command line, in contrast, is visible to every user of a machine."""
SHORTEST_TOKEN = 16

_HEADERS = {
    # Dash and Plotly put styles and small scripts into the page; nothing is ever loaded from elsewhere.
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-inline'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}
_NOTEBOOKS = " http://localhost:* http://127.0.0.1:* vscode-webview:"
_WEEK_S = 7 * 24 * 3600
_SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}


def own_token() -> str:
    """Return the token from the environment, or a new one.

    Raises:
        UsageError: The token from the environment is short enough to be guessed.
    """
    user_token = os.environ.get(VARIABLE, "")
    if user_token and len(user_token) < SHORTEST_TOKEN:
        raise UsageError(
            f"{VARIABLE} has {len(user_token)} characters, which can be guessed; give it {SHORTEST_TOKEN} or more, or "
            "leave it out: then a token is made up."
        )
    return user_token or secrets.token_urlsafe(24)


def refusal(request: Request, token: str) -> tuple[int, str] | None:
    """Return the status and the reason if a request must be refused."""
    # A link may lead here from anywhere, and a notebook's page shows this one in a frame.
    navigates = request.method in _SAFE_METHODS and request.headers.get("Sec-Fetch-Mode") in (None, "navigate")
    if not navigates and not _same_origin(request):
        return 403, "This request comes from another site's page."
    if not _knows(request, token):
        return 401, "A token is needed: open the address that the server printed when it started."
    return None


def guard(server: flask.Flask, *, token: str, base: str) -> None:
    """Check every request (`refusal`), and add headers to every answer that keep the page to itself.

    If the token is the base path, the page is in a frame of a notebook, which may belong to another site than the
    notebook. Browsers keep no cookies there.
    """
    framed = base.strip("/") == token
    policy = _HEADERS["Content-Security-Policy"] + (_NOTEBOOKS if framed else "")

    @server.before_request
    def check() -> flask.typing.ResponseReturnValue | None:
        request = flask.request
        if any(ord(character) < ord(" ") or character == "\x7f" for character in request.path):
            return _refused(400, "The path holds control characters.")
        refused = refusal(request, token)
        if refused is not None and refused[0] != 401:
            return _refused(*refused)
        sent_token = request.args.get("token")
        if sent_token is not None and _equal(sent_token, token):
            # Redirect, so that the address with the token doesn't stay in the browser's history.
            rest = urlencode([pair for pair in request.args.items(multi=True) if pair[0] != "token"])
            answer = flask.redirect(f"{base.rstrip('/')}{request.path}{'?' if rest else ''}{rest}")
            answer.headers["Cache-Control"] = "no-store"
            # Not "Strict": a browser would then send no cookie when it follows a link from elsewhere to a page here.
            cookie = _signer(request, token).sign(b"in").decode()
            answer.set_cookie(_cookie(request), cookie, max_age=_WEEK_S, httponly=True, samesite="Lax", path=base)
            return answer
        return None if refused is None else _refused(*refused)

    @server.after_request
    def add_headers(response: flask.Response) -> flask.Response:
        for name, value in (_HEADERS | {"Content-Security-Policy": policy}).items():
            response.headers.setdefault(name, value)
        return response


def _knows(request: Request, token: str) -> bool:
    scheme, _, sent = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() in ("token", "bearer") and _equal(sent.strip(), token):
        return True
    if _equal(request.root_path.strip("/"), token):
        return True
    try:
        _signer(request, token).unsign(request.cookies.get(_cookie(request), ""), max_age=_WEEK_S)
    except BadSignature:
        return False
    return True


def _port(request: Request) -> str:
    """Return the port that the server listens on."""
    return str(request.environ.get("SERVER_PORT", ""))


def _signer(request: Request, token: str) -> TimestampSigner:
    """Return the signer of the cookie.

    Browsers send the cookies of a host name to all its ports. So the cookie doesn't contain the token, and is not valid
    for a server on another port, even with the same token.
    """
    salt = f"overlapscope dashboard, port {_port(request)}"
    return TimestampSigner(token, salt, key_derivation="hmac", digest_method=hashlib.sha256)


def _cookie(request: Request) -> str:
    """Return the cookie's name.

    Servers of two machines may be forwarded to the same name. The next server on this port replaces this server's
    cookie, so that a browser doesn't collect them.
    """
    return f"overlapscope-{zlib.crc32(platform.node().encode()):08x}-{_port(request)}"


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
