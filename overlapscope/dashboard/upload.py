"""A trace dropped into the page: streamed to disk within a limit, under a name that is safe."""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import IO

import flask
from werkzeug.wrappers import Request

from overlapscope.dashboard.library import Library
from overlapscope.words import clean, size

BLOCK_BYTES = 1 << 20

_PATH = "/api/upload"
_UNSAFE = re.compile(r"[^\w.()\[\]{}@+=, -]")
_LONGEST_NAME = 150
_NAMELESS = "trace.json"


class TooLarge(Exception):
    """More bytes than the limit allows."""


def register(server: flask.Flask, library: Library, limit_bytes: int) -> None:
    """Have `POST /api/upload?name=FILE` take a file of at most `limit_bytes` as its body and answer `{"id": ID}`.

    `GET` says the limit, so that a page need not send what will be refused. The files lie in a directory of their own,
    which goes when the server ends. Errors are `{"error": SENTENCE}`.
    """
    directory = Path(tempfile.mkdtemp(prefix="overlapscope-"))
    weakref.finalize(server, shutil.rmtree, directory, ignore_errors=True)

    @server.get(_PATH)
    def limit() -> flask.typing.ResponseReturnValue:
        return {"limit_bytes": limit_bytes}

    @server.post(_PATH)
    def upload() -> flask.typing.ResponseReturnValue:
        request = flask.request
        name = safe_name(request.args.get("name", ""))
        if (request.content_length or 0) > limit_bytes:
            return _too_large(name, limit_bytes)
        # The name says which file it is; where it lies is another matter.
        handle, place = tempfile.mkstemp(dir=directory, suffix=_ending(name))
        path = Path(place)
        try:
            with os.fdopen(handle, "wb") as file:
                received = _receive(request.stream, file, limit_bytes)
        except TooLarge:
            path.unlink(missing_ok=True)
            return _too_large(name, limit_bytes)
        except OSError as error:
            path.unlink(missing_ok=True)
            logging.getLogger(__name__).warning("%s: %s", name, error)
            return _refusal(
                507, f"{name}: could not be stored ({error.strerror or error}); make room and drop it again."
            )
        if not received:
            path.unlink(missing_ok=True)
            return _refusal(400, f"{name}: the file is empty; record the trace again.")
        return {"id": library.add(path, name)}


def is_upload(request: Request) -> bool:
    """Whether a request brings a file."""
    return request.method == "POST" and request.path.endswith(_PATH)


def safe_name(name: str) -> str:
    """A file name for people to read: the last part of a path, in harmless characters, with an end."""
    last = re.split(r"[/\\]", clean(name))[-1]
    kept = _UNSAFE.sub("_", last).strip(". ")
    if len(kept) > _LONGEST_NAME:
        ending = _ending(kept)
        kept = kept[: _LONGEST_NAME - len(ending)] + ending
    return kept or _NAMELESS


def _ending(name: str) -> str:
    found = re.search(r"\.json(\.gz|\.zst)?$", name)
    return found[0] if found else ""


def _receive(stream: IO[bytes], file: IO[bytes], limit_bytes: int) -> int:
    """Writes the stream to the file and counts its bytes. Raises TooLarge past the limit, whatever was announced."""
    count = 0
    while block := stream.read(BLOCK_BYTES):
        count += len(block)
        if count > limit_bytes:
            raise TooLarge
        file.write(block)
    return count


def _too_large(name: str, limit_bytes: int) -> flask.typing.ResponseReturnValue:
    return _refusal(413, f"{name}: is larger than {size(limit_bytes)}; start the dashboard with a larger --max-upload.")


def _refusal(status: int, sentence: str) -> flask.typing.ResponseReturnValue:
    return {"error": sentence}, status
