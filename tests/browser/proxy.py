"""A small reverse proxy that serves another server below a path, as JupyterHub and nginx do."""

from __future__ import annotations

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

_PER_CONNECTION = {"connection", "keep-alive", "transfer-encoding", "content-length"}


class Proxy:
    """Context that serves all pages of a server at another address as well, and yields that address.

    Paths outside the prefix are not found.
    """

    def __init__(self, port: int, prefix: str, *, keeps_prefix: bool, at: int = 0) -> None:
        """`keeps_prefix`: the server behind is asked with the prefix, as without a rewriting rule. `at`: the port."""

        class ReverseProxyHandler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                if not self.path.startswith(prefix):
                    self.send_error(404)
                    return
                path = self.path if keeps_prefix else "/" + self.path.removeprefix(prefix)
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                behind = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                behind.request(self.command, path, body=body or None, headers=dict(self.headers))
                response = behind.getresponse()
                content = response.read()
                behind.close()
                self.send_response(response.status)
                for name, value in response.getheaders():
                    if name.lower() not in _PER_CONNECTION:
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = answer  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", at), ReverseProxyHandler)
        self._server.daemon_threads = True
        self._address = f"http://127.0.0.1:{self._server.server_address[1]}{prefix}"

    def __enter__(self) -> str:
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self._address

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
