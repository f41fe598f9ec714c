"""Streams of this process, which may be closed, full, or of any width that the environment states, and descriptors."""

from __future__ import annotations

import fcntl
import os
import resource
import sys
from contextlib import suppress
from typing import NoReturn, TextIO

from overlapscope.base.words import clean
from overlapscope.errors import UsageError

MIN_WIDTH, MAX_WIDTH = 40, 500
"""Limits in columns: a narrower layout would be unreadable, and a wider layout too long to read."""


def tell(sentence: str) -> None:
    """Print a message for the user on stderr, if it is open."""
    # GitHub's runner takes `##[` for a command wherever it stands in a line.
    show(clean(sentence).replace("##[", r"##\["), sys.stderr)


def show(text: str, stream: TextIO | None) -> None:
    """Write lines to a stream, and stop using the stream after an error."""
    if stream is None:
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        stream.write(f"{text}\n".encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except (OSError, ValueError):
        _forget(stream)


def write_output(data: bytes = b"") -> None:
    """Write to stdout, after all output written to it before.

    After an error, nothing is written to it at exit.

    Raises:
        BrokenPipeError: The reader has gone.
        UsageError: Stdout cannot be written for another reason.
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
            # A replaced stdout, as in a notebook, takes only text.
            stream.write(data.decode("utf-8", "replace"))
        else:
            buffer.write(data)
            buffer.flush()
    except BrokenPipeError:
        _forget(stream)
        raise
    except (OSError, ValueError) as error:
        _forget(stream)
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"the output cannot be written ({reason}); send it elsewhere.") from None


def occupy_closed_streams() -> None:
    """Occupy the number of a closed standard stream, so that no other file gets it and receives the stream's output.

    Reading and writing such a number still fails.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            with suppress(OSError):
                os.open(os.devnull, os.O_WRONLY if number == 0 else os.O_RDONLY)


def discard_unwritable_output() -> None:
    """Discard any output that Python would fail to write at exit, which would change the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            _forget(stream)


def leave(exit_code: int) -> NoReturn:
    """End this process as Python does, but free no objects."""
    import atexit
    import threading

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        # A program may replace them by anything.
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(exit_code & 0xFF)


def bounded_width(width: int) -> int:
    """Return a width within the limits."""
    return min(max(width, MIN_WIDTH), MAX_WIDTH)


def columns() -> int:
    """Return the width of the terminal, or the width that COLUMNS states, within the limits."""
    stated = environment().get("COLUMNS")
    if stated:
        return int(stated)
    try:
        return bounded_width(os.get_terminal_size(1).columns)
    except OSError:
        return 80


def environment() -> dict[str, str]:
    """Return the environment for rich, with COLUMNS and LINES within the limits: rich itself accepts any number."""
    sizes = {name: os.environ.get(name, "") for name in ("COLUMNS", "LINES")}
    rest = {name: value for name, value in os.environ.items() if name not in sizes}
    usable = {name: value for name, value in sizes.items() if value.isascii() and value.isdecimal() and len(value) < 9}
    return rest | {name: str(bounded_width(int(value))) for name, value in usable.items() if int(value)}


def _forget(stream: TextIO) -> None:
    with suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)


# -- Descriptors that we keep open in the user's program, which may close any and use their numbers itself

_MAX_DESCRIPTOR = 1024
_ROOM_FOR_DESCRIPTORS = 64


class Descriptor:
    """A file descriptor with a high number: the program's files have the numbers that they have without us."""

    def __init__(self, descriptor: int) -> None:
        """Take over a descriptor, whose number is free afterwards."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = max(
            descriptor,
            (_MAX_DESCRIPTOR if soft == resource.RLIM_INFINITY else min(soft, _MAX_DESCRIPTOR)) - _ROOM_FOR_DESCRIPTORS,
        )
        try:
            self._number = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, lowest)
            os.close(descriptor)
        except OSError:
            # There are too many open files.
            self._number = descriptor
        self._identity = _identity(self._number)

    @property
    def number(self) -> int | None:
        """Number of the descriptor; None once it is closed, by the program too, even if the number is in use again."""
        return self._number if self.is_same_as(self._number) else None

    def is_same_as(self, number: int) -> bool:
        """Return whether this is a descriptor of the same file, pipe or terminal."""
        return self._identity is not None and _identity(number) == self._identity

    def close(self) -> None:
        """Close it, unless the program has done that."""
        if self.number is not None:
            os.close(self._number)
        self._identity = None


def _identity(number: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(number)
    except OSError:
        return None
    return status.st_dev, status.st_ino
