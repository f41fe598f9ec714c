"""Store of the history: a SQLite file with packed entries, and their figures in tables for queries.

Files with another schema are not changed.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import msgspec

from overlapscope.base import disk
from overlapscope.base.bounded_database import BoundedConnection
from overlapscope.base.saved import Instant, Quantity
from overlapscope.base.words import clean
from overlapscope.budgets.verdicts import Outcome
from overlapscope.errors import NotInTrace, UsageError
from overlapscope.plugins.history.entry import Entry, EntryId, Ordinal, pack, unpack
from overlapscope.plugins.history.stored import default_path
from overlapscope.report.origin import Origin

# -- File --------------------------------------------------------------------------------------------

_APPLICATION: Final = 0x4F564C53
"""`OVLS`, the application id that SQLite and `file` show."""
_PATIENCE_S: Final = 20.0
"""Time to wait for another process to finish writing, in seconds."""
_AGAIN_S: Final = 0.01
_BESIDE: Final = ("-wal", "-shm", "-journal")
"""Endings of the files that SQLite makes beside the database."""

_VERSION: Final = 2
_SCHEMA: Final = """
    CREATE TABLE reports (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, at_ns INTEGER NOT NULL, job TEXT NOT NULL,
        commit_id TEXT, branch TEXT, host TEXT, labels TEXT NOT NULL, plain INTEGER NOT NULL, gpu TEXT, outcome TEXT);
    CREATE INDEX reports_by_time ON reports (at_ns);
    CREATE TABLE entries (report INTEGER PRIMARY KEY, packed BLOB NOT NULL);
    CREATE TABLE metrics (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
    CREATE TABLE figures (
        metric INTEGER NOT NULL, report INTEGER NOT NULL, rank INTEGER NOT NULL, device INTEGER NOT NULL,
        value REAL NOT NULL, spread REAL, samples INTEGER NOT NULL, floor REAL NOT NULL,
        PRIMARY KEY (metric, report, rank, device)) WITHOUT ROWID"""
"""Statements that create the schema. `figures` is stored by metric, because queries read one metric of all reports."""


def connect(path: Path, *, read_only: bool, alone: bool = False) -> sqlite3.Connection:
    """Open the file, and create it unless it is to be read only.

    Args:
        path: The file.
        read_only: Whether to only read.
        alone: Whether to assume that no other process writes to the file.

    Returns:
        The connection, which interrupts statements that take too long for the file's size.

    Raises:
        UsageError: There is no such file, it can't be opened, or a link or pipe is in its place.
        sqlite3.Error: SQLite can't open the file.
    """
    try:
        # A regular file may be shared on purpose, but SQLite also trusts the files beside it.
        for suffix in (*([""] if path.is_symlink() else []), *_BESIDE):
            disk.refuse_planted(f"{path}{suffix}")
        if not read_only:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Other users may read names of branches and hosts only if this user changes the permissions.
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        elif not path.is_file():
            raise UsageError(
                f"{path}: there is no history yet; `overlapscope history add` and `overlapscope.watch` write one."
            )
    except OSError as error:
        raise UsageError(
            f"{path}: the history cannot be opened ({error.strerror or error}); choose another file."
        ) from None
    if os.path.islink(wal := f"{os.path.realpath(path)}-wal"):
        raise UsageError(f"{path}: {os.path.basename(wal)} beside it is a link, which SQLite never makes; remove it.")
    mode = "ro" if read_only else "rw"
    if read_only and (alone or (is_at_rest(path) and not os.access(path.parent, os.W_OK))):
        # Otherwise SQLite would create files beside the database to detect writers, and leave them there.
        mode = "ro&immutable=1"
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=_PATIENCE_S,
        isolation_level=None,
        factory=BoundedConnection,
    )
    files = (path, Path(f"{os.path.realpath(path)}-wal"))
    connection.bound(lambda: sum(file.stat().st_size for file in files if file.exists()))
    return connection


def is_at_rest(path: Path) -> bool:
    """Return whether no process has the file open for writing, so that it contains everything written."""
    return not os.path.lexists(f"{os.path.realpath(path)}-wal")


def changed(path: Path) -> object:
    """Return a value that changes if a process writes to the file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def prepare(path: Path, connection: sqlite3.Connection, *, read_only: bool) -> None:
    """Create the schema, if there is none. Raises UsageError if that is impossible."""
    if not _exists(path, connection):
        if read_only:
            raise UsageError(f"{path}: there is no history in this file yet; `overlapscope history add` makes one.")
        _write_ahead(connection)
        connection.execute("BEGIN EXCLUSIVE")
        # Another process may have created it meanwhile.
        if not _exists(path, connection):
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
            connection.execute(f"PRAGMA application_id = {_APPLICATION}")
        connection.execute("COMMIT")
    if not read_only:
        connection.execute("PRAGMA synchronous = NORMAL")


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch to WAL. SQLite itself doesn't wait if another process does the same at the moment."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        time.sleep(_AGAIN_S)


def _exists(path: Path, connection: sqlite3.Connection) -> bool:
    """Return whether the file has the schema; False for an empty file. Raises UsageError for any other schema."""
    # One statement, because another process may be creating the schema at the moment.
    found = connection.execute(
        "SELECT application_id, user_version, sql FROM pragma_application_id, pragma_user_version "
        "LEFT JOIN sqlite_master ON sql IS NOT NULL ORDER BY sql"
    ).fetchall()
    application: int
    version: int
    application, version, first = found[0]
    if application != _APPLICATION and first is not None:
        raise UsageError(f"{path}: is a database of another program, and was not changed; choose another file.")
    exists = application == _APPLICATION or version != 0
    if exists and (
        version != _VERSION or [statement for *_, statement in found] != sorted(map(str.strip, _SCHEMA.split(";")))
    ):
        raise UsageError(
            f"{path}: is a history of another version of overlapscope, or another program changed its tables; choose "
            "another file, and add the reports again. The file was not changed."
        )
    return exists


@contextmanager
def in_words(path: Path) -> Iterator[None]:
    """Turn errors of SQLite, and values of wrong types in a damaged file, into UsageError with a sentence."""
    try:
        yield
    # Python can't decode SQLite's message about a file whose text isn't UTF-8.
    except (sqlite3.Error, UnicodeDecodeError, msgspec.DecodeError) as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        problem = _WORDS.get(code, "the history cannot be read or written ({error})").format(
            error=clean(str(error), 200)
        )
        raise UsageError(f"{path}: {problem}.") from None


_WORDS: Final = {
    sqlite3.SQLITE_BUSY: "another process keeps writing to the history; try again",
    sqlite3.SQLITE_NOTADB: "is not a history of overlapscope, and was not changed; choose another file",
    sqlite3.SQLITE_CORRUPT: "the history is damaged ({error}); keep a copy, and recover it with "
    "`sqlite3 FILE .recover`, or choose another file",
    sqlite3.SQLITE_INTERRUPT: "the history is damaged (its tables have more rows than it can hold); choose "
    "another file",
    sqlite3.SQLITE_FULL: "the disk is full, so the history was not changed; free some space",
    sqlite3.SQLITE_IOERR: "the disk is full or doesn't work, so the history can be neither read nor changed ({error}); "
    "free some space, or choose another file",
    sqlite3.SQLITE_READONLY: "the history is read-only, and was not changed; choose another file",
}
"""Problems by SQLite's error code. Other errors are quoted."""


_NO_RANK: Final = -1

Made = TypeVar("Made")


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Filter of reports; None matches all. `commit` may be the beginning of a commit."""

    job: str | None = None
    branch: str | None = None
    commit: str | None = None
    since_ns: int | None = None
    """First matching time, in nanoseconds since 1970. `until_ns` is the first time after it that doesn't match."""
    until_ns: int | None = None
    plain: bool | None = None


EVERYTHING: Final = Query()


class HistoryRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Fields of an entry that are known without unpacking it."""

    id: EntryId
    origin: Origin
    plain: bool
    gpu: str | None
    outcome: Outcome | None
    """Outcome of its check; None without a check."""


class Point(msgspec.Struct, frozen=True, gc=False):
    """A metric of a device in a report, with the fields of `Entry`, `Origin` and `HistoryFigure`."""

    id: EntryId
    at_ns: Instant
    commit: str | None
    gpu: str | None
    rank: Ordinal | None
    device: Ordinal
    value: Quantity
    spread: Quantity | None
    samples: Ordinal
    floor: Quantity
    plain: bool


class Store:
    """An open store. Several processes may read and write it at once, and each write is atomic.

    Every method raises UsageError if the file can't be read or written.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    @classmethod
    @contextmanager
    def open(
        cls, path: str | Path | None = None, *, read_only: bool = False, traceless: bool = False
    ) -> Iterator[Self]:
        """Open the store in a file, by default the user's, and create it unless it is to be read only.

        Args:
            path: The file.
            read_only: Whether to only read.
            traceless: Whether to create no file beside it. SQLite would use one to detect writers. Without it, a write
                by another process in the meantime is an error.

        Yields:
            The store, which is closed when the block ends.

        Raises:
            UsageError: The file can't be opened, is not a history, has another version, or was changed in the
                meantime (`traceless`).
        """
        place = default_path() if path is None else Path(path)
        before = changed(place)
        alone = read_only and traceless and is_at_rest(place)
        try:
            with in_words(place), closing(connect(place, read_only=read_only, alone=alone)) as connection:
                connection.execute("PRAGMA trusted_schema = OFF")
                prepare(place, connection, read_only=read_only)
                yield cls(place, connection)
        finally:
            if alone and changed(place) != before:
                raise UsageError(f"{place}: another process wrote to the history in the meantime; try again.")

    # -- Writing --------------------------------------------------------------------------------

    def add(self, entry: Entry) -> bool:
        """Add an entry. Return False if the store already has it with as much information about its check."""
        with self._writing() as execute:
            stored = execute("SELECT number, outcome FROM reports WHERE id = ?", (entry.id,)).fetchone()
            if stored is not None:
                if entry.check is None or stored[1] is not None:
                    return False
                self._remove(stored[0])
            origin = entry.origin
            number = execute(
                "INSERT INTO reports (id, at_ns, job, commit_id, branch, host, labels, plain, gpu, outcome) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(entry.id, origin.at_ns, origin.job, origin.commit, origin.branch, origin.host),
                    json.dumps(origin.labels, sort_keys=True),
                    *(entry.plain, entry.gpu, entry.check and entry.check.outcome),
                ),
            ).lastrowid
            execute("INSERT INTO entries VALUES (?, ?)", (number, pack(entry)))
            for name in dict.fromkeys(figure.metric for figure in entry.figures):
                execute("INSERT OR IGNORE INTO metrics (name) VALUES (?)", (name,))
            for figure in entry.figures:
                execute(
                    "INSERT INTO figures SELECT number, ?, ?, ?, ?, ?, ?, ? FROM metrics WHERE name = ?",
                    (
                        *(number, _NO_RANK if figure.rank is None else figure.rank, figure.device),
                        *(figure.value, figure.spread, figure.samples, figure.floor, figure.metric),
                    ),
                )
        return True

    def delete(self, ids: Sequence[str]) -> int:
        """Delete entries, and return how many existed."""
        with self._writing() as execute:
            numbers = [row[0] for id in ids for row in execute("SELECT number FROM reports WHERE id = ?", (id,))]
            for number in numbers:
                self._remove(number)
        return len(numbers)

    def compact(self) -> None:
        """Free the disk space of deleted entries."""
        with in_words(self.path):
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _remove(self, number: int) -> None:
        execute = self._connection.execute
        execute("DELETE FROM figures WHERE metric IN (SELECT number FROM metrics) AND report = ?", (number,))
        for table, column in (("entries", "report"), ("reports", "number")):
            execute(f"DELETE FROM {table} WHERE {column} = ?", (number,))

    @contextmanager
    def _writing(self) -> Iterator[Any]:
        with in_words(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection.execute
            except BaseException:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    # -- Reading --------------------------------------------------------------------------------

    def rows(self, query: Query = EVERYTHING, *, most: int | None = None) -> list[HistoryRow]:
        """Return the matching entries, oldest first; with `most`, only that many of the newest."""
        where, values = _where(query)
        entries = self._read(
            "SELECT id, at_ns, job, commit_id AS 'commit', branch, host, CAST(labels AS TEXT) AS labels, plain, gpu, "
            f"outcome FROM reports AS r WHERE {where} ORDER BY at_ns DESC, id DESC LIMIT ?",
            (*values, -1 if most is None else most),
            dict[str, Any],
        )
        with in_words(self.path):
            origins = [row | {"labels": msgspec.json.decode(row["labels"] or "")} for row in entries]
            rows = [row | {"origin": origin} for row, origin in zip(entries, origins, strict=True)]
            return msgspec.convert(rows[::-1], list[HistoryRow], strict=False)

    def points(self, metric: str, query: Query = EVERYTHING) -> list[Point]:
        """Return a metric's values in the matching reports, oldest first, then by rank and device."""
        where, values = _where(query)
        return self._read(
            "SELECT r.id, r.at_ns, r.commit_id AS 'commit', r.gpu, nullif(f.rank, -1) AS rank, "
            "f.device, f.value, f.spread, f.samples, f.floor, r.plain "
            "FROM reports AS r CROSS JOIN figures AS f ON r.number = f.report "
            f"WHERE f.metric = (SELECT number FROM metrics WHERE name = ?) AND {where} "
            "ORDER BY r.at_ns, r.id, f.rank, f.device",
            (metric, *values),
            Point,
        )

    def metrics(self) -> list[str]:
        """Return the metrics that have figures."""
        return [row["name"] for row in self._read("SELECT name FROM metrics ORDER BY number", (), dict[str, str])]

    def jobs(self) -> list[str]:
        """Return the jobs, the most recent first."""
        query = "SELECT job FROM reports GROUP BY job ORDER BY max(at_ns) DESC, job"
        return [row["job"] for row in self._read(query, (), dict[str, str])]

    def entry(self, id: str) -> Entry:
        """Return an entry by its id, or by the beginning of it.

        Raises:
            NotInTrace: No entry or several entries match.
            UnreadableTrace: The entry is from an incompatible version.
        """
        matches = self._read(
            # Ids are hexadecimal, and "g" sorts after all hexadecimal digits.
            "SELECT id, CAST(packed AS BLOB) AS packed FROM reports JOIN entries ON report = number "
            "WHERE id >= ? AND id < ? || 'g' LIMIT 2",
            (id, id),
            dict[str, Any],
        )
        if len(matches) != 1 or not id:
            which = "several entries begin" if matches else "no entry begins"
            raise NotInTrace(f"{self.path}: {which} with {clean(id, 80)!r}; `overlapscope history` lists them.")
        [row] = matches
        return unpack(row["packed"] or b"", f"{self.path}: {clean(row['id'], 80)}")

    def ids(self) -> frozenset[str]:
        """Return the ids of all entries."""
        return frozenset(row["id"] for row in self._read("SELECT id FROM reports", (), dict[str, EntryId]))

    def _read(self, query: str, values: Sequence[Any], of: type[Made]) -> list[Made]:
        """Return the rows of a query, each converted to a type by the names of its columns.

        A file that another program changed can hold values of any type in any column.
        """
        with in_words(self.path):
            cursor = self._connection.execute(query, values)
            names = [column[0] for column in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
            return msgspec.convert(rows, list[of], strict=False)  # type: ignore[valid-type]


def _where(query: Query) -> tuple[str, list[Any]]:
    """Return the SQL condition on a report `r`, and its values."""
    # Commits are compared as bytes, because SQLite's text functions stop at the first NUL.
    conditions: dict[str, Any] = {
        "r.job = ?": query.job,
        "r.branch = ?": query.branch,
        "r.plain = ?": query.plain,
        "instr(CAST(r.commit_id AS BLOB), ?) = 1": None if query.commit is None else query.commit.encode(),
        "r.at_ns >= ?": query.since_ns,
        "r.at_ns < ?": query.until_ns,
    }
    given = {condition: value for condition, value in conditions.items() if value is not None}
    return " AND ".join(["1", *given]), [*given.values()]
