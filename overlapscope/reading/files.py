"""Bytes of a trace file, unpacked if it is gzip or zstd, in blocks of bounded size."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Generator, Iterator
from copy import copy
from pathlib import Path
from typing import Any, BinaryIO

from overlapscope.base.words import size
from overlapscope.base.zstd import module
from overlapscope.errors import UnreadableTrace
from overlapscope.reading._formats import GZIP, ZSTD
from overlapscope.reading.pipes import place

HEAD_BYTES = 1 << 16
"""Number of unpacked bytes by which the kind of a file is recognized."""
BLOCK_BYTES = 1 << 21
"""Unpacked bytes of a block. Half a megabyte stays in a core's cache while it is decoded; blocks of 8 MB take almost
twice the time."""

LIMIT_BYTES = 8 << 30
"""Default maximum of unpacked bytes to read of one file.

It limits memory too. An event becomes 36 bytes of columns (84 for a GPU op, whose shortest text is as long), and a real
event is some 300 bytes of text. So a file takes a tenth of its size in memory, and a hostile file about all of it.
"""
_MOST_TIMES = 100
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
        self._block_bytes = BLOCK_BYTES
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
        # A few kilobytes of gzip must not take minutes.
        if limit_bytes == LIMIT_BYTES and not self.plain:
            self.limit_bytes = min(limit_bytes, max(_UNSUSPICIOUS_BYTES, _MOST_TIMES * self.packed_bytes))

    def __iter__(self) -> Generator[bytes, None, None]:
        """Yield blocks of about BLOCK_BYTES at most.

        Raises:
            UnreadableTrace: The content exceeds the limit.
        """
        for block in self._blocks():
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
        ahead._block_bytes = HEAD_BYTES
        return next(iter(ahead), b"")

    def _blocks(self) -> Iterator[bytes]:
        try:
            with self._place.open("rb") as file:
                if self._head.startswith(GZIP):
                    yield from self._gzip(file)
                elif self._head.startswith(ZSTD):
                    yield from self._zstd(file)
                else:
                    yield from self._plain(file)
        except OSError as error:
            raise self._unreadable(error) from None

    @property
    def plain(self) -> bool:
        """True if the file is not packed, so that any place in it can be read at once."""
        return not self._head.startswith((GZIP, ZSTD))

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
        data = file.read(self._block_bytes)
        self.packed_bytes_read += len(data)
        return data

    def _gzip(self, file: BinaryIO) -> Iterator[bytes]:
        unpack = zlib.decompressobj(31)
        packed = self._read(file)
        while packed:
            before = unpack.copy()
            try:
                block = unpack.decompress(packed, self._block_bytes)
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
                if not rest or not rest.startswith(GZIP[: len(rest)]):
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
                block = unpack.decompress(packed, self._block_bytes)
            except zstd_error as error:
                self.broken = f"invalid zstd data ({error})"
                return
            yield from _nonempty(block)
            if unpack.eof:
                packed = unpack.unused_data or self._read(file)
                if not packed.startswith(ZSTD[: len(packed)]) or not packed:
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


def read_whole(file: SourceFile, at: Callable[[int], None]) -> bytes:
    """Return all unpacked bytes of a file, and tell `at` the packed bytes read so far."""
    blocks = []
    for block in file:
        blocks.append(block)
        at(file.packed_bytes_read)
    return b"".join(blocks)
