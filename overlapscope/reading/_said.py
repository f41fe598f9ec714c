"""What events say of themselves, as columns."""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Protocol, Self

import numpy as np
from msgspec import Raw, Struct

from overlapscope.reading._events import decoded_text
from overlapscope.trace.model import I64, Index


class Said(Protocol):
    """The attributes (`CallArgs` or `OpArgs`, `pid` and `tid`) of some rows, however their events were decoded."""

    def number(self, attribute: str) -> I64:
        """Whole numbers; the number in a text."""

    def text(self, attribute: str) -> list[str]:
        """Texts, and other values as they are written; empty where there is none."""

    def take(self, rows: Index) -> Self:
        """Some of the rows."""


class SaidByStructs(Struct, frozen=True):
    """Events that were decoded to structs, and their arguments."""

    events: list[Any]
    """With `pid` and `tid`, where these are asked for."""
    args: list[Any]

    def number(self, attribute: str) -> I64:
        """Each attribute's."""
        return column(self.events if attribute in ("pid", "tid") else self.args, attribute)

    def text(self, attribute: str) -> list[str]:
        """Each attribute's."""
        return [decoded_text(said) if isinstance(said, Raw) else said for said in map(attrgetter(attribute), self.args)]

    def take(self, rows: Index) -> SaidByStructs:
        """Some of them."""
        chosen = rows.tolist()
        return SaidByStructs([self.events[row] for row in chosen], [self.args[row] for row in chosen])


def column(items: list[Any], attribute: str) -> I64:
    """What each of them has there: a whole number, or the number in a text."""
    try:
        return np.fromiter(map(attrgetter(attribute), items), np.int64, len(items))
    except (TypeError, ValueError, OverflowError):
        return np.array([number(getattr(item, attribute)) for item in items], dtype=np.int64)


def number(identity: int | str) -> int:
    """A process or thread id in 64 bits; the number in `stream 7`, as kineto once wrote it; -1 where there is none."""
    if isinstance(identity, int):
        return _wrapped(identity)
    digits = identity.removeprefix("stream ").strip()
    return _wrapped(int(digits)) if digits.isascii() and digits.isdigit() and len(digits) < 20 else -1


def _wrapped(value: int) -> int:
    """Unsigned 64-bit ids keep their bits; anything longer is not an id."""
    if -(1 << 63) <= value < 1 << 63:
        return value
    return value - (1 << 64) if 0 <= value < 1 << 64 else -1
