"""A connection to an SQLite file that limits statements, because a damaged or crafted file can hold endless tables."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Final

_INSTRUCTIONS_PER_CHECK: Final = 10_000
"""Number of SQLite's virtual machine instructions between two checks of the limit."""
_MIN_INSTRUCTIONS: Final = 1_000_000
_PER_BYTE: Final = 32
"""Maximum instructions per byte of the file. A statement on a history needs up to 0.2, and so do all statements that
read a report of Nsight Systems."""


class BoundedConnection(sqlite3.Connection):
    """Connection that interrupts work which takes more instructions than the file's size explains.

    The limit holds once `bound` was called. SQLite follows pages that refer to the same page again and again, and views
    without an end.
    """

    def bound(self, size_bytes: Callable[[], int], *, together: bool = False) -> None:
        """Limit each later statement, or all of them `together`, by the size of the file."""
        self._executed = 0
        self._together = together

        def look() -> bool:
            self._executed += _INSTRUCTIONS_PER_CHECK
            return self._executed > _MIN_INSTRUCTIONS + _PER_BYTE * size_bytes()

        self.set_progress_handler(look, _INSTRUCTIONS_PER_CHECK)

    def execute(self, *statement: Any) -> sqlite3.Cursor:
        """Execute a statement, and restart the count of instructions if each statement has its own."""
        if not self._together:
            self._executed = 0
        return super().execute(*statement)


def is_endless(error: BaseException) -> bool:
    """Return whether a statement was interrupted for the number of its instructions."""
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT
