"""Files dropped onto the page, stored within a limit under safe names."""

from __future__ import annotations

import functools
import logging
import os
import re
import shutil
import stat
import sys
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

import flask
from werkzeug.wrappers import Request

from overlapscope.base.words import clean, size
from overlapscope.dashboard.library import Library

MAX_FILES = 1_000
BLOCK_BYTES = 1 << 20

_PATH = "/api/upload"
_UNSAFE = re.compile(r"[^\w.()\[\]{}@+=, -]")
_LONGEST_NAME = 150
_NAMELESS = "trace.json"


class DroppedFiles:
    """Files that were dropped onto a server's pages. Thread-safe."""

    def __init__(self, library: Library, limit_bytes: int) -> None:
        """`limit_bytes` is the maximum total size."""
        self._library = library
        self._limit_bytes = limit_bytes
        self._directory = own_directory()
        self._sizes: list[int] = []
        self._change = threading.Lock()

    @property
    def room_bytes(self) -> int:
        """Maximum size of the next file."""
        return self._limit_bytes - sum(self._sizes) if len(self._sizes) < MAX_FILES else 0

    def brings(self, request: Request) -> bool:
        """Return whether a request contains a file."""
        return request.method == "POST" and request.path == _PATH

    def register(self, server: flask.Flask) -> None:
        """Register the routes.

        `POST /api/upload?name=FILE` takes a file as its body and answers `{"id": ID}`. `GET` answers with the room that
        is left, so that a page need not send a file that is too large. Errors are `{"error": SENTENCE}`.
        """
        server.add_url_rule(_PATH, "upload-room", lambda: {"room_bytes": self.room_bytes}, methods=["GET"])
        server.add_url_rule(_PATH, "upload", self._upload, methods=["POST"])

    def _upload(self) -> flask.typing.ResponseReturnValue:
        name = safe_name(flask.request.args.get("name", ""))
        # The whole body has been received, whether or not its length was announced.
        length = flask.request.content_length
        if not length:
            return {"error": f"{name}: the file is empty; record the trace again."}, 400
        with self._change:
            if length > self.room_bytes:
                return {"error": f"{name}: {self._full()}"}, 413
            self._sizes.append(length)
        try:
            return {"id": self._library.add(self._stored(flask.request.stream, name), name)}
        except OSError as error:
            with self._change:
                self._sizes.remove(length)
            logging.getLogger(__name__).warning("%s: %s", name, error)
            reason = error.strerror or error
            return {"error": f"{name}: could not be stored ({reason}); make room and drop it again."}, 507

    def _stored(self, stream: IO[bytes], name: str) -> Path:
        """Store a stream in a file and return its path, which has nothing of its name. Raises OSError."""
        handle, place = tempfile.mkstemp(dir=self._directory, suffix=_ending(name))
        path = Path(place)
        try:
            with os.fdopen(handle, "wb") as file:
                shutil.copyfileobj(stream, file, BLOCK_BYTES)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return path

    def _full(self) -> str:
        if len(self._sizes) >= MAX_FILES:
            return f"{MAX_FILES:,} files were dropped already; start the dashboard anew."
        already_used = " that is left for dropped files" if self._sizes else ""
        return (
            f"is larger than the {size(self.room_bytes)}{already_used}; start the dashboard with a larger --max-upload."
        )


def safe_name(name: str) -> str:
    """Return a readable file name: the last part of a path in harmless characters, with its extension."""
    last = re.split(r"[/\\]", clean(name))[-1]
    kept = _UNSAFE.sub("_", last).strip(". ")
    if len(kept) > _LONGEST_NAME:
        ending = _ending(kept)
        kept = kept[: _LONGEST_NAME - len(ending)] + ending
    return kept or _NAMELESS


def _ending(name: str) -> str:
    match = re.search(r"(\.json(\.gz|\.zst)?|\.sqlite|\.xplane\.pb)$", name)
    return match[0] if match else ""


# -- The directory for files that a server needs while it runs -------------------------------------

_PREFIX = "overlapscope-dashboard-"


# It is private, and is deleted when the process ends. A killed process leaves its directory unlocked, and the next
# process deletes it.
@functools.cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    for abandoned in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if _is_mine(abandoned) and _locked(abandoned):
            shutil.rmtree(abandoned, ignore_errors=True)
    while True:
        directory = tempfile.TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True)
        # Another process that is starting may have deleted it as abandoned.
        if _locked(Path(directory.name)) and os.path.isdir(directory.name):
            return directory


def own_directory() -> Path:
    """Return this process's directory, created on first use. Raises OSError."""
    return Path(_directory().name)


def _is_mine(path: Path) -> bool:
    # On Windows, abandoned directories are deleted with the user's other temporary files.
    if sys.platform == "win32":
        return False
    with suppress(OSError):
        status = path.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return False


def _locked(directory: Path) -> bool:
    """Lock a directory until the process ends in any way; return False if another process has locked it."""
    if sys.platform == "win32":
        return True
    import fcntl

    with suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(handle)
            return False
        return True
    return False
