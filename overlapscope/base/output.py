"""The process's own streams, which may be closed, full, or as wide as a variable of the environment says."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO

from overlapscope.base.words import clean
from overlapscope.errors import UsageError

LEAST_WIDTH, MOST_WIDTH = 40, 500
"""Columns: what is laid out narrower says nothing any more, and nobody looks at what is wider."""


def tell(sentence: str) -> None:
    """Say something to the person, on stderr. Whether anybody listens changes nothing."""
    show(clean(sentence), sys.stderr)


def show(text: str, stream: TextIO | None) -> None:
    """Write lines to a stream, as far as it takes them."""
    if stream is None:
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        stream.write(f"{text}\n".encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except (OSError, ValueError):
        _forget(stream)


def write_output(data: bytes = b"") -> None:
    """Write to stdout, with all that was written to it before.

    Raises BrokenPipeError where its reader has gone, UsageError where it cannot be written otherwise; nothing is
    written to it at exit then.
    """
    stream = sys.stdout
    if stream is None:
        if data:
            raise UsageError("the output cannot be written, as stdout is closed; send it to a file.")
        return
    buffer = getattr(stream, "buffer", None)
    try:
        stream.flush()
        if buffer is None:
            # A replaced stdout, as of a notebook, takes text only.
            stream.write(data.decode("utf-8", "replace"))
        else:
            buffer.write(data)
            buffer.flush()
    except (OSError, ValueError) as error:
        _forget(stream)
        if isinstance(error, BrokenPipeError):
            raise
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"the output cannot be written ({reason}); send it elsewhere.") from None


def hold_places() -> None:
    """Give the number of a standard stream that is closed to no other file: what is meant for the stream would be
    written into that. Reading and writing such a number goes on to fail.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            with suppress(OSError):
                os.open(os.devnull, os.O_WRONLY if number == 0 else os.O_RDONLY)


def settle() -> None:
    """Nothing is left that Python would fail to write at exit, and change the exit code for."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            _forget(stream)


def bounded(width: int) -> int:
    """A width that something can be laid out in."""
    return min(max(width, LEAST_WIDTH), MOST_WIDTH)


def environment() -> dict[str, str]:
    """The variables for rich, which takes any COLUMNS and LINES for sizes."""
    sizes = {name: os.environ.get(name, "") for name in ("COLUMNS", "LINES")}
    rest = {name: value for name, value in os.environ.items() if name not in sizes}
    told = {name: value for name, value in sizes.items() if value.isascii() and value.isdecimal() and len(value) < 9}
    return rest | {name: str(bounded(int(value))) for name, value in told.items() if int(value)}


def _forget(stream: TextIO) -> None:
    with suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)
