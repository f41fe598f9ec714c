"""String table of a Trace under construction."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from overlapscope.plugins.nsys.database import Database
from overlapscope.trace.model import I32, I64


class Names:
    """Distinct names, numbered in the order of appearance."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        """Return the number of a name."""
        return self._numbers.setdefault(name, len(self._numbers))

    def of_ids(self, ids: I64, shown: Callable[[str], str] = str) -> I32:
        """Return the numbers of strings that the database stores by id; `shown` converts the strings to names."""
        distinct, back = np.unique(ids, return_inverse=True)
        numbers = [self.number(shown(self._database.string(id)) or "unnamed") for id in distinct.tolist()]
        return np.array(numbers, np.int32)[back] if numbers else np.empty(0, np.int32)

    def numbers(self, prefix: str) -> list[int]:
        """Return the numbers of all names with a prefix."""
        return [number for name, number in self._numbers.items() if name.startswith(prefix)]

    def all(self) -> tuple[str, ...]:
        """Return the string table."""
        return tuple(self._numbers)
