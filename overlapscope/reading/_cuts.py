"""Possible cuts in a stretch of the events array, for decoding to confirm."""

from __future__ import annotations

import re
from collections.abc import Iterator

BLANK = b" \t\r\n"
"""White space of JSON."""

END_SIGHT = 2000
"""A bracket with another event in this many characters after it does not end the events."""
_TRIES = 4


def boundaries(pending: bytes | bytearray) -> Iterator[int]:
    """Yield places near the end of `pending` where an event may end, last first; never the very end."""
    at = len(pending)
    tries = 0
    for _ in range(1024):
        at = pending.rfind(b"{", 0, at)
        if at < 0:
            return
        before = pending[max(at - 256, 0) : at].rstrip(BLANK)
        if not before.endswith(b","):
            continue
        before = before[:-1].rstrip(BLANK)
        if before.endswith(b"}"):
            yield max(at - 256, 0) + len(before)
            tries += 1
            if tries == _TRIES:
                return


def array_ends(pending: bytes | bytearray) -> Iterator[int]:
    """Yield the brackets that may close the array that `pending` begins with, likeliest first."""
    events = pending[1:].lstrip(BLANK)
    if not events.strip(BLANK + b",") or events[:1] == b"]":
        return
    at = len(pending)
    tries = 0
    for _ in range(64):
        at = pending.rfind(b"]", 0, at)
        if at < 0:
            return
        if pending[max(at - 256, 0) : at].rstrip(BLANK).endswith(b"}"):
            yield at
            tries += 1
            if tries == _TRIES:
                return


def at_end(error: str, size: int) -> bool:
    """Return whether a decoding error means that the JSON stops too early."""
    if "truncated" in error:
        return True
    position = re.search(r"\(byte (\d+)\)", error)
    return position is not None and int(position[1]) >= size - 2
