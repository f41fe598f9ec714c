"""Sources that cannot be read in place, such as pipes, which are first copied to a file."""

from __future__ import annotations

import atexit
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from overlapscope.base import disk
from overlapscope.base.registry import load
from overlapscope.base.words import listed, plural
from overlapscope.errors import UnreadableTrace
from overlapscope.plugin import TraceSource, sources
from overlapscope.reading._formats import GZIP, SQLITE, ZSTD
from overlapscope.reading.file_names import file_and_part

STDIN = Path("<stdin>")
"""Name that stands for `-` in messages."""
_BLOCK_BYTES = 1 << 20
_UNPACKED = "unpacked"

_copies: dict[Path, tuple[IO[bytes], str]] = {}
"""Copies of pipes by the path of the pipe. They are removed when the program ends."""
_unpacked: dict[Path, tempfile.TemporaryDirectory[str]] = {}
"""Folders with the files that sources unpacked, by the path of the packed file. They are removed too."""


def named(source: str | Path) -> Path:
    """Return the path that a user names; `-` is standard input."""
    return STDIN if str(source) == "-" and not isinstance(source, Path) else Path(source)


def is_pipe(path: Path) -> bool:
    """Return whether a path can be read only once; False for a missing file."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return path == STDIN
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def chosen_part(path: Path, count: int) -> int:
    """Return which of the processes in a file a path names; 0 where there is only one, or none.

    Raises:
        UnreadableTrace: It names none of several, or one that the file doesn't have.
    """
    file, part = file_and_part(path)
    if part is None and count > 1:
        what = listed([f"{path}@{number}" for number in range(count)], 8)
        what = "write it to a file, and name that" if is_pipe(file) else f"name one of {what}"
        raise UnreadableTrace(path, f"holds {count} processes; {what}.")
    if part is not None and part >= max(count, 1):
        raise UnreadableTrace(path, f"{file.name} has {plural(count, 'process')}, counted from 0.")
    return part or 0


def place(path: Path, limit_bytes: int) -> Path:
    """Return the file with the bytes of a source.

    It is the source itself, the copy of a pipe, or the file that its source unpacks.

    Raises:
        UnreadableTrace: The bytes are missing, more than `limit_bytes`, or cannot be copied.
        OSError: The source cannot be opened.
    """
    unpack = next((source.unpack for source in sources() if _is_packed(path, source)), None)
    if unpack is not None and path.is_file():
        if path not in _unpacked:
            folder = tempfile.TemporaryDirectory(prefix="overlapscope-")
            load(unpack)(path, Path(folder.name) / _UNPACKED)
            _unpacked[path] = folder
        return Path(_unpacked[path].name) / _UNPACKED
    if not is_pipe(path) and path not in _copies:
        is_empty = path.is_file() and not path.stat().st_size
        return _special(path, limit_bytes) if is_empty else path
    if path not in _copies:
        _copies[path] = _copied(path, limit_bytes)
    return Path(_copies[path][1])


def _is_packed(path: Path, source: TraceSource) -> bool:
    return bool(source.packed) and path.name.lower().endswith(source.packed)


def _special(path: Path, limit_bytes: int) -> Path:
    """Return where the content of a file without a size lies.

    Files of /proc have none, whatever is in them, and reading some of them waits for data. An empty file stays where
    it is: somebody may be about to write it.
    """
    with disk.open_source(path) as file:
        if file.read(1) == b"":
            return path
    copy = _copied(path, limit_bytes)
    if path.stat().st_size:
        copy[0].close()
        return path
    _copies[path] = copy
    return Path(copy[1])


def _copied(path: Path, limit_bytes: int) -> tuple[IO[bytes], str]:
    with ExitStack() as opened:
        if path == STDIN and sys.stdin is None:
            raise UnreadableTrace(path, "is closed; pipe a trace into it.")
        source: IO[bytes] = sys.stdin.buffer if path == STDIN else opened.enter_context(disk.open_source(path))
        if disk.is_device(source):
            raise UnreadableTrace(path, "is a device and has no trace in it; name a file.")
        if source.isatty():
            raise UnreadableTrace(
                path, "is a terminal; pipe a trace into it, as in `zcat trace.json.gz | overlapscope analyze -`."
            )
        try:
            copy, name = _unnamed_file()
            atexit.register(copy.close)
            for block in _blocks(path, source, limit_bytes):
                copy.write(block)
            copy.flush()
        except OSError as error:
            raise UnreadableTrace(
                path,
                f"cannot be stored in a temporary file ({error.strerror or error}); write it to a file and "
                "name that file.",
            ) from None
    if not os.path.getsize(name):
        raise UnreadableTrace(path, "the pipe was empty; check whether the command that writes to it failed.")
    return copy, name


def _unnamed_file() -> tuple[IO[bytes], str]:
    """Return a temporary file and a path to it.

    On Linux it is in no directory, so a killed process leaves nothing behind.
    """
    if sys.platform == "linux":
        # Some file systems, and systems without /proc, can't do this. Python's TemporaryFile can't be named later.
        with suppress(OSError):
            descriptor = os.open(tempfile.gettempdir(), os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
            path = f"/proc/{os.getpid()}/fd/{descriptor}"
            unnamed = open(descriptor, "w+b")  # noqa: SIM115
            if os.path.exists(path):
                return unnamed, path
            unnamed.close()
    named = tempfile.NamedTemporaryFile(prefix="overlapscope-", suffix=".trace")  # noqa: SIM115
    return named, named.name


@contextmanager
def named_in_directory(path: Path) -> Iterator[Path]:
    """Give an unnamed temporary file a name until the block ends.

    SQLite resolves the links of /proc itself, so it can't open a file that no directory has.

    Yields:
        The path with that name; the path of any other file as it is.
    """
    if not (path.is_symlink() and path.parent.name == "fd" and path.is_relative_to("/proc")):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="overlapscope-") as folder:
        name = Path(folder) / "trace"
        # Without a directory's descriptor, Python calls link(), which would link the link.
        os.link(path, name, src_dir_fd=0)
        yield name


def _blocks(path: Path, source: IO[bytes], limit_bytes: int) -> Iterator[bytes]:
    """Yield the content of a pipe; only the beginning if it shows that this is not a trace."""
    done = 0
    while block := source.read(_BLOCK_BYTES):
        yield block
        if (
            not done
            # The first field of a protocol buffer may look like a line break.
            and not block.startswith((GZIP, ZSTD, SQLITE, b"\n"))
            and block.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] not in (b"{", b"[", b"")
        ):
            return
        done += len(block)
        if done > limit_bytes:
            raise UnreadableTrace(
                path,
                f"more than {limit_bytes:,} bytes came through the pipe; raise --max-size if the trace really "
                "is that large.",
            )
    if block is None:
        raise UnreadableTrace(path, f"cannot be read ({disk.WAITS}); name a file.")
