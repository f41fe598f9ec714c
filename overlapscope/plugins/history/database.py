"""SQLite file of a history: opening, schema, and errors about files that can't be used.

Files with another schema are not changed.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from overlapscope.base import disk
from overlapscope.base.bounded_database import BoundedConnection
from overlapscope.base.words import clean
from overlapscope.errors import UsageError

_APPLICATION: Final = 0x4F564C53
"""`OVLS`, the application id that SQLite and `file` show."""
_PATIENCE_S: Final = 20.0
"""Time to wait for another process to finish writing, in seconds."""
_AGAIN_S: Final = 0.01
_BESIDE: Final = ("-wal", "-shm", "-journal")
"""Endings of the files that SQLite makes beside the database."""

_VERSION: Final = 1
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
        PRIMARY KEY (metric, report, rank, device)) WITHOUT ROWID;
    CREATE TABLE predictions (
        at_ns INTEGER NOT NULL, program TEXT NOT NULL, device TEXT, change TEXT NOT NULL,
        predicted_pct REAL NOT NULL, low_pct REAL NOT NULL, high_pct REAL NOT NULL,
        measured_pct REAL NOT NULL, measured_low_pct REAL, measured_high_pct REAL,
        UNIQUE (at_ns, program, change))
"""
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
