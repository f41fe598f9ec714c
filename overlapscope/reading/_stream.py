"""The events array of a file as a stream of batches, cut into pieces that are decoded separately.

Cutting is safe by this rule: if a piece begins where an event begins, and `[piece]` is valid JSON, then the piece also
ends where an event ends. So any place that looks like a boundary may be tried, and validity proves it right.
"""

from __future__ import annotations

import re
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from overlapscope.base.words import size
from overlapscope.errors import UnreadableTrace
from overlapscope.reading._events import END_SIGHT, UNDECODABLE, Batch, Losses, any_events, batch_of_events, convert
from overlapscope.reading._metadata import loose_metadata
from overlapscope.reading._scan import is_compiled, scanner
from overlapscope.reading.files import SourceFile, foreign

if TYPE_CHECKING:
    from concurrent.futures import Future

# -- Possible cuts in a stretch of the events array, for decoding to confirm -------------------------

BLANK = b" \t\r\n"
"""White space of JSON."""

_MAX_TRIES = 4


def _last(
    pending: bytes | bytearray, bracket: bytes, most: int, size: int | None = None
) -> Iterator[tuple[int, bytes | bytearray]]:
    """Yield the last places of a bracket among the first `size` bytes, last first, each with what stands before it."""
    at = len(pending) if size is None else size
    for _ in range(most):
        at = pending.rfind(bracket, 0, at)
        if at < 0:
            return
        yield at, pending[max(at - 256, 0) : at].rstrip(BLANK)


def boundaries(pending: bytes | bytearray, size: int | None = None) -> Iterator[int]:
    """Yield places near the end of the first `size` bytes where an event may end, last first; never the very end."""
    ends = (
        max(at - 256, 0) + len(event)
        for at, before in _last(pending, b"{", 1024, size)
        if before.endswith(b",") and (event := before[:-1].rstrip(BLANK)).endswith(b"}")
    )
    return islice(ends, _MAX_TRIES)


def array_ends(pending: bytes | bytearray) -> Iterator[int]:
    """Yield the brackets that may close the array that `pending` begins with, likeliest first."""
    events = pending[1:].lstrip(BLANK)
    is_empty = not events.strip(BLANK + b",") or events[:1] == b"]"
    ends = (at for at, before in _last(pending, b"]", 0 if is_empty else 64) if before.endswith(b"}"))
    return islice(ends, _MAX_TRIES)


def at_end(error: str, size: int) -> bool:
    """Return whether a decoding error means that the JSON stops too early."""
    if "truncated" in error:
        return True
    position = re.search(r"\(byte (\d+)\)", error)
    return position is not None and int(position[1]) >= size - 2


_CLOSING = ord("]")
MAX_PENDING_BYTES = 64 << 20
"""Maximum bytes held while looking for the end of an event, or for the events array."""
_MAX_BYTES_BEFORE_FIRST = 4 << 20
"""Maximum bytes held before any event could be read."""

_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_PHASE = re.compile(rb'"ph"\s*:')
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_MAX_HEADER_BYTES = 4 << 20
"""Maximum bytes to wait for metadata to become valid JSON."""
_MAX_LOST = 100_000
"""Maximum events to lose before the first that can be read."""
_NOTHING_READ = (
    "none of its events can be read: it is not a trace, or it is damaged beyond repair. Pass a Chrome trace of "
    "torch.profiler, or record again."
)
_MAX_CANDIDATES = 8
"""Maximum places to try that look like the beginning of the events, before the first of them is taken."""
_AFTER_ARRAY = re.compile(rb"\}\s*\]")


class _ScannedAhead(NamedTuple):
    """Events of a block that a thread scans before its turn."""

    rest: bytes
    """Bytes that the block before seems to leave over."""
    scanned: Future[Batch | None]
    after: bytes
    """Bytes that this block leaves over if `rest` is right, and the scanner takes the events."""


_Blocks = Generator[tuple[bytes | memoryview, _ScannedAhead | None], None, None]
_AHEAD_PER_THREAD = 2
"""Maximum number of blocks per thread that are scanned and not yet added, which bounds the memory."""


class EventStream:
    """The events of one file, in batches, and the metadata around them.

    `metadata` is complete only after the last batch, because keys may stand on either side of the events.

    Threads may scan blocks before their turn. They guess where the events of each block end, and so what the next block
    begins with. A result counts only if the bytes left over are those that were guessed. All other blocks are decoded
    in their turn, so the events don't depend on the threads.
    """

    def __init__(self, file: SourceFile, threads: int = 1) -> None:
        """Start a stream of the file's blocks, of which several threads scan some in advance."""
        self._path: Path = file.path
        self.file = file
        # Decoding in Python holds the GIL, so threads would not help.
        self._threads = threads if is_compiled() else 1
        self._blocks: Iterator[bytes | memoryview] = iter(file)
        self._rest = b""
        """Bytes read but not decoded yet; they begin where an event begins."""
        self._least = 0
        """Minimum number of bytes to have before decoding is tried again."""
        self._read_any = False
        self._ended = False
        """True if the closing bracket of the events array was read."""
        self.metadata: dict[str, Any] = {}
        self.losses = Losses()
        self._bare = False
        self._scan = scanner()

    def batches(self) -> Generator[Batch, None, None]:
        """Yield the events in the file's order.

        Raises:
            UnreadableTrace: The events array is missing or unreadable.
        """
        self._rest = self._find_array()
        one_by_one = ((block, None) for block in self._blocks)
        with closing(self._scanned_ahead() if self._threads > 1 else one_by_one) as blocks:
            for block, ahead in blocks:
                batch = self._take(block, ahead)
                if batch is not None:
                    yield batch
                if not self._read_any and self.losses.lost_events > _MAX_LOST:
                    raise self.unreadable(_NOTHING_READ)
                if self._ended:
                    break
            if not self._ended:
                batch = self._decode(self._rest, final=True)
                self._read_any |= batch.count > 0
                yield batch
            self._finish(blocks)
        losses = self.losses
        if not self._read_any and (losses.lost_bytes or losses.lost_events or losses.truncated):
            raise self.unreadable(_NOTHING_READ)

    def _scanned_ahead(self) -> _Blocks:
        """Yield the blocks, and the events that threads find in them. A block is valid until the next one is taken."""
        # Imported only where it is used.
        from concurrent.futures import ThreadPoolExecutor

        scanners = threading.local()

        def scan(pending: bytearray, end: int) -> Batch | None:
            if not hasattr(scanners, "scan"):
                scanners.scan = scanner()
            replaced, pending[end] = pending[end], _CLOSING
            batch: Batch | None = scanners.scan(memoryview(pending)[: end + 1])
            pending[end] = replaced
            return batch

        rest = self._rest
        waiting: deque[tuple[bytearray, memoryview, _ScannedAhead | None]] = deque()
        spare: list[bytearray] = []
        pool = ThreadPoolExecutor(self._threads)
        try:
            ended = False
            while waiting or not ended:
                if not ended:
                    pending, block = self._next_after(rest, spare)
                    ended = not block
                if not ended:
                    ahead, held = None, 1 + len(rest) + len(block)
                    end = next(boundaries(pending, held), 1)
                    after = bytes(memoryview(pending)[end:held]).lstrip(BLANK).removeprefix(b",")
                    replaced = pending[end]
                    try:
                        ahead = _ScannedAhead(rest, pool.submit(scan, pending, end), after) if end > 1 else None
                    except RuntimeError:
                        # The system has no thread to spare, so the block is decoded in its turn. Another thread may
                        # still scan this memory.
                        own = bytearray(block)
                        if end > len(rest):
                            own[end - 1 - len(rest)] = replaced
                        pending, block = bytearray(), memoryview(own)
                    rest = after
                    waiting.append((pending, block, ahead))
                if waiting and (ended or len(waiting) > _AHEAD_PER_THREAD * self._threads):
                    pending, block, ahead = waiting.popleft()
                    if ahead is not None:
                        # Until then, the thread changes a byte.
                        ahead.scanned.result()
                    yield block, ahead
                    spare.append(pending)
        finally:
            pool.shutdown(cancel_futures=True)

    def _next_after(self, rest: bytes, spare: list[bytearray]) -> tuple[bytearray, memoryview]:
        """Return a bracket, some bytes and the next block, perhaps in spare memory, and where the block is in it."""
        at = 1 + len(rest)
        least = at + self.file.block_bytes
        # New memory takes as long as reading into it.
        pending = spare.pop() if spare else bytearray()
        if len(pending) < least:
            pending = bytearray(2 * at + self.file.block_bytes)
        memory = memoryview(pending)
        memory[:at] = b"[" + rest
        self.file.memory = memory[at:]
        block = next(self._blocks, b"")
        self.file.memory = None
        if isinstance(block, bytes):
            # It was unpacked.
            if len(block) > len(memory) - at:
                pending = bytearray().join((memory[:at], block))
                memory = memoryview(pending)
            memory[at : at + len(block)] = block
        return pending, memory[at : at + len(block)]

    def _take(self, block: bytes | memoryview, ahead: _ScannedAhead | None) -> Batch | None:
        """Return the events that one more block completes; None where more bytes are needed before trying."""
        if ahead is not None and ahead.rest == self._rest and (scanned := ahead.scanned.result()) is not None:
            self._rest, self._least = ahead.after, 0
            self._read_any |= scanned.count > 0
            return scanned
        if len(self._rest) + len(block) < self._least:
            self._rest += block
            return None
        held = len(self._rest)
        batch = self._decode(self._rest, block, final=False)
        self._read_any |= batch.count > 0
        most = MAX_PENDING_BYTES if self._read_any else min(MAX_PENDING_BYTES, _MAX_BYTES_BEFORE_FIRST)
        if not self._ended and len(self._rest) > most:
            raise UnreadableTrace(
                self._path, f"an event is longer than {size(most)}, so this is not a trace; record it again."
            )
        # The event is longer than a block. Try again only when there is much more of it.
        self._least = 2 * len(self._rest) if len(self._rest) == held + len(block) else 0
        return batch

    # -- Before the events ---

    def _find_array(self) -> bytes:
        """Return the bytes after the opening bracket of the events array."""
        head = b""
        searched = tried = 0
        for block in self._blocks:
            head = (head + block).removeprefix(b"\xef\xbb\xbf")
            if not searched:
                start = head.lstrip(BLANK)
                if not start:
                    head = b""
                    continue
                if start[:1] == b"[":
                    self._bare = True
                    return start[1:]
                if start[:1] != b"{":
                    raise self._no_json()
            for array in _ARRAY.finditer(head, max(searched - 64, 0)):
                if self._take_header(head[: array.start()]):
                    return head[array.end() :]
                tried += 1
                if tried == _MAX_CANDIDATES:
                    break
            searched = len(head)
            if (
                tried == _MAX_CANDIDATES
                or searched > MAX_PENDING_BYTES
                or (searched > _MAX_HEADER_BYTES and _ARRAY.search(head) is not None)
            ):
                break
        if self.file.broken is None and not head.strip(BLANK):
            raise UnreadableTrace(self._path, "contains only white space; record the trace again.")
        fallback = _ARRAY.search(head)
        if fallback is not None:
            self.metadata.update(self._loose_header(head[: fallback.start()]))
            return head[fallback.end() :]
        raise self._no_events(head)

    def _take_header(self, header: bytes) -> bool:
        """Return whether the key after `header` stands at the top level, which valid JSON proves; keep the metadata."""
        try:
            metadata = msgspec.json.decode(header + b'"":0}')
        except UNDECODABLE:
            # Some metadata is free text from the user. It must not cost the events.
            outside = _STRING.sub(b"", header)
            if b'"' in outside or (outside.count(b"{"), outside.count(b"[")) != (
                outside.count(b"}") + 1,
                outside.count(b"]"),
            ):
                return False
            metadata = self._loose_header(header)
        self.metadata.update(metadata)
        return True

    def _loose_header(self, header: bytes) -> dict[str, Any]:
        self.losses.repaired_events += 1
        self.losses.remember("repaired: the metadata before the events is not valid JSON")
        return loose_metadata(header)

    def _no_json(self) -> UnreadableTrace:
        return self.unreadable("is not JSON; pass a Chrome trace of torch.profiler (`export_chrome_trace`).")

    def unreadable(self, otherwise: str) -> UnreadableTrace:
        """Return the error for a file without a trace; `otherwise` unless it is known which program wrote it."""
        return UnreadableTrace(self._path, foreign(self.file.head()) or otherwise)

    def _no_events(self, head: bytes) -> UnreadableTrace:
        if self.file.broken is not None:
            return UnreadableTrace(self._path, f"{self.file.broken} before its first event; copy or record it again.")
        try:
            msgspec.json.decode(head)
        except UNDECODABLE:
            if b":" not in head[:4096] and b'"' not in head[:4096]:
                return self._no_json()
            return self.unreadable("has no `traceEvents` and is not valid JSON; if it was cut, record the trace again.")
        return self.unreadable(
            "is JSON without `traceEvents`, so it is not a trace; pass a Chrome trace of torch.profiler."
        )

    # -- The events ---

    def _decode(self, *parts: bytes | memoryview, final: bool) -> Batch:
        """Return the events in the bytes, and leave in `_rest` the bytes that more of the file could change."""
        # With the bracket before them, whole events are decoded in place.
        pending = bytearray().join((b"[", *parts))
        if not final:
            for end in boundaries(pending):
                verdict, batch = self._typed(pending, end)
                if verdict == "valid":
                    self._rest = bytes(pending[end:]).lstrip(BLANK).removeprefix(b",")
                    return batch
                if verdict == "broken":
                    break
            else:
                if _AFTER_ARRAY.search(pending) is None:
                    self._rest = bytes(pending[1:])
                    return Batch()
        for end in array_ends(pending):
            if len(pending) - end < END_SIGHT and not final:
                self._rest = bytes(pending[1:])
                return Batch()
            if _PHASE.search(pending, end, end + END_SIGHT):
                continue
            verdict, batch = self._typed(pending, end)
            if verdict == "valid":
                self._ended = True
                self._footer = bytes(pending[end:]).lstrip(BLANK)[1:]
                return batch
        return self._recover(bytes(pending[1:]), final=final)

    def _typed(self, pending: bytearray, end: int) -> tuple[str, Batch]:
        """Return a verdict on the events in `pending[:end]`, which begins with a bracket, and the events.

        The verdict is "valid", "cut" (the end seems wrong) or "broken".
        """
        replaced = pending[end]
        pending[end] = _CLOSING
        try:
            return self._typed_array(memoryview(pending)[: end + 1])
        finally:
            pending[end] = replaced

    def _typed_array(self, array: memoryview) -> tuple[str, Batch]:
        batch = self._scan(array)
        if batch is not None:
            return "valid", batch
        try:
            values = any_events.decode(array)
        except UNDECODABLE as error:
            return ("cut" if at_end(str(error), len(array)) else "broken"), Batch()
        return "valid", batch_of_events(self._convert(values))

    def _convert(self, values: list[Any]) -> list[Any]:
        events: list[Any] = []
        for value in values:
            typed = convert(value)
            if typed is None:
                self.losses.lost_events += 1
                self.losses.remember(f"lost: {str(value)[:80]} is not an event")
                continue
            event, repaired = typed
            events.append(event)
            if repaired:
                self.losses.repaired_events += 1
                self.losses.remember(f"repaired: {str(value)[:100]}")
        return events

    def _recover(self, pending: bytes, *, final: bool) -> Batch:
        # Only damaged files need it.
        from overlapscope.reading._repair import Recovery

        text = pending.decode("utf-8", "surrogateescape")
        recovery = Recovery(self._repairable, text, self.losses, final=final)
        self._ended, rest = recovery.has_ended, recovery.rest.encode("utf-8", "surrogateescape")
        self._rest, self._footer = (b"", rest) if self._ended else (rest, b"")
        return self._batch_of(recovery.events)

    _repairable: Callable[[Any], tuple[Any, bool] | None] = staticmethod(convert)
    """Makes an event of a JSON value (`_repair.Converter`)."""
    _batch_of: Callable[[list[Any]], Batch] = staticmethod(batch_of_events)

    # -- After the events ---

    def _finish(self, blocks: _Blocks) -> None:
        losses = self.losses
        if self.file.broken is not None:
            losses.truncated = True
            losses.remember(f"truncated: {self.file.broken}")
        if not self._ended:
            losses.truncated = True
            return
        footer = self._footer
        for block, _ in blocks:
            if len(footer) < MAX_PENDING_BYTES:
                footer += block
        footer = footer.strip(BLANK)
        if self._bare:
            losses.lost_bytes += len(footer)
            return
        try:
            self.metadata.update(msgspec.json.decode(b'{"":0' + footer))
        except UNDECODABLE:
            self.metadata.update(loose_metadata(footer))
            if events := len(_PHASE.findall(footer)):
                losses.lost_events += events
                losses.lost_bytes += len(footer)
                losses.remember(f"lost: {events} events after the end of `traceEvents`")
            elif footer.endswith(b"}"):
                losses.repaired_events += 1
                losses.remember("repaired: the metadata after the events is not valid JSON")
            else:
                losses.truncated = True
                losses.lost_bytes += len(footer)
