"""Files of traces: where their bytes are, their formats, and their content in blocks of bounded size."""

from __future__ import annotations

import re
import zlib
from collections.abc import Generator, Iterator
from copy import copy
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from overlapscope.base.registry import load
from overlapscope.base.words import listed, plural, size
from overlapscope.errors import UnreadableTrace
from overlapscope.plugin import plugins, sources
from overlapscope.reading.file_names import file_and_part, is_pipe

if TYPE_CHECKING:
    import tempfile

# -- Formats by first bytes, and files of other programs, which hold nothing to read ---

GZIP: Final = b"\x1f\x8b"
ZSTD: Final = b"\x28\xb5\x2f\xfd"
SQLITE: Final = b"SQLite format 3\x00"

_EXPORT: Final = "pass a Chrome trace of torch.profiler (`export_chrome_trace`)"
_RECORD: Final = "record the program with torch.profiler, jax.profiler or `nsys profile`"

_FOREIGN: Final = {
    rb"\APK\x03\x04": "this is a zip archive: unpack it first",
    rb"\ABZh": "this is packed with bzip2: unpack it first",
    rb"\A\xfd7zXZ\x00": "this is packed with xz: unpack it first",
    rb"\A\x80[\x02-\x05]": f"this is a Python pickle, such as a snapshot of memory: {_EXPORT}",
    rb"\A(\xff\xfe|\xfe\xff)": "this is UTF-16 text: save it as UTF-8",
    rb"\Aversion https://git-lfs\.": "this is a Git LFS pointer, not the file: run `git lfs pull` in its repository",
    rb"(?i)\A\s*<(!doctype html|html)": "this is a web page: download the file itself, on GitHub by its raw link",
    rb'\A\s*\{\s*"schema_version"\s*:': "this was written by another version of overlapscope: write it again",
    rb'"pid"\s*:\s*"(CPU|CUDA) functions"': "this is an export of PyTorch's profiler without Kineto, which states "
    "neither streams nor launches: record with torch.profiler, in torch 1.8.1 or later",
    rb"speedscope\.app/": f"these are a sampler's stacks in speedscope's format, without GPU ops: {_EXPORT}",
    rb'"schema"\s*:\s*"[^"]*chakra': "this is PyTorch's execution trace (`ExecutionTraceObserver`), without times "
    f"of GPU ops: {_EXPORT}",
    rb'"(CudaEvent|NvtxEvent|TraceProcessEvent)"\s*:': "this is an export of Nsight Systems as JSON: export the "
    "report with `nsys export --type sqlite`",
    rb'("\d* ?CPU HIP API"|"rocprofiler-sdk-tool")': "this is a trace of rocprof, whose JSON is not read: record with "
    "torch.profiler, which also records AMD's GPUs",
    rb'"/job:[^"]* (Compute|Tensors)"': f"this is a timeline of TensorFlow's `Timeline`: {_RECORD}",
    rb'("Cr(Browser|Renderer|Gpu)Main"|devtools\.timeline)': f"this is a trace of a browser: {_EXPORT}",
    rb'("cat"\s*:\s*"FEE"|viztracer)': f"this is a trace of VizTracer, without GPU ops: {_RECORD}",
    rb'"cat"\s*:\s*"(Session|Node)"': f"this is a profile of ONNX Runtime: {_RECORD}",
}
"""Signs in the beginning of a file, in the order in which they are looked for, and what to say."""


def foreign(head: bytes) -> str | None:
    """Return a sentence on a file of another program, known by its first bytes; None for other files."""
    return next((f"{what}." for sign, what in _FOREIGN.items() if re.search(sign, head)), None)


# -- Places of sources, of which some are first copied to a file ---

_UNPACKED = "unpacked"

_copies: dict[Path, Path] = {}
"""Copies of pipes by the path of the pipe. They are removed when the program ends."""
_unpacked: dict[Path, tempfile.TemporaryDirectory[str]] = {}
"""Folders with the files that sources unpacked, by the path of the packed file. They are removed too."""


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
    name = path.name.lower()
    unpack = next((source.unpack for source in sources() if source.packed and name.endswith(source.packed)), None)
    if unpack is not None and path.is_file():
        if path not in _unpacked:
            import tempfile

            folder = tempfile.TemporaryDirectory(prefix="overlapscope-")
            load(unpack)(path, Path(folder.name) / _UNPACKED)
            _unpacked[path] = folder
        return Path(_unpacked[path].name) / _UNPACKED
    if path in _copies:
        return _copies[path]
    if not is_pipe(path) and (not path.is_file() or path.stat().st_size):
        return path
    # Few files are pipes.
    from overlapscope.reading.pipes import copy_of

    copy = copy_of(path, limit_bytes, packed=(GZIP, ZSTD, SQLITE))
    if copy != path:
        _copies[path] = copy
    return copy


# -- Content, unpacked if it is gzip or zstd ---

HEAD_BYTES = 1 << 16
"""Number of unpacked bytes by which the kind of a file is recognized."""
BLOCK_BYTES = 1 << 21
"""Unpacked bytes of a block. Half a megabyte stays in a core's cache while it is decoded; blocks of 8 MB take almost
twice the time."""
_PACKED_BYTES = 1 << 16
"""Packed bytes to read at once. Where one of several members ends, all that was read behind it is copied."""

LIMIT_BYTES = 8 << 30
"""Default maximum of unpacked bytes to read of one file.

It limits memory too. An event becomes 36 bytes of columns (84 for a GPU op, whose shortest text is as long), and a real
event is some 300 bytes of text. So a file takes a tenth of its size in memory, and a hostile file about all of it.
"""
_MAX_COMPRESSION_RATIO = 100
"""Maximum unpacked size of a packed file, as a multiple of its size, unless the user chose a limit. The times and
numbers of a recording's events differ, so packing makes it 50 times smaller at most."""
_UNSUSPICIOUS_BYTES = 1 << 20
"""Unpacked size that any packed file may have."""


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
        self.block_bytes = BLOCK_BYTES
        self.memory: memoryview | None = None
        """Memory for the next block of a plain file, which is then a view of it; None for new memory."""
        self.packed_bytes_read = 0
        """Bytes read from disk so far."""
        self.broken: str | None = None
        """Reason why the packed stream ended too early; None if it did not."""
        self.unpacked_bytes = 0
        """Unpacked bytes read so far."""
        try:
            self._place = place(path, limit_bytes)
            self.packed_bytes = self._place.stat().st_size
            with self._place.open("rb") as file:
                self._head = file.read(16)
        except OSError as error:
            raise self._unreadable(error) from None
        if not self._head:
            raise UnreadableTrace(path, "the file is empty; record the trace again.")
        # A few kilobytes of gzip must not take minutes.
        if limit_bytes == LIMIT_BYTES and not self.plain:
            self.limit_bytes = min(limit_bytes, max(_UNSUSPICIOUS_BYTES, _MAX_COMPRESSION_RATIO * self.packed_bytes))

    def __iter__(self) -> Generator[bytes | memoryview, None, None]:
        """Yield blocks of about BLOCK_BYTES at most.

        Raises:
            UnreadableTrace: The content exceeds the limit.
        """
        for block in self._blocks():
            if not len(block):
                continue
            self.unpacked_bytes += len(block)
            if self.unpacked_bytes > self.limit_bytes:
                why = (
                    ""
                    if self.plain
                    else f", {self.unpacked_bytes // max(self.packed_bytes, 1):,} times its packed size"
                )
                raise UnreadableTrace(
                    self.path,
                    f"holds more than {size(self.limit_bytes)} when unpacked{why}; "
                    f"raise --max-size if the trace really is that large.",
                )
            yield block

    def head(self) -> bytes:
        """Return the first unpacked bytes, without effect on the file's state."""
        ahead = copy(self)
        ahead.block_bytes = HEAD_BYTES
        return bytes(next(iter(ahead), b""))

    def _blocks(self) -> Iterator[bytes | memoryview]:
        try:
            with self._place.open("rb") as file:
                if self._head.startswith(GZIP):
                    yield from self._gzip(file)
                elif self._head.startswith(ZSTD):
                    yield from self._zstd(file)
                else:
                    yield from iter(lambda: self._read_plain(file), b"")
        except OSError as error:
            raise self._unreadable(error) from None

    @property
    def plain(self) -> bool:
        """True if the file is not packed."""
        return not self._head.startswith((GZIP, ZSTD))

    def _read_plain(self, file: BufferedReader) -> bytes | memoryview:
        if self.memory is None:
            return self._read(file, self.block_bytes)
        count = file.readinto(self.memory[: self.block_bytes])
        self.packed_bytes_read += count
        return self.memory[:count]

    def _read(self, file: BinaryIO, most: int = _PACKED_BYTES) -> bytes:
        data = file.read(most)
        self.packed_bytes_read += len(data)
        return data

    def _gzip(self, file: BinaryIO) -> Iterator[bytes]:
        unpack = zlib.decompressobj(31)
        packed = self._read(file)
        while packed:
            before = unpack.copy()
            try:
                block = unpack.decompress(packed, self.block_bytes)
            except zlib.error as error:
                yield from _salvage(before, packed)
                self.broken = f"invalid gzip data ({error})"
                return
            yield block
            packed = unpack.unconsumed_tail
            if unpack.eof:
                # Several members may follow one another. Other bytes after the last member are padding.
                rest = unpack.unused_data or self._read(file)
                if not rest or not rest.startswith(GZIP[: len(rest)]):
                    return
                unpack, packed = zlib.decompressobj(31), rest
            packed = packed or self._read(file)
        yield unpack.flush()
        if not unpack.eof:
            self.broken = "the gzip stream ends early"

    def _zstd(self, file: BinaryIO) -> Iterator[bytes]:
        try:
            zstd = zstd_module()
        except ImportError:
            raise UnreadableTrace(
                self.path,
                "is packed with zstd, which this Python cannot read; install backports.zstd or unpack the file.",
            ) from None
        unpack = zstd.ZstdDecompressor()
        packed = self._read(file)
        while True:
            try:
                block = unpack.decompress(packed, self.block_bytes)
            except zstd.ZstdError as error:
                self.broken = f"invalid zstd data ({error})"
                return
            yield block
            if unpack.eof:
                packed = unpack.unused_data or self._read(file)
                if not packed.startswith(ZSTD[: len(packed)]) or not packed:
                    return
                unpack = zstd.ZstdDecompressor()
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
            yield unpack.decompress(packed, 256)
            packed = unpack.unconsumed_tail
    except zlib.error:
        return


def zstd_module() -> Any:
    """Return Python's own module for zstd (3.14 or later), or its backport.

    Raises:
        ImportError: Neither module is installed.
    """
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        from backports import zstd  # type: ignore[no-redef,unused-ignore]
    return zstd


# -- Kinds of files that overlapscope itself writes --------------------------------------------------

WRITTEN: Final = {
    "report": "a report of overlapscope",
    "ranks": "a report of ranks",
    "diff": "a diff",
    "whatif": "a prediction",
    "check": "the result of a check",
    "baseline": "a baseline",
    "calibration": "a calibration",
    "doctor": "a diagnosis of an installation",
}
"""Descriptions of the files that the core writes, by kind."""
_HEAD_BYTES: Final = 256
_KIND: Final = rb'\s*\{\s*"kind"\s*:\s*"(\w+)"'


def kind_of(path: Path, limit_bytes: int | None = None) -> str | None:
    """Return the kind of a file that overlapscope wrote; None for other files and where the file cannot be opened.

    The kind comes first in the file.
    """
    try:
        with place(path, LIMIT_BYTES if limit_bytes is None else limit_bytes).open("rb") as file:
            match = re.match(_KIND, file.read(_HEAD_BYTES))
    except OSError:
        # Reading the file as a trace reports the error.
        return None
    kind = match[1].decode() if match else ""
    return kind if kind in WRITTEN or any(kind in plugin.kinds for plugin in plugins()) else None
