"""The SQLite file of a store: how it is opened, its schema, and what is said of a file that cannot serve as one.

The schema has a version. A file of an older one is brought up to date when it is opened for writing; of a newer one
nothing is touched.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from overlapscope.base.bounded_database import BoundedConnection
from overlapscope.base.words import clean
from overlapscope.errors import UsageError

_APPLICATION: Final = 0x4F564C53
"""`OVLS`, by which SQLite and `file` know whose file it is."""
HEAD_BYTES: Final = 72
"""By which a history is told."""
_PATIENCE_S: Final = 20.0
"""How long another process' write is waited for."""
_AGAIN_S: Final = 0.01

_VERSIONS: Final = (
    """
    CREATE TABLE reports (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, at_ns INTEGER NOT NULL, job TEXT NOT NULL,
        commit_id TEXT, branch TEXT, host TEXT, labels TEXT NOT NULL, plain INTEGER NOT NULL, gpu TEXT, outcome TEXT);
    CREATE INDEX reports_by_time ON reports (at_ns);
    CREATE TABLE entries (report INTEGER PRIMARY KEY, packed BLOB NOT NULL);
    CREATE TABLE metrics (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
    CREATE TABLE figures (
        metric INTEGER NOT NULL, report INTEGER NOT NULL, rank INTEGER NOT NULL, device INTEGER NOT NULL,
        value REAL NOT NULL, spread REAL, samples INTEGER NOT NULL,
        PRIMARY KEY (metric, report, rank, device)) WITHOUT ROWID;
    CREATE TABLE findings (
        report INTEGER NOT NULL, rule TEXT NOT NULL, severity TEXT NOT NULL, cost_ns INTEGER NOT NULL);
    CREATE INDEX findings_by_report ON findings (report);
    """,
    """
    CREATE TABLE predictions (
        at_ns INTEGER NOT NULL, program TEXT NOT NULL, device TEXT, change TEXT NOT NULL,
        predicted_pct REAL NOT NULL, low_pct REAL NOT NULL, high_pct REAL NOT NULL,
        measured_pct REAL NOT NULL, measured_low_pct REAL, measured_high_pct REAL,
        UNIQUE (at_ns, program, change));
    """,
    "ALTER TABLE figures ADD COLUMN floor REAL",
    # Nothing ever read it: `entries` have the findings.
    "DROP TABLE findings",
)
"""By what each version of the schema differs from the one before. `figures` lies on the disk by metric: one metric of
all reports is read in one go."""


def is_history(head: bytes) -> bool:
    """Whether a file that begins so is one (https://www.sqlite.org/fileformat.html#application_id)."""
    return head.startswith(b"SQLite format 3\0") and head[68:HEAD_BYTES] == _APPLICATION.to_bytes(4, "big")


def connect(path: Path, *, read_only: bool, alone: bool = False) -> sqlite3.Connection:
    """The file, made where there is none and it is not only to be read; `alone` as if nobody else could write to it.

    Raises UsageError, sqlite3.Error.
    """
    try:
        if not read_only:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Names of branches and hosts are nobody else's business, unless the user lets others read it.
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
        # SQLite would make files beside it to see who else writes, and leave them there.
        mode = "ro&immutable=1"
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=_PATIENCE_S,
        isolation_level=None,
        factory=BoundedConnection,
    )
    connection.bound(lambda: _size_bytes(path))
    return connection


def _size_bytes(path: Path) -> int:
    """Return the size of the file with what was written beside it."""
    files = [Path(path), Path(f"{os.path.realpath(path)}-wal")]
    return sum(file.stat().st_size for file in files if file.exists())


def is_at_rest(path: Path) -> bool:
    """Whether nobody has the file open to write: all that was written is in it alone."""
    return not os.path.lexists(f"{os.path.realpath(path)}-wal")


def changed(path: Path) -> object:
    """What differs once somebody has written to the file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def prepare(path: Path, connection: sqlite3.Connection, *, read_only: bool) -> None:
    """The schema of today. Raises UsageError where it cannot be."""
    version = _version(path, connection)
    if version == len(_VERSIONS):
        if not read_only:
            connection.execute("PRAGMA synchronous = NORMAL")
        return
    if read_only and not version:
        raise UsageError(f"{path}: there is no history in this file yet; `overlapscope history add` makes one.")
    if read_only:
        raise UsageError(
            f"{path}: is a history of an older version (its schema is {version}, and {len(_VERSIONS)} is needed); "
            "`overlapscope history add` brings it up to date."
        )
    _write_ahead(connection)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("BEGIN EXCLUSIVE")
    # Another process may have been quicker.
    for number in range(_version(path, connection), len(_VERSIONS)):
        for statement in filter(str.strip, _VERSIONS[number].split(";")):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number + 1}")
    connection.execute(f"PRAGMA application_id = {_APPLICATION}")
    connection.execute("COMMIT")


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch to WAL, for which SQLite does not wait by itself while another process does the same."""
    until = time.monotonic() + _PATIENCE_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
        time.sleep(_AGAIN_S)


def _version(path: Path, connection: sqlite3.Connection) -> int:
    """That of the schema; 0 of an empty file. Raises UsageError where the file is of another program, or newer."""
    # In one statement: another process may be making the schema.
    [(tables, foreign, application, version)] = connection.execute(
        "SELECT (SELECT count(*) FROM sqlite_master), (SELECT count(*) FROM sqlite_master WHERE type IN ('view', "
        "'trigger') OR sql LIKE 'CREATE VIRTUAL%'), application_id, user_version "
        "FROM pragma_application_id, pragma_user_version"
    )
    if application != _APPLICATION and tables:
        raise UsageError(f"{path}: is a database of another program, and was not changed; choose another file.")
    if foreign:
        raise UsageError(f"{path}: has views or triggers, as no history of overlapscope does; choose another file.")
    if version > len(_VERSIONS):
        raise UsageError(
            f"{path}: is a history of a newer version (its schema is {version}, and this version of overlapscope knows "
            f"{len(_VERSIONS)}); update overlapscope. The file was not changed."
        )
    return int(version)


@contextmanager
def in_words(path: Path) -> Iterator[None]:
    """What SQLite raises, as a sentence."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        what = _WORDS.get(code, "the history cannot be read or written ({error})").format(error=clean(str(error), 200))
        raise UsageError(f"{path}: {what}.") from None


_WORDS: Final = {
    sqlite3.SQLITE_BUSY: "another process keeps writing to the history; try again",
    sqlite3.SQLITE_NOTADB: "is not a history of overlapscope, and was not changed; choose another file",
    sqlite3.SQLITE_CORRUPT: "the history is damaged ({error}); keep a copy, and recover it with "
    "`sqlite3 FILE .recover`, or choose another file",
    sqlite3.SQLITE_INTERRUPT: "the history is damaged (its tables have more rows than it can hold); choose "
    "another file",
    sqlite3.SQLITE_FULL: "the disk is full, so nothing was added to the history",
    sqlite3.SQLITE_READONLY: "the history is read-only, and was not changed; choose another file",
}
"""By the code of SQLite; every other error says for itself what it is."""
