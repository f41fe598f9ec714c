"""Unpacking in a process of its own, while this process decodes the events.

A packed file can be unpacked only from its beginning, by one process. If that process ends too early, the file is
unpacked again here, from the place that was reached. So a failure of the process never changes a Trace.
"""

from __future__ import annotations

import pickle
import struct
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

from overlapscope.errors import UnreadableTrace
from overlapscope.reading._processes import fork_into_pipe, reap
from overlapscope.reading.files import BLOCK_BYTES, SourceFile

_HEADER = struct.Struct("<qq")
"""Precedes each block: the length of the block, and the number of packed bytes read. A negative length marks the end.
It is followed by pickled data of that length: why the file is broken (or None), and an error message (or None)."""


def unpacked_ahead(file: SourceFile) -> Iterator[bytes]:
    """Yield the same blocks as the file, from another process.

    Raises:
        UnreadableTrace: As the file does.
    """
    helper = _start(file)
    if helper is None:
        yield from file
        return
    pid, pipe = helper
    received = 0
    try:
        with pipe:
            while (header := _exactly(pipe, _HEADER.size)) is not None:
                length, packed_bytes = _HEADER.unpack(header)
                data = _exactly(pipe, abs(length))
                if data is None:
                    break
                file.packed_bytes_read = packed_bytes
                if length < 0:
                    file.broken, error = pickle.loads(data)
                    if error is not None:
                        raise UnreadableTrace(*error)
                    return
                file.unpacked_bytes += length
                received += length
                yield data
    finally:
        reap(pid, 0.0)
    yield from _from(file, received)


def _start(file: SourceFile) -> tuple[int, BinaryIO] | None:
    """Return the process and the pipe that it writes to; None where no process can be started."""
    if sys.platform != "linux":
        return None
    import fcntl

    def work(writing: int) -> None:
        with suppress(OSError):
            # The largest size that any user may choose, so that neither side waits for the other at each block.
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 2 * BLOCK_BYTES)
        with open(writing, "wb", buffering=0) as pipe:
            _write(file, pipe)

    started = fork_into_pipe(work)
    return None if started is None else (started[0], open(started[1], "rb", buffering=0))


def _write(file: SourceFile, pipe: BinaryIO) -> None:
    error = None
    try:
        for block in file:
            _all(pipe, _HEADER.pack(len(block), file.packed_bytes_read))
            _all(pipe, block)
    except UnreadableTrace as refused:
        error = refused.args
    end = pickle.dumps((file.broken, error))
    _all(pipe, _HEADER.pack(-len(end), file.packed_bytes_read))
    _all(pipe, end)


def _all(pipe: BinaryIO, data: bytes) -> None:
    unwritten = memoryview(data)
    while unwritten:
        unwritten = unwritten[pipe.write(unwritten) :]


def _exactly(pipe: BinaryIO, count: int) -> bytes | None:
    """Return `count` bytes; None where the other side has ended before."""
    parts = []
    while count:
        part = pipe.read(count)
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _from(file: SourceFile, place: int) -> Iterator[bytes]:
    """Yield the bytes after the first `place` unpacked bytes."""
    file.packed_bytes_read = file.unpacked_bytes = 0
    for block in file:
        skipped = min(place, len(block))
        place -= skipped
        if skipped < len(block):
            yield block[skipped:]
