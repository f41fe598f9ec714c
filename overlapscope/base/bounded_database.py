"""A connection to an SQLite file whose statements end: a damaged or prepared file can hold tables without an end."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, Final

_EVERY: Final = 10_000
"""Instructions of SQLite's virtual machine after which they are counted."""
_LEAST: Final = 1_000_000
_PER_BYTE: Final = 32
"""Limit for one statement. Those that read histories and reports of Nsight Systems take up to 0.2 per byte."""


class BoundedConnection(sqlite3.Connection):
    """Interrupts each statement that takes more instructions than the file's size explains, once `bound` was called.

    SQLite follows pages that refer to the same page again and again, and views without an end.
    """

    def bound(self, size_bytes: Callable[[], int]) -> None:
        """Interrupt statements that are executed later, by the size of the file."""
        self._executed = 0

        def look() -> bool:
            self._executed += _EVERY
            return self._executed > _LEAST + _PER_BYTE * size_bytes()

        self.set_progress_handler(look, _EVERY)

    def execute(self, *statement: Any) -> sqlite3.Cursor:
        """Execute a statement, which begins to count anew."""
        self._executed = 0
        return super().execute(*statement)


def is_endless(error: BaseException) -> bool:
    """Return whether a statement was interrupted for the number of its instructions."""
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_INTERRUPT
