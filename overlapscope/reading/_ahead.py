"""Unpacking in a thread, while another decodes the events. zlib and the compiled scanner release the GIL."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from copy import copy
from typing import Final

from overlapscope.reading.files import SourceFile

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
