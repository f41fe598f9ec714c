"""Copies of sources that cannot be read in place, such as pipes, and names for unnamed files."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

from overlapscope.base import disk
from overlapscope.errors import UnreadableTrace
from overlapscope.reading.file_names import STDIN, is_pipe

_BLOCK_BYTES = 1 << 20


def copy_of(path: Path, limit_bytes: int, *, packed: tuple[bytes, ...]) -> Path:
    """Return the copy of a pipe, or of a file without a size; an empty file itself, since somebody may write it soon.

    Files of /proc have no size, whatever is in them, and reading some of them waits for data.

    Args:
        path: The source.
        limit_bytes: Maximum size of the copy.
        packed: First bytes of files that are copied whole; others must look like a trace.

    Raises:
        UnreadableTrace: The bytes are missing, more than `limit_bytes`, or cannot be copied.
        OSError: The source cannot be opened.
    """
    sized = not is_pipe(path)
    if sized:
        with disk.open_source(path) as file:
            if file.read(1) == b"":
                return path
    copy, name = _copied(path, limit_bytes, packed)
    if sized and path.stat().st_size:
        copy.close()
        return path
    return Path(name)


def _copied(path: Path, limit_bytes: int, packed: tuple[bytes, ...]) -> tuple[IO[bytes], str]:
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
            for block in _blocks(path, source, limit_bytes, packed):
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
    import tempfile

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
    import tempfile

    with tempfile.TemporaryDirectory(prefix="overlapscope-") as folder:
        name = Path(folder) / "trace"
        # Without a directory's descriptor, Python calls link(), which would link the link.
        os.link(path, name, src_dir_fd=0)
        yield name


def _blocks(path: Path, source: IO[bytes], limit_bytes: int, packed: tuple[bytes, ...]) -> Iterator[bytes]:
    """Yield the content of a pipe; only the beginning if it shows that this is not a trace."""
    done = 0
    while block := source.read(_BLOCK_BYTES):
        yield block
        if (
            not done
            # The first field of a protocol buffer may look like a line break.
            and not block.startswith((*packed, b"\n"))
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
