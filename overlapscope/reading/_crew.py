"""Reading of a large file by several processes, each of which reads stretches of it.

The events in a stretch depend on the bytes left over from the stretch before it. So the reader guesses a place before
each stretch where an event seems to begin. Each stretch is read as if its guess were right, by the same code that reads
a file from end to end. The first stretch begins where the reader really is.

A stretch counts only if the one before it counts and left over exactly the guessed bytes. Then the reader would have
reached it in that state, so the result of the stretch is its result. The file after the last stretch that counts is
read again in one process. So nothing that goes wrong here, from a wrong guess to a killed helper, changes a Trace.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import BinaryIO

from msgspec import Struct

from overlapscope.reading import files
from overlapscope.reading._ahead import unpacked_ahead
from overlapscope.reading._batch import Batch
from overlapscope.reading._columns import EventColumns, Renumbering, Share
from overlapscope.reading._cuts import BLANK, boundaries
from overlapscope.reading._losses import Losses
from overlapscope.reading._processes import alone, fork, reap, signals_later, usable_cores
from overlapscope.reading._stream import EventStream
from overlapscope.reading.files import SourceFile

_STRETCH_BLOCKS = 4
"""Small enough that the processes end at about the same time, even if one of them gets less of its core."""
_MOST_STRETCHES = 1000
_SIGHT_BYTES = 1 << 16
"""Number of bytes before a place in which to look for the event that reaches over it."""
_TICKET_BYTES = 2
_PATIENCE_S = 5.0
"""A helper is killed if it still reads this long after the others ran out of stretches."""


class Stretch(Struct, frozen=True):
    """Bytes from `begin` to `end` of a file, after `held` bytes left over from the stretch before."""

    begin: int
    end: int
    held: int


class StretchStream(EventStream):
    """The events of a stretch, read exactly as one stream over the whole file would read them there."""

    def __init__(self, stretch: Stretch, whole: EventStream) -> None:
        file = whole.file
        super().__init__(file)
        self._rest = b"".join(file.stretch(stretch.begin - stretch.held, stretch.begin))
        self._blocks = file.stretch(stretch.begin, stretch.end)
        self._left = stretch.end - stretch.begin

    def batches(self) -> Iterator[Batch]:
        """Yield the events, except those in the `held` bytes at the end."""
        for block in self._blocks:
            self._left -= len(block)
            batch = self._take(block)
            if batch is not None:
                yield batch
            if self._ended or self.losses != Losses():
                return

    @property
    def held(self) -> int | None:
        """As for any stream, but None also where the stretch was not read to its end."""
        return None if self._left else super().held


class Piece(Struct):
    """Result of reading one stretch."""

    number: int
    held: int
    """Bytes left over at the end of the stretch."""
    share: Share


class Crew(Struct, frozen=True):
    """When processes share the reading of a file, and how many."""

    processes: int | None = None
    """Number of processes, including this one. None means one per usable core if no other thread runs, because a fork
    could harm other threads."""
    least_bytes: int = 32 << 20
    """Smaller files are read before a helper could start."""
    stretch_blocks: int = _STRETCH_BLOCKS
    least_packed_bytes: int = 2 << 20
    """Smaller packed files are unpacked in this process."""
    meanwhile: Callable[[], object] | None = None
    """Work for this process once others have begun to read; not called if no other process reads."""

    def blocks(self, file: SourceFile) -> Iterator[bytes]:
        """Return the unpacked bytes of the file, from a process of their own where the file is packed and large."""
        return unpacked_ahead(file) if self._unpacks_ahead(file) else iter(file)

    def _unpacks_ahead(self, file: SourceFile) -> bool:
        return not file.plain and file.packed_bytes >= self.least_packed_bytes and self._processes() > 1

    def _processes(self) -> int:
        if sys.platform != "linux":
            return 1
        if self.processes is not None:
            return self.processes
        return usable_cores() if alone() else 1

    def help(self, stream: EventStream, columns: EventColumns, progress: Callable[[int], None]) -> None:
        """Read as much of `stream` as helpers can, and leave the rest to the stream.

        Call this between two batches. `progress` is called with the approximate number of bytes read.
        """
        file = stream.file
        if not file.plain:
            if self._unpacks_ahead(file) and self.meanwhile is not None:
                self.meanwhile()
            return
        size = file.packed_bytes
        held = stream.held
        if held is None or size > file.limit_bytes or size - file.packed_bytes_read < self.least_bytes:
            return
        processes = self._processes()
        if processes < 2:
            return
        stretches = self._stretches(file, held)
        if len(stretches) < 2:
            return
        # The stream reads on alone if no process can be started.
        with suppress(OSError):
            _read_together(
                stretches, min(processes, len(stretches)), stream, columns, progress, self.meanwhile or (lambda: None)
            )

    def _stretches(self, file: SourceFile, held: int) -> list[Stretch]:
        """Return stretches over all whole blocks still to be read except the last, in which the array may end."""
        block = files.BLOCK_BYTES
        at, last = file.packed_bytes_read, (file.packed_bytes - 1) // block * block
        step = block * max(self.stretch_blocks, (last - at) // block // _MOST_STRETCHES + 1)
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
    processes: int,
    stream: EventStream,
    columns: EventColumns,
    progress: Callable[[int], None],
    meanwhile: Callable[[], object],
) -> None:
    helpers: list[tuple[int, BinaryIO]] = []
    begin = time.monotonic()
    try:
        with _tickets(len(stretches)) as tickets:
            with signals_later():
                while len(helpers) < processes - 1:
                    helpers.append(_fork(stretches, stream, tickets))
            meanwhile()
            by_reader: list[list[Piece]] = [[]]
            for piece in _pieces(stretches, stream, tickets):
                by_reader[0].append(piece)
                progress(stretches[piece.number].end)
        deadline = time.monotonic() + _PATIENCE_S + 2 * (time.monotonic() - begin)
        while helpers:
            pid, results = helpers[-1]
            reap(pid, deadline)
            helpers.pop()
            by_reader.append(_results(results))
    finally:
        for pid, results in helpers:
            reap(pid, 0.0)
            results.close()
    _join(stretches, by_reader, stream, columns)


def _join(stretches: list[Stretch], by_reader: list[list[Piece]], stream: EventStream, columns: EventColumns) -> None:
    """Add the pieces in the order of the file, as long as each follows from the one before."""
    read = {piece.number: (piece, reader) for reader, pieces in enumerate(by_reader) for piece in pieces}
    numbers: list[Renumbering] = [([], [], [], []) for _ in by_reader]
    at, held = stretches[0].begin, stretches[0].held
    for number, stretch in enumerate(stretches):
        if number not in read or (stretch.begin, stretch.held) != (at, held):
            break
        piece, reader = read[number]
        columns.add_share(piece.share, numbers[reader])
        at, held = stretch.end, piece.held
    if at > stretches[0].begin:
        stream.resume(at, held)


def _pieces(stretches: list[Stretch], stream: EventStream, tickets: BinaryIO) -> Iterator[Piece]:
    """Yield stretches until none is left. A stretch that cannot be read on its own ends the work of all readers."""
    columns = EventColumns()
    while ticket := tickets.read(_TICKET_BYTES):
        number = int.from_bytes(ticket, "little")
        stretch = stretches[number]
        try:
            part = StretchStream(stretch, stream)
            for batch in part.batches():
                columns.add(batch)
            held = part.held
        except Exception:
            # A wrong guess may cause any error. If the guess was right, the error will happen again to the reader.
            held = None
        if held is None:
            # Tickets go out in the order of the file, and no stretch after this one counts.
            while tickets.read(1 << 16):
                pass
            return
        yield Piece(number, held, columns.share())


def _tickets(count: int) -> BinaryIO:
    """Return a pipe with the numbers of the stretches. A pipe gives each number to a single reader."""
    reading, writing = os.pipe()
    with open(writing, "wb", buffering=0) as file:
        os.set_blocking(writing, False)
        file.write(b"".join(number.to_bytes(_TICKET_BYTES, "little") for number in range(count)))
    return open(reading, "rb", buffering=0)


def _fork(stretches: list[Stretch], stream: EventStream, tickets: BinaryIO) -> tuple[int, BinaryIO]:
    """Start a helper; return its process and the file in memory that takes its pieces."""
    if sys.platform != "linux":
        raise OSError("helpers are for Linux only")
    results = os.fdopen(os.memfd_create("overlapscope"), "w+b")
    parent = os.getpid()

    def help() -> None:
        # The reader reads any stretch that the helper did not finish.
        for piece in _pieces(stretches, stream, tickets):
            pickle.dump(piece, results, protocol=5)
            results.flush()
            if os.getppid() != parent:
                break

    try:
        return fork(help), results
    except OSError:
        results.close()
        raise


def _results(file: BinaryIO) -> list[Piece]:
    """Return the pieces that a helper finished."""
    pieces = []
    with file:
        file.seek(0)
        # The last piece may be cut short.
        with suppress(EOFError, pickle.UnpicklingError):
            while True:
                pieces.append(pickle.load(file))
    return pieces
