"""An exported database as columns of integers and names.

The file is not trusted. It is opened read-only and immutable, and only its plain tables are read, by queries that name
their columns. Any error of SQLite becomes one sentence.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from overlapscope.base import disk
from overlapscope.base.bounded_database import BoundedConnection, is_endless
from overlapscope.base.words import clean
from overlapscope.errors import UnreadableTrace
from overlapscope.reading._events import Numbered
from overlapscope.reading.pipes import named_in_directory
from overlapscope.trace.model import I32, I64

_PLAIN_TABLE: Final = re.compile(r"\s*create\s+table\b", re.IGNORECASE)
_LONGEST_VALUE_BYTES: Final = 16 << 20
_MIN_ROW_BYTES: Final = 5
"""Bytes of a row besides its values: its place in the page, its length, its number and the length of its head."""
_ROWS_PER_BATCH: Final = 1 << 16
"""Number of rows to convert to columns at once."""
_MAX_READINGS: Final = 4
"""Maximum number of times that a row is read."""
_MAX_TEXT_RATIO: Final = 8
"""Maximum length of the numbers of a file as text, as a multiple of its size."""
THREAD_MASK: Final = 0xFFFFFF
"""Bits of a serialized id that hold the thread's number; higher bits hold the process."""

Columns = dict[str, I64]


class Database:
    """The tables of a file. All methods raise UnreadableTrace where the file is damaged."""

    def __init__(self, path: Path, shown: Path) -> None:
        """Open the file; messages show the path `shown`."""
        self.path, self.shown = path, shown
        self.process: int | None = None
        """Serialized id of the only process whose rows are read; None to read those of all."""
        self._progress: Callable[[int], object] = lambda rows: None
        wal = path.with_name(f"{path.name}-wal")
        # Links are not resolved, because they may lead out of the readable directories.
        if disk.may_be_file(wal) and wal.lstat().st_size:
            raise UnreadableTrace(
                shown,
                f"{wal.name} beside it holds changes that are not in the file yet; close the program that "
                f"writes it, or run `sqlite3 {path.name} 'PRAGMA wal_checkpoint(TRUNCATE)'`.",
            )
        with self._errors(), disk.open_source(path) as file:
            packed = file.read(4).startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd"))
        if packed:
            raise UnreadableTrace(shown, "the database is compressed; unpack it first, for example with `gunzip -k`.")
        with self._errors(), named_in_directory(path) as name:
            self._connection = sqlite3.connect(
                f"file:{quote(os.fsencode(name.absolute()))}?mode=ro&immutable=1", uri=True, factory=BoundedConnection
            )
            size = path.stat().st_size
            self._rows_read, self._most_rows = 0, _MAX_READINGS * size // _MIN_ROW_BYTES
            self._connection.bound(lambda: size, together=True)
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, min(_LONGEST_VALUE_BYTES, _MAX_TEXT_RATIO * size))
            self._connection.setlimit(sqlite3.SQLITE_LIMIT_ATTACHED, 0)
            # Text stays bytes here, because each distinct text is decoded only once later.
            self._connection.text_factory = bytes
            self._query("PRAGMA query_only = 1")
            self._query("PRAGMA trusted_schema = 0")
            named = self._query("SELECT name, sql FROM sqlite_schema WHERE type = 'table'")
            self.columns: dict[str, frozenset[str]] = {
                name: frozenset(row[1] for row in self._query(f"PRAGMA table_info({_quoted(name)})"))
                for name, sql in named
                if isinstance(sql, str) and _PLAIN_TABLE.match(sql)
            }
            """Columns of each table."""

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def listen(self, progress: Callable[[int], object]) -> None:
        """Call `progress` with the number of rows read so far."""
        self._progress = progress

    def require(self, table: str, *columns: str) -> None:
        """Check that a table has some columns, if it exists.

        Raises:
            UnreadableTrace: A column is missing.
        """
        missing = [column for column in columns if column not in self.columns.get(table, columns)]
        if missing:
            raise UnreadableTrace(
                self.shown,
                f"its table {table} has no column {', '.join(missing)}; export the report again with "
                "a current `nsys export --type sqlite`.",
            )

    def rows(self, table: str) -> int:
        """Return the number of rows of a table or more, from its last row id."""
        if table not in self.columns:
            return 0
        with self._errors():
            return int(self._query(f"SELECT max(rowid) FROM {_quoted(table)}")[0][0] or 0)

    def of_process(self, table: str) -> str:
        """Return the SQL condition for the rows of the process; for all rows where the table does not state processes.

        Rows of the host state a thread, those of the device a process.
        """
        columns = self.columns.get(table, frozenset())
        if self.process is not None and "globalTid" in columns:
            return f"globalTid BETWEEN {self.process} AND {self.process | THREAD_MASK}"
        return f"globalPid = {self.process}" if self.process is not None and "globalPid" in columns else "true"

    def integers(self, table: str, columns: Sequence[str], where: str | None = None) -> Columns:
        """Return columns of a table in the order of its rows; -1 for NULL and for columns that the table lacks.

        Args:
            table: The table.
            columns: The columns.
            where: SQL condition of the rows, by default that of the process.
        """
        existing = [column for column in columns if column in self.columns.get(table, frozenset())]
        count, *arrays = self._read(table, ["0", *(f"ifnull({_quoted(column)}, -1)" for column in existing)], where)
        none = np.full(len(count), -1, np.int64)
        return {column: arrays[existing.index(column)] if column in existing else none for column in columns}

    def texts(self, table: str, expression: str, number: Callable[[str], int], where: str) -> I32:
        """Return a number for the text of an expression in each row; `number` is called once for each distinct text."""
        self._connection.create_function("number", 1, _Numbers(number).__getitem__, deterministic=True)
        return self._read(table, [f"number(CAST({expression} AS BLOB))"], where)[0].astype(np.int32)

    def _read(self, table: str, expressions: Sequence[str], where: str | None) -> list[I64]:
        """Return expressions of whole numbers in the order of a table's rows; none for a table that is missing.

        SQLite joins the numbers to a text, which numpy reads. Taking each from a row would take three times as long.

        Raises:
            UnreadableTrace: An expression is not a whole number.
        """
        parts: list[list[I64]] = [[np.empty(0, np.int64)] for _ in expressions]
        if table in self.columns:
            names = [f"c{number}" for number in range(len(expressions))]
            chosen = ", ".join(f"{expression} AS {name}" for expression, name in zip(expressions, names, strict=True))
            joined = ", ".join(f"group_concat({name})" for name in names)
            odd = " + ".join(f"(typeof({name}) <> 'integer')" for name in names)
            query = (
                f"SELECT max(row), count(*), total({odd}), {joined} FROM (SELECT rowid AS row, {chosen} "
                f"FROM {_quoted(table)} WHERE {where or self.of_process(table)} AND rowid > ? "
                f"ORDER BY rowid LIMIT {_ROWS_PER_BATCH})"
            )
            last = -(1 << 63)
            while True:
                with self._errors():
                    last, count, odd_values, *texts = self._connection.execute(query, (last,)).fetchone()
                if not count:
                    break
                if odd_values:
                    raise UnreadableTrace(
                        self.shown,
                        f"its table {table} holds something else than whole numbers; export the report again.",
                    )
                for part, text in zip(parts, texts, strict=True):
                    part.append(np.fromstring(text, np.int64, sep=","))
                self._count(count)
        return list(map(_joined, parts))

    def stated(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        """Return some columns of a small table; none where it lacks one."""
        return self._chosen("", table, columns, "")

    def distinct(self, table: str, *columns: str, first: bool = False) -> list[tuple[int, ...]]:
        """Return the distinct rows of some columns, or only the `first`; none where the table lacks a column."""
        rows = self._chosen("DISTINCT", table, columns, "LIMIT 1" if first else "")
        return [row for row in rows if all(isinstance(value, int) for value in row)]

    def _chosen(self, which: str, table: str, columns: Sequence[str], limit: str) -> list[tuple[Any, ...]]:
        if not {*columns} <= self.columns.get(table, frozenset()):
            return []
        with self._errors():
            return self._query(f"SELECT {which} {', '.join(map(_quoted, columns))} FROM {_quoted(table)} {limit}")

    def string(self, id: int) -> str:
        """Return a string of the table of distinct strings; empty where it lacks the id."""
        return _decoded(self._strings.get(id) or b"")

    def named(self, names: Numbered, ids: I64, shown: Callable[[str], str] = str) -> I32:
        """Return the numbers in `names` of strings that are stored by id; `shown` converts the strings to names."""
        distinct, back = np.unique(ids, return_inverse=True)
        numbers = [names[shown(self.string(id)) or "unnamed"] for id in distinct.tolist()]
        return np.array(numbers, np.int32)[back]

    @cached_property
    def _strings(self) -> dict[int, bytes | None]:
        """All strings by id. The table is read once, because it need not have a key to find a string by."""
        self.require("StringIds", "id", "value")
        strings: dict[int, bytes | None] = {}
        with self._errors():
            cursor = self._connection.execute("SELECT id, CAST(value AS TEXT) FROM StringIds")
            while rows := cursor.fetchmany(_ROWS_PER_BATCH):
                strings.update(rows)
                self._count(len(rows))
        return strings

    def _count(self, rows: int) -> None:
        self._rows_read += rows
        if self._rows_read > self._most_rows:
            raise self._endless()
        self._progress(self._rows_read)

    def _query(self, query: str) -> list[tuple[Any, ...]]:
        rows = self._connection.execute(query).fetchall()
        return [tuple(_decoded(value) if isinstance(value, bytes) else value for value in row) for row in rows]

    def _endless(self) -> UnreadableTrace:
        return UnreadableTrace(
            self.shown,
            "the database is damaged: its pages refer to each other, so that its tables have more rows "
            "than it can hold; copy or export the report again.",
        )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OverflowError, MemoryError, UnicodeDecodeError) as error:
            if is_endless(error):
                raise self._endless() from None
            # In a damaged database, the names of columns in SQLite's message may not be text.
            raise UnreadableTrace(
                self.shown, f"the database cannot be read ({clean(str(error), 200)}); copy or export the report again."
            ) from None


class _Numbers(dict[bytes, int]):
    """Numbers of texts; the number of each distinct text is computed once."""

    def __init__(self, number: Callable[[str], int]) -> None:
        self._number = number

    def __missing__(self, text: bytes) -> int:
        number = self[text] = self._number(_decoded(text))
        return number


def _joined(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the parts as a single array, and empty the list, so that a large table is not held twice."""
    array = np.concatenate(parts)
    parts.clear()
    return array


def _decoded(text: bytes) -> str:
    """Return the text in any bytes, because a name need not be valid."""
    return text.decode("utf-8", "backslashreplace")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
