"""Bytes of a trace file, unpacked if it is gzip or zstd, in blocks of bounded size.

A pipe can be read only once and in order, so its content is first copied to a file. This module also recognizes the
files that overlapscope itself writes.
"""

from __future__ import annotations

import atexit
import os
import re
import stat
import sys
import tempfile
import zlib
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, Literal, get_args

from overlapscope.base import disk
from overlapscope.base.words import size
from overlapscope.base.zstd import module
from overlapscope.errors import UnreadableTrace
from overlapscope.reading import _nsys_export

BLOCK_BYTES = 1 << 21
"""Unpacked bytes of a block. Half a megabyte stays in a core's cache while it is decoded; blocks of 8 MB take almost
twice the time."""

LIMIT_BYTES = 8 << 30
"""Default maximum of unpacked bytes to read of one file.

It limits memory too. An event becomes 36 bytes of columns (84 for a GPU op, whose shortest text is as long), and a real
event is some 300 bytes of text. So a file takes a tenth of its size in memory, and a hostile file about all of it.
"""

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
SQLITE = b"SQLite format 3\x00"
_FOREIGN = {
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"BZh": "packed with bzip2: unpack it first",
    b"\xfd7zXZ\x00": "packed with xz: unpack it first",
    b"\x80\x02": "a Python pickle: pass a Chrome trace of torch.profiler (`export_chrome_trace`)",
    b"\xff\xfe": "UTF-16 text: save it as UTF-8",
    b"\xfe\xff": "UTF-16 text: save it as UTF-8",
}


class SourceFile:
    """A trace file being read.

    Iterating yields its unpacked bytes. A packed stream that ends early or turns invalid ends the iteration and sets
    `broken`, so that the bytes before are not lost.
    """

    def __init__(self, path: Path, *, limit_bytes: int = LIMIT_BYTES) -> None:
        """Open a file.

        Raises:
            UnreadableTrace: The file is missing, empty, a directory, not readable, or of a foreign format.
        """
        self.path = path
        self.limit_bytes = limit_bytes
        self.packed_bytes_read = 0
        """Bytes read from disk so far; in a plain file, the current position."""
        self.broken: str | None = None
        """Reason why the packed stream ended too early; None if it did not."""
        self.unpacked_bytes = 0
        """Unpacked bytes read so far."""
        self._skip_to: int | None = None
        self._descriptor = -1
        try:
            self._place = place(path, limit_bytes)
            self.packed_bytes = self._place.stat().st_size
            with self._place.open("rb") as file:
                self._head = file.read(16)
        except OSError as error:
            raise self._unreadable(error) from None
        if not self._head:
            raise UnreadableTrace(path, "the file is empty; record the trace again.")
        for magic, what in _FOREIGN.items():
            if self._head.startswith(magic):
                raise UnreadableTrace(path, f"this is {what}.")

    def __iter__(self) -> Generator[bytes, None, None]:
        """Yield blocks of about BLOCK_BYTES at most.

        Raises:
            UnreadableTrace: The content exceeds the limit.
        """
        for block in self._blocks():
            self.unpacked_bytes += len(block)
            if self.unpacked_bytes > self.limit_bytes:
                raise UnreadableTrace(
                    self.path,
                    f"holds more than {size(self.limit_bytes)} when unpacked; "
                    f"raise --max-size if the trace really is that large.",
                )
            yield block

    def _blocks(self) -> Iterator[bytes]:
        try:
            with self._place.open("rb") as file:
                if self._head.startswith(_GZIP):
                    yield from self._gzip(file)
                elif self._head.startswith(_ZSTD):
                    yield from self._zstd(file)
                else:
                    yield from self._plain(file)
        except OSError as error:
            raise self._unreadable(error) from None

    @property
    def plain(self) -> bool:
        """True if the file is not packed, so that any place in it can be read at once."""
        return not self._head.startswith((_GZIP, _ZSTD))

    def stretch(self, begin: int, end: int) -> Iterator[bytes]:
        """Yield the blocks of a plain file between two places, once its first block has been read.

        Any thread may call this for any stretch, without effect on the position in the file.
        """
        try:
            while begin < end and (block := os.pread(self._descriptor, min(BLOCK_BYTES, end - begin), begin)):
                begin += len(block)
                yield block
        except OSError as error:
            raise self._unreadable(error) from None

    def skip_to(self, place: int) -> None:
        """Move the position in a plain file forward to `place`."""
        self.unpacked_bytes += place - self.packed_bytes_read
        self._skip_to = self.packed_bytes_read = place

    def _plain(self, file: BinaryIO) -> Iterator[bytes]:
        self._descriptor = file.fileno()
        while block := self._read(file):
            yield block
            if self._skip_to is not None:
                file.seek(self._skip_to)
                self._skip_to = None

    def _read(self, file: BinaryIO) -> bytes:
        data = file.read(BLOCK_BYTES)
        self.packed_bytes_read += len(data)
        return data

    def _gzip(self, file: BinaryIO) -> Iterator[bytes]:
        unpack = zlib.decompressobj(31)
        packed = self._read(file)
        while packed:
            before = unpack.copy()
            try:
                block = unpack.decompress(packed, BLOCK_BYTES)
            except zlib.error as error:
                yield from _salvage(before, packed)
                self.broken = f"invalid gzip data ({error})"
                return
            if block:
                yield block
            packed = unpack.unconsumed_tail
            if unpack.eof:
                # Several members may follow one another. Other bytes after the last member are padding.
                rest = unpack.unused_data or self._read(file)
                if not rest or not rest.startswith(_GZIP[: len(rest)]):
                    return
                unpack, packed = zlib.decompressobj(31), rest
            packed = packed or self._read(file)
        yield from _nonempty(unpack.flush())
        if not unpack.eof:
            self.broken = "the gzip stream ends early"

    def _zstd(self, file: BinaryIO) -> Iterator[bytes]:
        decompressor, zstd_error = _zstd_classes(self.path)
        unpack = decompressor()
        packed = self._read(file)
        while True:
            try:
                block = unpack.decompress(packed, BLOCK_BYTES)
            except zstd_error as error:
                self.broken = f"invalid zstd data ({error})"
                return
            yield from _nonempty(block)
            if unpack.eof:
                packed = unpack.unused_data or self._read(file)
                if not packed.startswith(_ZSTD[: len(packed)]) or not packed:
                    return
                unpack = decompressor()
            elif unpack.needs_input:
                packed = self._read(file)
                if not packed:
                    self.broken = "the zstd stream ends early"
                    return
            else:
                packed = b""

    def _unreadable(self, error: OSError) -> UnreadableTrace:
        path = self.path
        match error:
            case FileNotFoundError():
                return UnreadableTrace(path, "the file does not exist; check the path.")
            case IsADirectoryError():
                return UnreadableTrace(path, "is a directory; name a trace file in it.")
            case PermissionError():
                return UnreadableTrace(path, "is not readable; check its permissions.")
        return UnreadableTrace(path, f"cannot be read ({error.strerror or error}); check the file.")


def _salvage(unpack: Any, packed: bytes) -> Iterator[bytes]:
    """Yield the bytes before an error, from small pieces, because zlib returns nothing from a call that fails."""
    try:
        while packed:
            yield from _nonempty(unpack.decompress(packed, 256))
            packed = unpack.unconsumed_tail
    except zlib.error:
        return


def _zstd_classes(path: Path) -> tuple[Any, type[Exception]]:
    try:
        zstd = module()
    except ImportError:
        raise UnreadableTrace(
            path, "is packed with zstd, which this Python cannot read; install backports.zstd or unpack the file."
        ) from None
    return zstd.ZstdDecompressor, zstd.ZstdError


def _nonempty(block: bytes) -> Iterator[bytes]:
    if block:
        yield block


# -- Pipes ---

STDIN = Path("<stdin>")
"""Name that stands for `-` in messages."""
_BLOCK_BYTES = 1 << 20

_copies: dict[Path, tuple[IO[bytes], str]] = {}
_exports: dict[Path, tempfile.TemporaryDirectory[str]] = {}
"""Copies of pipes by the path of the pipe. They are removed when the program ends."""


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


def place(path: Path, limit_bytes: int) -> Path:
    """Return the file with the bytes of a source.

    It is the source itself, the copy of a pipe, or the database exported from a report of Nsight Systems.

    Raises:
        UnreadableTrace: The bytes are missing, more than `limit_bytes`, or cannot be copied.
        OSError: The source cannot be opened.
    """
    if path.name.lower().endswith(_nsys_export.SUFFIX) and path.is_file():
        if path not in _exports:
            folder = tempfile.TemporaryDirectory(prefix="overlapscope-")
            _nsys_export.export(path, Path(folder.name) / "report.sqlite")
            _exports[path] = folder
        return Path(_exports[path].name) / "report.sqlite"
    if not is_pipe(path) and path not in _copies:
        is_empty = path.is_file() and not path.stat().st_size
        return _special(path, limit_bytes) if is_empty else path
    if path not in _copies:
        _copies[path] = _copied(path, limit_bytes)
    return Path(_copies[path][1])


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
    """Give an unnamed temporary file a name until the block ends; yield the path of any other file as it is.

    SQLite resolves the links of /proc itself, so it can't open a file that no directory has.
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
            and not block.startswith((_GZIP, _ZSTD, SQLITE, b"\n"))
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


# -- Names ---

_PART: Final = re.compile(r"(.+)@(\d{1,6})")
_RANK_IN_NAME: Final = re.compile(r"(?<![a-z])rank[_-]?(\d{1,7})(?!\d)", re.IGNORECASE)


def shown_source(source: str | Path) -> str:
    """Return a path as a report shows it. A file name need not be valid text, but a report must be."""
    return os.fsencode(source).decode("utf-8", "backslashreplace")


def file_and_part(path: Path) -> tuple[Path, int | None]:
    """Return the file that a path names, and the number of a recording in it for a name that ends in `@2`."""
    part = _PART.fullmatch(path.name)
    # Links are not resolved, because they may lead out of the readable directories.
    if part is None or os.path.lexists(path) or not disk.may_be_file(path.with_name(part[1])):
        return path, None
    return path.with_name(part[1]), int(part[2])


def rank_in_name(source: str) -> int | None:
    """Return the rank in a file's name; None where there is none."""
    ranks = _RANK_IN_NAME.findall(Path(source).name)
    return int(ranks[-1]) if ranks else None


# -- Files of overlapscope ---

Kind = Literal[
    "report",
    "diff",
    "whatif",
    "check",
    "baseline",
    "ranks",
    "calibration",
    "laboratory",
    "hta",
    "doctor",
    "trial",
    "query",
]

_HEAD_BYTES: Final = 256
_FIRST_MEMBER: Final = re.compile(rb'\s*\{\s*"(\w+)"\s*:\s*(?:"(\w+)")?')


def kind_of(path: Path, limit_bytes: int = LIMIT_BYTES) -> Kind | None:
    """Return the kind of a file that overlapscope wrote; None for other files and where the file cannot be opened.

    The kind comes first in the file. Older files without it are recognized by their shape: reports, reports of ranks,
    and baselines.
    """
    try:
        with place(path, limit_bytes).open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        # Reading the file as a trace reports the error.
        return None
    first = _FIRST_MEMBER.match(head)
    if first is None:
        return None
    match first[1]:
        case b"kind":
            named = (first[2] or b"").decode()
            return next((kind for kind in get_args(Kind) if kind == named), None)
        case b"schema_version":
            return "ranks" if b'"world_size"' in head.partition(b"[")[0] else "report"
        case b"devices":
            return "baseline"
    return None
