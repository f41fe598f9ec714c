"""Arguments of events, as columns."""

from __future__ import annotations

from array import array
from operator import attrgetter
from typing import Any, Protocol, Self

import numpy as np
from msgspec import Raw, Struct

from overlapscope.reading._events import decoded_text
from overlapscope.trace.model import I64, Index


class EventArguments(Protocol):
    """Attributes of some rows (those of `CallArgs` or `OpArgs`, `pid` and `tid`), however the events were decoded."""

    def number(self, attribute: str) -> I64:
        """Return whole numbers; of a text, the number in it."""

    def text(self, attribute: str) -> list[str]:
        """Return texts, and other values as JSON; empty where missing."""

    def processes(self) -> set[int | str]:
        """Return the processes of calls, as written."""

    def take(self, rows: Index) -> Self:
        """Return the arguments of some of the rows."""


class DecodedArguments(Struct, frozen=True):
    """Arguments of events that were decoded to structs."""

    events: list[Any]
    """Events, for their `pid` and `tid`."""
    args: list[Any]
    """Arguments of each event; empty for tables that need none."""

    def number(self, attribute: str) -> I64:
        """Return an attribute as whole numbers."""
        return column(self.events if attribute in ("pid", "tid") else self.args, attribute)

    def text(self, attribute: str) -> list[str]:
        """Return an attribute as texts."""
        values = map(attrgetter(attribute), self.args)
        return [decoded_text(value) if isinstance(value, Raw) else value for value in values]

    def processes(self) -> set[int | str]:
        """Return the events' processes."""
        return {event.pid for event in self.events}

    def take(self, rows: Index) -> DecodedArguments:
        """Return the arguments of some of the rows."""
        chosen = rows.tolist()
        return DecodedArguments([self.events[row] for row in chosen], [self.args[row] for row in chosen])


def column(items: list[Any], attribute: str) -> I64:
    """Return an attribute of each item as whole numbers; of a text, the number in it."""
    try:
        # Unlike numpy, it takes no text such as `1_0` for a number.
        return np.array(array("q", list(map(attrgetter(attribute), items))), dtype=np.int64)
    except (TypeError, OverflowError):
        return np.array([number(getattr(item, attribute)) for item in items], dtype=np.int64)


def number(identity: int | str) -> int:
    """Return a process or thread id in 64 bits: 7 for `stream 7` or `[TP00] 7`; -1 where there is none."""
    if isinstance(identity, int):
        return _wrapped(identity)
    digits = identity.strip().rpartition(" ")[2]
    return _wrapped(int(digits)) if digits.isascii() and digits.isdigit() and len(digits) < 20 else -1


def _wrapped(value: int) -> int:
    """Return an unsigned 64-bit id with its bits unchanged, and -1 for a longer number."""
    if -(1 << 63) <= value < 1 << 63:
        return value
    return value - (1 << 64) if 0 <= value < 1 << 64 else -1
