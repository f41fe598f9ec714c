"""A helper process that reads the operators and ranges of a large report.

They make up about half of the rows, and converting a database's numbers to Python's takes longer than all later work.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np

from overlapscope.reading._processes import alone, fork_into_pipe, reap, usable_cores
from overlapscope.reading.nsys import host
from overlapscope.reading.nsys.database import Database
from overlapscope.reading.nsys.names import Names
from overlapscope.reading.nsys.rows import Rows

_LEAST_ROWS: Final = 200_000
"""Reports with fewer rows are read before a helper could start."""

Ranges = tuple[Rows, Rows]
"""Rows that `host.operators_and_ranges` returns."""


@contextmanager
def ranges(database: Database, process: int | None) -> Iterator[Callable[[Names], Ranges]]:
    """Start reading the rows; yield a function that waits for them and numbers their names.

    Without a helper, or if it fails, that function reads the rows itself.
    """
    started = None
    if database.rows(host.RANGES) >= _LEAST_ROWS and usable_cores() > 1 and alone():
        started = _start(database.path, database.shown, process)

    def wait(names: Names) -> Ranges:
        if started is not None:
            try:
                text, read = pickle.load(started[1])
            except (EOFError, OSError, pickle.UnpicklingError):
                # The helper died or could not read the rows. Reading them again reports the error.
                return host.operators_and_ranges(database, names, process)
            numbers = np.array([names.number(name) for name in text], np.int32)
            operators, annotations = ({**rows, "name_id": numbers[rows["name_id"]]} for rows in read)
            return operators, annotations
        return host.operators_and_ranges(database, names, process)

    try:
        yield wait
    finally:
        if started is not None:
            started[1].close()
            reap(started[0], 0.0)


def _start(path: Path, shown: Path, process: int | None) -> tuple[int, BinaryIO] | None:
    def work(writing: int) -> None:
        # A connection must not be taken along into another process.
        with closing(Database(path, shown)) as database, open(writing, "wb") as pipe:
            names = Names(database)
            read = host.operators_and_ranges(database, names, process)
            pickle.dump((names.all(), read), pipe, protocol=5)

    started = fork_into_pipe(work)
    return None if started is None else (started[0], open(started[1], "rb"))
