"""A web server in this process that serves the files of a directory."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@contextmanager
def file_server(directory: Path) -> Iterator[str]:
    """Yield the URL of a server of the directory's files, without a slash at its end."""
    with FileServer(("127.0.0.1", 0), functools.partial(QuietFileHandler, directory=str(directory))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class FileServer(ThreadingHTTPServer):
    """A server that ignores broken connections."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing: a download that is given up breaks the connection."""


class QuietFileHandler(SimpleHTTPRequestHandler):
    """A handler without a log."""

    def log_message(self, format: str, *args: object) -> None:
        pass
