"""What comes through a pipe can be read once and in order only, so it is copied to a file before it is judged."""

from __future__ import annotations

import atexit
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, BinaryIO

from overlapscope.errors import UnreadableTrace

STDIN = Path("<stdin>")
"""What `-` stands for, by the name that it is shown by."""
_BLOCK_BYTES = 1 << 20
_PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd")

_copies: dict[Path, IO[bytes]] = {}
"""By the path that was named; each is removed when the program ends."""


def named(source: str | Path) -> Path:
    """The path that a user names; `-` is standard input."""
    return STDIN if str(source) == "-" and not isinstance(source, Path) else Path(source)


def is_pipe(path: Path) -> bool:
    """Whether it can be read only once. A missing file is none."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return path == STDIN
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def place(path: Path, limit_bytes: int) -> Path:
    """Where the bytes of a source lie: the file itself, or a copy of all that came through the pipe of that name.

    Raises UnreadableTrace where that is nothing, over `limit_bytes`, or cannot be kept; OSError where it cannot be
    opened.
    """
    if not is_pipe(path):
        return path
    if path not in _copies:
        _copies[path] = _copied(path, limit_bytes)
    return Path(_copies[path].name)


def _copied(path: Path, limit_bytes: int) -> IO[bytes]:
    with ExitStack() as opened:
        if path == STDIN and sys.stdin is None:
            raise UnreadableTrace(f"{path}: is closed; pipe a trace into it.")
        source = sys.stdin.buffer if path == STDIN else opened.enter_context(path.open("rb"))
        if source.isatty():
            raise UnreadableTrace(
                f"{path}: is a terminal; pipe a trace into it, as in `zcat trace.json.gz | overlapscope analyze -`."
            )
        try:
            copy = tempfile.NamedTemporaryFile(prefix="overlapscope-", suffix=".trace")  # noqa: SIM115
            atexit.register(copy.close)
            for block in _blocks(path, source, limit_bytes):
                copy.write(block)
            copy.flush()
        except OSError as error:
            raise UnreadableTrace(
                f"{path}: cannot be kept in a temporary file while it is read ({error.strerror or error}); "
                "write it to a file and name that."
            ) from None
    if not os.path.getsize(copy.name):
        raise UnreadableTrace(
            f"{path}: nothing came through the pipe; see whether the command that writes to it failed."
        )
    return copy


def _blocks(path: Path, source: BinaryIO, limit_bytes: int) -> Iterator[bytes]:
    """All that is worth copying: of what begins like no trace, its beginning says so."""
    done = 0
    while block := source.read(_BLOCK_BYTES):
        yield block
        if (
            not done
            and not block.startswith(_PACKED)
            and block.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] not in (b"{", b"[", b"")
        ):
            return
        done += len(block)
        if done > limit_bytes:
            raise UnreadableTrace(
                f"{path}: more than {limit_bytes:,} bytes came through the pipe; raise --max-size if the trace really "
                "is that large."
            )
