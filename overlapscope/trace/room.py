"""Refusal of traces that need more memory than there is."""

from __future__ import annotations

from typing import Final

from overlapscope.base.memory import free_bytes
from overlapscope.base.words import size
from overlapscope.errors import UnreadableTrace

BYTES_OF_ROW: Final = 400
"""Memory that an event takes at most while its trace is analyzed, as measured with traces of short kernels only."""
_UNSUSPICIOUS_BYTES: Final = 1 << 30


def check_room(source: str, rows: int) -> None:
    """Refuse a trace of so many events, if the system would end this process, which could then give no reason.

    Raises:
        UnreadableTrace: Its analysis needs more memory than is free.
    """
    needed = BYTES_OF_ROW * rows
    free = free_bytes() if needed > _UNSUSPICIOUS_BYTES else None
    if free is not None and needed > free:
        raise UnreadableTrace(
            source,
            f"has at least {rows:,} events, whose analysis needs about {size(needed)} of memory, but only "
            f"{size(max(free, 0))} are free; record fewer steps, or pass fewer traces at once.",
        )
