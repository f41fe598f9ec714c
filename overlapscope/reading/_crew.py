"""Reading of a large file by several threads, each of which reads stretches of it.

The events in a stretch depend on the bytes left over from the stretch before it. So the reader guesses a place before
each stretch where an event seems to begin. Each stretch is read as if its guess were right, by the same code that reads
a file from end to end. The first stretch begins where the reader really is.

A stretch counts only if the one before it counts and left over exactly the guessed bytes. Then the reader would have
reached it in that state, so the result of the stretch is its result. The file after the last stretch that counts is
read again from end to end. So nothing that goes wrong here, such as a wrong guess, changes a Trace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from copy import copy
from itertools import islice
from typing import Final

from msgspec import Struct

from overlapscope.base.memory import usable_cores
from overlapscope.reading import files
from overlapscope.reading._batch import Batch
from overlapscope.reading._columns import EventColumns
from overlapscope.reading._events import Losses
from overlapscope.reading._scan import is_compiled
from overlapscope.reading._stream import BLANK, EventStream, boundaries
from overlapscope.reading.files import SourceFile

_STRETCH_BLOCKS = 4
"""Small enough that the threads end at about the same time, even if one of them gets less of its core."""
_STRETCHES_AHEAD = 2
"""Maximum number of stretches per thread that are read and not yet added, which bounds the memory."""
_SIGHT_BYTES = 1 << 16
"""Number of bytes before a place in which to look for the event that reaches over it."""


class Stretch(Struct, frozen=True):
    """Bytes from `begin` to `end` of a file, after `held` bytes left over from the stretch before."""

    begin: int
    end: int
    held: int


class StretchStream(EventStream):
    """The events of a stretch, read exactly as one stream over the whole file would read them there."""

    def __init__(self, stretch: Stretch, stream: EventStream) -> None:
        file = stream.file
        super().__init__(file)
        self._rest = b"".join(file.stretch(stretch.begin - stretch.held, stretch.begin))
        self._blocks = file.stretch(stretch.begin, stretch.end)
        self._unread_bytes = stretch.end - stretch.begin

    def batches(self) -> Iterator[Batch]:
        """Yield the events, except those in the `held` bytes at the end."""
        for block in self._blocks:
            self._unread_bytes -= len(block)
            batch = self._take(block)
            if batch is not None:
                yield batch
            if self._ended or self.losses != Losses():
                return

    @property
    def held(self) -> int | None:
        """As for any stream, but None also where the stretch was not read to its end."""
        return None if self._unread_bytes else super().held


class Piece(Struct, frozen=True):
    """Result of reading one stretch."""

    stretch: Stretch
    held: int
    """Bytes left over at the end of the stretch."""
    batches: list[Batch]


class Crew(Struct, frozen=True):
    """When threads share the reading of a file, and how many."""

    threads: int | None = None
    """Number of threads; None means one per usable core."""
    least_bytes: int = 32 << 20
    """Smaller files are read before a thread could start."""
    stretch_blocks: int = _STRETCH_BLOCKS
    least_packed_bytes: int = 2 << 20
    """Smaller packed files are unpacked in this thread."""

    def blocks(self, file: SourceFile) -> Generator[bytes, None, None]:
        """Return the unpacked bytes of the file, from a thread of their own where the file is packed and large."""
        is_large = not file.plain and file.packed_bytes >= self.least_packed_bytes
        return unpacked_ahead(file) if is_large and self._threads() > 1 else iter(file)

    def _threads(self) -> int:
        return usable_cores() if self.threads is None else self.threads

    def help(self, stream: EventStream, columns: EventColumns, progress: Callable[[int], None]) -> None:
        """Read as much of `stream` as threads can, and leave the rest to the stream.

        Call this between two batches. `progress` is called with the approximate number of bytes read.
        """
        file = stream.file
        if not file.plain:
            return
        size = file.packed_bytes
        held = stream.held
        if held is None or size > file.limit_bytes or size - file.packed_bytes_read < self.least_bytes:
            return
        threads = self._threads()
        # Decoding in Python holds the GIL, so threads would not help.
        if threads < 2 or (self.threads is None and not is_compiled()):
            return
        stretches = self._stretches(file, held)
        if len(stretches) >= 2:
            _read_together(stretches, threads, stream, columns, progress)

    def _stretches(self, file: SourceFile, held: int) -> list[Stretch]:
        """Return stretches over all whole blocks still to be read except the last, in which the array may end."""
        block = files.BLOCK_BYTES
        at, last = file.packed_bytes_read, (file.packed_bytes - 1) // block * block
        step = block * self.stretch_blocks
        stretches = []
        for end in [*range(at + step, last, step), last]:
            next_held = guess(file, end)
            if next_held is not None and end > at:
                stretches.append(Stretch(at, end, held))
                at, held = end, next_held
        return stretches


def guess(file: SourceFile, end: int) -> int | None:
    """Return how many bytes a reader would have left over at `end`; None where no boundary is in sight."""
    before = b"".join(file.stretch(max(end - _SIGHT_BYTES, 0), end))
    for boundary in boundaries(before):
        return len(before[boundary:].lstrip(BLANK).removeprefix(b","))
    return None


def _read_together(
    stretches: list[Stretch],
    threads: int,
    stream: EventStream,
    columns: EventColumns,
    progress: Callable[[int], None],
) -> None:
    # Imported only where it is used.
    from concurrent.futures import Future, ThreadPoolExecutor

    pool = ThreadPoolExecutor(threads)
    waiting = iter(stretches)
    pending: deque[Future[Piece | None]] = deque()

    def start(count: int) -> None:
        # If the system has no thread to spare, the stream reads the rest alone.
        with suppress(RuntimeError):
            pending.extend(pool.submit(_piece, stream, stretch) for stretch in islice(waiting, count))

    def pieces() -> Iterator[Piece | None]:
        while pending:
            yield pending.popleft().result()
            start(1)

    try:
        start(_STRETCHES_AHEAD * threads)
        _join(stretches, pieces(), stream, columns, progress)
    finally:
        pool.shutdown(cancel_futures=True)


def _join(
    stretches: list[Stretch],
    pieces: Iterator[Piece | None],
    stream: EventStream,
    columns: EventColumns,
    progress: Callable[[int], None],
) -> None:
    """Add the pieces in the order of the file, as long as each follows from the one before."""
    at, held = stretches[0].begin, stretches[0].held
    for piece in pieces:
        if piece is None or (piece.stretch.begin, piece.stretch.held) != (at, held):
            break
        for batch in piece.batches:
            columns.add(batch)
        at, held = piece.stretch.end, piece.held
        progress(at)
    if at > stretches[0].begin:
        stream.resume(at, held)


def _piece(stream: EventStream, stretch: Stretch) -> Piece | None:
    """Return the events of a stretch; None where it cannot be read on its own, so that no later stretch counts."""
    part = StretchStream(stretch, stream)
    try:
        batches = list(part.batches())
    except Exception:
        # A wrong guess may cause any error. If the guess was right, the error will happen again to the reader.
        return None
    return None if part.held is None else Piece(stretch, part.held, batches)


# -- Unpacking in a thread, while another decodes events: zlib and the compiled scanner release the GIL

_BLOCKS: Final = 4
"""Maximum number of unpacked blocks to hold, so that neither thread waits for the other at each block."""


def unpacked_ahead(file: SourceFile) -> Generator[bytes, None, None]:
    """Yield the same blocks as the file. A thread unpacks the next blocks meanwhile.

    Raises:
        UnreadableTrace: As the file does.
    """
    # Imported here because a file in the cache is opened before this import would be over.
    from concurrent.futures import ThreadPoolExecutor

    # The thread works on a copy, so that `file` describes the block that the caller has.
    ahead = copy(file)
    blocks = iter(ahead)

    def advance() -> tuple[bytes, int, str | None]:
        return next(blocks, b""), ahead.packed_bytes_read, ahead.broken

    with ThreadPoolExecutor(1) as thread:
        try:
            pending = deque([thread.submit(advance)])
        except RuntimeError:
            # The system has no thread to spare.
            yield from file
            return
        while True:
            pending.extend(thread.submit(advance) for _ in range(_BLOCKS - len(pending)))
            block, file.packed_bytes_read, file.broken = pending.popleft().result()
            if not block:
                return
            file.unpacked_bytes += len(block)
            yield block
