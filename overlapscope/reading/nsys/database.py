"""An exported database as columns of integers and names.

It is a file like any other, so nothing in it is trusted: it is opened read-only and immutable, only its own plain
tables are read, by queries that name their columns, and whatever SQLite finds wrong with it becomes one sentence.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np

from overlapscope.errors import UnreadableTrace
from overlapscope.trace.model import I32, I64

_PLAIN_TABLE: Final = re.compile(r"\s*create\s+table\b", re.IGNORECASE)
_LONGEST_VALUE_BYTES: Final = 16 << 20
_ROWS: Final = 1 << 16
"""Rows that are made columns at once."""

Columns = dict[str, I64]


class Database:
    """The tables of one file. Everything raises UnreadableTrace where the file is damaged."""

    def __init__(self, path: Path, shown: Path) -> None:
        """`shown` is the path that messages name."""
        self._shown = shown
        self._progress: Callable[[int], object] = lambda rows: None
        wal = path.with_name(f"{path.name}-wal")
        if wal.is_file() and wal.stat().st_size:
            raise UnreadableTrace(
                f"{shown}: {wal.name} beside it holds changes that are not in the file yet; close the program that "
                f"writes it, or run `sqlite3 {path.name} 'PRAGMA wal_checkpoint(TRUNCATE)'`."
            )
        with self._errors():
            self._connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True)
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE_BYTES)
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            # Text of any bytes is taken: a name need not be valid.
            self._connection.text_factory = lambda text: text.decode("utf-8", "backslashreplace")
            self._query("PRAGMA query_only = 1")
            self._query("PRAGMA trusted_schema = 0")
            named = self._query("SELECT name, sql FROM sqlite_schema WHERE type = 'table'")
            self.columns: dict[str, frozenset[str]] = {
                name: frozenset(row[1] for row in self._query(f"PRAGMA table_info({_quoted(name)})"))
                for name, sql in named
                if isinstance(sql, str) and _PLAIN_TABLE.match(sql)
            }
            """Of each table."""

    def close(self) -> None:
        """Ends the reading."""
        self._connection.close()

    def listen(self, progress: Callable[[int], object]) -> None:
        """`progress` is told of rows as they are read."""
        self._progress = progress

    def require(self, table: str, *columns: str) -> None:
        """Raises UnreadableTrace where a table that is there lacks one of the columns."""
        missing = [column for column in columns if column not in self.columns[table]]
        if missing:
            raise UnreadableTrace(
                f"{self._shown}: its table {table} has no column {', '.join(missing)}; export the report again with "
                "a current `nsys export --type sqlite`."
            )

    def rows(self, table: str) -> int:
        """How many rows a table has at most: tables are appended to."""
        if table not in self.columns:
            return 0
        with self._errors():
            return int(self._query(f"SELECT max(rowid) FROM {_quoted(table)}")[0][0] or 0)

    def integers(self, table: str, columns: Sequence[str], where: str = "") -> Columns:
        """Columns of a table, in the order of its rows; -1 for NULL, and where the table has no such column."""
        if table not in self.columns:
            return {column: np.empty(0, np.int64) for column in columns}
        there = [column for column in columns if column in self.columns[table]]
        chosen = ", ".join(f"ifnull({_quoted(column)}, -1)" for column in there) or "1"
        width = max(len(there), 1)
        blocks = []
        for rows in self._blocks(f"SELECT {chosen} FROM {_quoted(table)} {where}"):
            try:
                blocks.append(np.fromiter(chain.from_iterable(rows), np.int64, width * len(rows)).reshape(-1, width))
            except (ValueError, TypeError, OverflowError):
                raise UnreadableTrace(
                    f"{self._shown}: its table {table} holds something else than whole numbers in one of "
                    f"{', '.join(there)}; export the report again."
                ) from None
        table_of = np.concatenate(blocks) if blocks else np.empty((0, width), np.int64)
        blocks.clear()
        none = np.full(len(table_of), -1, np.int64)
        return {column: table_of[:, there.index(column)].copy() if column in there else none for column in columns}

    def texts(self, table: str, expression: str, number: Callable[[str], int], where: str = "") -> I32:
        """The text in each row of a table, in the order of its rows, as `number` numbers it."""
        blocks = self._blocks(f"SELECT {expression} FROM {_quoted(table)} {where}")
        return np.fromiter((number(str(text)) for rows in blocks for (text,) in rows), np.int32)

    def distinct(self, table: str, *columns: str, first: bool = False) -> list[tuple[Any, ...]]:
        """The rows of some columns, each once, or the `first` alone; none where the table has not all of them."""
        if not {*columns} <= self.columns.get(table, frozenset()):
            return []
        chosen = ", ".join(map(_quoted, columns))
        with self._errors():
            found = self._query(f"SELECT DISTINCT {chosen} FROM {_quoted(table)} {'LIMIT 1' if first else ''}")
        return [row for row in found if all(isinstance(value, int) for value in row)]

    def string(self, id: int) -> str:
        """A string of the table that keeps each once; empty where it has none of that id."""
        with self._errors():
            found = self._connection.execute("SELECT value FROM StringIds WHERE id = ?", (id,)).fetchone()
        return str(found[0]) if found else ""

    def pairs(self, table: str, key: str, value: str) -> list[tuple[Any, Any]]:
        """Two columns of a small table; none where it has not both."""
        if not {key, value} <= self.columns.get(table, frozenset()):
            return []
        with self._errors():
            return self._query(f"SELECT {_quoted(key)}, {_quoted(value)} FROM {_quoted(table)}")

    def _blocks(self, query: str) -> Iterator[list[tuple[Any, ...]]]:
        with self._errors():
            cursor = self._connection.execute(query)
            while rows := cursor.fetchmany(_ROWS):
                yield rows
                self._progress(len(rows))

    def _query(self, query: str) -> list[tuple[Any, ...]]:
        return self._connection.execute(query).fetchall()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OverflowError, MemoryError) as error:
            raise UnreadableTrace(
                f"{self._shown}: the database cannot be read ({error}); copy or export the report again."
            ) from None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
