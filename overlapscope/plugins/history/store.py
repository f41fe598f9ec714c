"""Store of the history: a SQLite file with packed entries, and their figures in tables for queries."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import msgspec

from overlapscope.base import disk
from overlapscope.base.saved import Instant, Quantity
from overlapscope.base.words import clean
from overlapscope.budgets.verdicts import Outcome
from overlapscope.errors import NotInTrace, UsageError
from overlapscope.plugins.history.database import changed, connect, in_words, is_at_rest, prepare
from overlapscope.plugins.history.entry import Entry, EntryId, Ordinal, pack, unpack
from overlapscope.prediction.result import StoredPrediction
from overlapscope.report.origin import Origin

PATH_VARIABLE: Final = "OVERLAPSCOPE_HISTORY"
_FILE: Final = "history.sqlite"
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


def default_path() -> Path:
    """Return the path of this user's history. Raises UsageError without a home folder."""
    if path := os.environ.get(PATH_VARIABLE):
        return Path(path).expanduser().absolute()
    folder = disk.of_user("Application Support", "XDG_DATA_HOME", ".local/share")
    if folder is None:
        raise UsageError(f"there is no history, because this user has no home folder; set {PATH_VARIABLE} to a file.")
    return folder / _FILE


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

    def add_predictions(self, predictions: Iterable[StoredPrediction]) -> None:
        """Add predictions. Those in the store already stay unchanged."""
        names = StoredPrediction.__struct_fields__
        places = ", ".join("?" for _ in names)
        with self._writing() as execute:
            for prediction in predictions:
                execute(
                    f"INSERT OR IGNORE INTO predictions ({', '.join(names)}) VALUES ({places})",
                    msgspec.structs.astuple(prediction),
                )

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

    def predictions(self) -> list[StoredPrediction]:
        """Return all predictions, oldest first."""
        return self._read("SELECT * FROM predictions ORDER BY at_ns, rowid", (), StoredPrediction)

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
