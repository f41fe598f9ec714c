"""Reads one large file with several processes, each of them stretches of it.

Which events a stretch holds depends on what was left over of the stretch before it. So a place where an event
seems to begin is guessed ahead of each stretch, and every stretch is read as if its guess were right, by the same
code that reads a file from end to end. The first stretch begins where the reader really is. A stretch counts only
if the one before it counts and left over exactly the bytes that were guessed: then the reader would have come to
it in that state, and all that it did from there is known. What follows the last stretch that counts is read again,
in one process; so nothing that can go wrong here, from a wrong guess to a helper that is killed, changes a Trace.
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
"""Small enough that the processes end at about the same time, though one of them may get less of its core."""
_MOST_STRETCHES = 1000
_SIGHT_BYTES = 1 << 16
"""How far before a place the event that reaches over it is looked for."""
_TICKET_BYTES = 2
_PATIENCE_S = 5.0
"""A helper that still reads this long after the others found nothing more to read is given up."""


class Stretch(Struct, frozen=True):
    """From `begin` to `end` in the file, with the `held` bytes before `begin` that are left of the one before."""

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
        """The events, but for what is `held` at the end."""
        for block in self._blocks:
            self._left -= len(block)
            batch = self._take(block)
            if batch is not None:
                yield batch
            if self._ended or self.losses != Losses():
                return

    @property
    def held(self) -> int | None:
        """None also where the stretch was not read to its end."""
        return None if self._left else super().held


class Piece(Struct):
    """What came of one stretch."""

    number: int
    held: int
    """Bytes left over at its end."""
    share: Share


class Crew(Struct, frozen=True):
    """When processes share the reading of a file, and how many."""

    processes: int | None = None
    """This one included; None for one per core that it may use, if no thread would be there to suffer from it."""
    least_bytes: int = 32 << 20
    """Smaller files are read before a process could help."""
    stretch_blocks: int = _STRETCH_BLOCKS
    least_packed_bytes: int = 2 << 20
    """Smaller packed files are unpacked in this process."""
    meanwhile: Callable[[], object] | None = None
    """What this process has to do besides, once others have begun to read; not called if none do."""

    def blocks(self, file: SourceFile) -> Iterator[bytes]:
        """The unpacked bytes of the file, from a process of their own where the file is packed and large."""
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
        """Reads on in `stream` as far as it can, and leaves the rest to the stream.

        Call it between two batches. `progress` is told about how many bytes have been read.
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
        # Nobody helped where no process could be made, and the stream reads on as if nobody had been asked.
        with suppress(OSError):
            _read_together(
                stretches, min(processes, len(stretches)), stream, columns, progress, self.meanwhile or (lambda: None)
            )

    def _stretches(self, file: SourceFile, held: int) -> list[Stretch]:
        """All whole blocks still to be read but the last, in which the array may end."""
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
    """How many bytes a reader would seem to have left over at `end`; None where there is no telling."""
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
    """Adds the pieces in the order of the file, as far as each of them follows from the one before."""
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
    """Reads stretches until none is left to take. One that cannot be told from here ends it for all readers."""
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
            # After a wrong guess this need not have happened to the reader. If it does, it happens to it again.
            held = None
        if held is None:
            # Tickets go out in the order of the file, and nothing counts that follows this stretch.
            while tickets.read(1 << 16):
                pass
            return
        yield Piece(number, held, columns.share())


def _tickets(count: int) -> BinaryIO:
    """Numbers of stretches, for all processes to draw from. A pipe gives each of them to one reader only."""
    reading, writing = os.pipe()
    with open(writing, "wb", buffering=0) as file:
        os.set_blocking(writing, False)
        file.write(b"".join(number.to_bytes(_TICKET_BYTES, "little") for number in range(count)))
    return open(reading, "rb", buffering=0)


def _fork(stretches: list[Stretch], stream: EventStream, tickets: BinaryIO) -> tuple[int, BinaryIO]:
    """Starts a helper: its process, and the file in memory that it leaves its pieces in."""
    if sys.platform != "linux":
        raise OSError("helpers are for Linux only")
    results = os.fdopen(os.memfd_create("overlapscope"), "w+b")
    parent = os.getpid()

    def help() -> None:
        # What it has not left behind is read without it.
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
    """The pieces that a helper finished."""
    pieces = []
    with file:
        file.seek(0)
        # The last one may be cut short.
        with suppress(EOFError, pickle.UnpicklingError):
            while True:
                pieces.append(pickle.load(file))
    return pieces
