"""The store: one SQLite file with every entry, packed, and with its figures in tables to be asked for."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from overlapscope.base import disk
from overlapscope.base.words import clean
from overlapscope.budgets.verdicts import Outcome
from overlapscope.errors import NotInTrace, UsageError
from overlapscope.history.database import changed, connect, in_words, is_at_rest, prepare
from overlapscope.history.entry import Entry, Origin, pack, unpack
from overlapscope.history.predictions import StoredPrediction

PATH_VARIABLE: Final = "OVERLAPSCOPE_HISTORY"
_FILE: Final = "history.sqlite"
_NO_RANK: Final = -1


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """Which reports are meant; None for all. `commit` may be the beginning of one."""

    job: str | None = None
    branch: str | None = None
    commit: str | None = None
    host: str | None = None
    gpu: str | None = None
    labels: dict[str, str] = {}
    """Those that a report has to have, among others."""
    since_ns: int | None = None
    """The first instant that is meant, and the first that is not any more (`until_ns`)."""
    until_ns: int | None = None
    plain: bool | None = None
    rank: int | None = None
    """Of points alone, as `device`."""
    device: int | None = None


EVERYTHING: Final = Query()


class HistoryRow(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is known of an entry without unpacking it."""

    id: str
    origin: Origin
    plain: bool
    gpu: str | None
    outcome: Outcome | None
    """Of its check."""


class Point(msgspec.Struct, frozen=True, gc=False):
    """One metric of one device in one report; the fields are those of `Entry`, `Origin` and `Figure`."""

    id: str
    at_ns: int
    job: str
    commit: str | None
    branch: str | None
    gpu: str | None
    rank: int | None
    device: int
    value: float
    spread: float | None
    samples: int
    floor: float | None
    plain: bool


def default_path() -> Path:
    """Where the store is for this user. Raises UsageError where there is no home folder."""
    if told := os.environ.get(PATH_VARIABLE):
        return Path(told).expanduser().absolute()
    folder = disk.of_user("Application Support", "XDG_DATA_HOME", ".local/share")
    if folder is None:
        raise UsageError(f"there is no history, because this user has no home folder; set {PATH_VARIABLE} to a file.")
    return folder / _FILE


class Store:
    """An open store. Several processes may have it open, and write, at once; each write is done whole or not at all.

    Every method raises UsageError, with what is the matter, where the file cannot be read or written.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection

    @classmethod
    @contextmanager
    def open(
        cls, path: str | Path | None = None, *, read_only: bool = False, traceless: bool = False
    ) -> Iterator[Self]:
        """The store in a file, by default the user's; made where there is none, unless it is only to be read.

        `traceless` leaves no file beside it, as SQLite does to see who else writes. Then whoever begins to write
        meanwhile makes what was read worthless.

        Raises UsageError where the file cannot be opened, holds something else, is of a newer version, or is changed
        while it is read so.
        """
        place = default_path() if path is None else Path(path)
        before = changed(place)
        alone = read_only and traceless and is_at_rest(place)
        try:
            with in_words(place), closing(connect(place, read_only=read_only, alone=alone)) as connection:
                connection.execute("PRAGMA trusted_schema = OFF")
                connection.create_function("has_labels", 2, _has_labels, deterministic=True)
                prepare(place, connection, read_only=read_only)
                yield cls(place, connection)
        finally:
            if alone and changed(place) != before:
                raise UsageError(f"{place}: somebody wrote to the history meanwhile; try again.")

    # -- what is written ------------------------------------------------------------------------

    def add(self, entry: Entry) -> bool:
        """Keep an entry. False where nothing is new: it is there already, and has no check that was not there."""
        with self._writing() as execute:
            known = execute("SELECT number, outcome FROM reports WHERE id = ?", (entry.id,)).fetchone()
            if known is not None:
                if entry.check is None or known[1] is not None:
                    return False
                self._remove(known[0])
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
            for one in entry.figures:
                execute(
                    "INSERT INTO figures SELECT number, ?, ?, ?, ?, ?, ?, ? FROM metrics WHERE name = ?",
                    (
                        *(number, _NO_RANK if one.rank is None else one.rank, one.device),
                        *(one.value, one.spread, one.samples, one.floor, one.metric),
                    ),
                )
        return True

    def add_predictions(self, predictions: Iterable[StoredPrediction]) -> None:
        """Keep what was predicted and measured of changes; what is there already stays."""
        names = StoredPrediction.__struct_fields__
        places = ", ".join("?" for _ in names)
        with self._writing() as execute:
            for one in predictions:
                execute(
                    f"INSERT OR IGNORE INTO predictions ({', '.join(names)}) VALUES ({places})",
                    msgspec.structs.astuple(one),
                )

    def delete(self, ids: Sequence[str]) -> int:
        """Forget entries, and say how many there were of these."""
        with self._writing() as execute:
            numbers = [found[0] for id in ids for found in execute("SELECT number FROM reports WHERE id = ?", (id,))]
            for number in numbers:
                self._remove(number)
        return len(numbers)

    def compact(self) -> None:
        """Give the disk back what deleted entries took."""
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

    # -- what is read ---------------------------------------------------------------------------

    def rows(self, query: Query = EVERYTHING, *, most: int | None = None) -> list[HistoryRow]:
        """The entries that are meant, oldest first; with `most`, the newest of them."""
        where, values = _where(query)
        found = self._read(
            "SELECT id, at_ns, job, commit_id, branch, host, labels, plain, gpu, outcome FROM reports AS r "
            f"WHERE {where} ORDER BY at_ns DESC, id DESC LIMIT ?",
            (*values, -1 if most is None else most),
        )
        return [
            HistoryRow(
                id=id,
                origin=Origin(at_ns=at_ns, job=job, commit=commit, branch=branch, host=host, labels=json.loads(labels)),
                plain=bool(plain),
                gpu=gpu,
                outcome=outcome,
            )
            for id, at_ns, job, commit, branch, host, labels, plain, gpu, outcome in reversed(found)
        ]

    def points(self, metric: str, query: Query = EVERYTHING) -> list[Point]:
        """A metric in the reports that are meant, oldest first, then by rank and device."""
        where, values = _where(query)
        if query.rank is not None:
            where, values = f"{where} AND f.rank = ?", [*values, query.rank]
        if query.device is not None:
            where, values = f"{where} AND f.device = ?", [*values, query.device]
        rows = self._read(
            "SELECT r.id, r.at_ns, r.job, r.commit_id, r.branch, r.gpu, nullif(f.rank, -1), f.device, "
            "f.value, f.spread, f.samples, f.floor, r.plain "
            "FROM reports AS r CROSS JOIN figures AS f ON r.number = f.report "
            f"WHERE f.metric = (SELECT number FROM metrics WHERE name = ?) AND {where} "
            "ORDER BY r.at_ns, r.id, f.rank, f.device",
            (metric, *values),
        )
        return [Point(*(*row, bool(plain))) for *row, plain in rows]

    def metrics(self) -> list[str]:
        """What there are figures of."""
        return [name for [name] in self._read("SELECT name FROM metrics ORDER BY number", ())]

    def jobs(self) -> list[str]:
        """The jobs, the one that ran last first."""
        found = self._read("SELECT job FROM reports GROUP BY job ORDER BY max(at_ns) DESC, job", ())
        return [job for [job] in found]

    def entry(self, id: str) -> Entry:
        """An entry by its id, or by the beginning of it. Raises NotInTrace where there is none, or several;
        UnreadableTrace where another version kept it, which cannot be read."""
        found = self._read(
            # An id is hexadecimal, and "g" behind any of its digits.
            "SELECT id, packed FROM reports JOIN entries ON report = number WHERE id >= ? AND id < ? || 'g' LIMIT 2",
            (id, id),
        )
        if len(found) != 1 or not id:
            which = "several entries begin" if found else "no entry begins"
            raise NotInTrace(f"{self.path}: {which} with {clean(id, 80)!r}; `overlapscope history` lists them.")
        [[whole, packed]] = found
        return unpack(packed, f"{self.path}: {whole}")

    def predictions(self) -> list[StoredPrediction]:
        """What was predicted and measured of changes, oldest first."""
        names = StoredPrediction.__struct_fields__
        rows = self._read(f"SELECT {', '.join(names)} FROM predictions ORDER BY at_ns, rowid", ())
        return [StoredPrediction(**dict(zip(names, row, strict=True))) for row in rows]

    def known(self) -> frozenset[str]:
        """The ids of all entries."""
        return frozenset(id for [id] in self._read("SELECT id FROM reports", ()))

    def _read(self, query: str, values: Sequence[Any]) -> list[Any]:
        with in_words(self.path):
            return self._connection.execute(query, values).fetchall()


def _where(query: Query) -> tuple[str, list[Any]]:
    """The condition on a report `r`, and its values."""
    exact = {"job": query.job, "branch": query.branch, "host": query.host, "gpu": query.gpu, "plain": query.plain}
    parts: list[tuple[str, list[Any]]]
    parts = [(f"r.{column} = ?", [value]) for column, value in exact.items() if value is not None]
    if query.commit is not None:
        # As bytes: SQLite's functions of text end at the first NUL.
        start = query.commit.encode()
        parts.append(("substr(CAST(r.commit_id AS BLOB), 1, ?) = ?", [len(start), start]))
    if query.since_ns is not None:
        parts.append(("r.at_ns >= ?", [query.since_ns]))
    if query.until_ns is not None:
        parts.append(("r.at_ns < ?", [query.until_ns]))
    if query.labels:
        parts.append(("has_labels(r.labels, ?)", [json.dumps(query.labels)]))
    return " AND ".join(["1", *(part for part, _ in parts)]), [value for _, values in parts for value in values]


def _has_labels(labels: str, asked: str) -> bool:
    """Whether one JSON object has all that another has; `json_each` of SQLite ends a name at its first NUL."""
    return bool(json.loads(asked).items() <= json.loads(labels).items())
