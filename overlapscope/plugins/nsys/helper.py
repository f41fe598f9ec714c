"""A helper process that reads the operators and ranges of a large report.

They make up about half of the rows, and converting a database's numbers to Python's takes longer than all later work.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, NoReturn

import numpy as np

from overlapscope.base.memory import usable_cores
from overlapscope.plugins.nsys import host
from overlapscope.plugins.nsys.database import Database
from overlapscope.plugins.nsys.rows import Names, Rows

_LEAST_ROWS: Final = 200_000
"""Reports with fewer rows are read before a helper could start."""
_STOPPING: Final = (signal.SIGINT, signal.SIGTERM)

Ranges = tuple[Rows, Rows]
"""Rows that `host.operators_and_ranges` returns."""


@contextmanager
def ranges(database: Database, process: int | None) -> Iterator[Callable[[Names], Ranges]]:
    """Start reading the rows in a helper process.

    Without a helper, or if it fails, the rows are read in this process instead.

    Yields:
        A function that waits for the rows and numbers their names.
    """
    started = None
    if database.rows(host.RANGES) >= _LEAST_ROWS and usable_cores() > 1 and _alone():
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
            _end(started[0])


def _alone() -> bool:
    """Return whether this is the only Python thread. A fork would copy the locks that other threads hold."""
    return len(sys._current_frames()) == 1 and threading.current_thread() is threading.main_thread()


def _start(path: Path, shown: Path, process: int | None) -> tuple[int, BinaryIO] | None:
    """Start the helper; return its process and the pipe that it writes to, or None where no process can be started."""
    reading, writing = os.pipe()
    # Signals wait until this process keeps track of the helper.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        with warnings.catch_warnings():
            # Python warns about threads. It has no other threads here, and those of numpy's libraries stop for a fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            # If this process is killed, the helper's next write fails and ends it.
            os.close(reading)
            _help(path, shown, process, writing)
    except OSError:
        os.close(reading)
        return None
    finally:
        os.close(writing)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid, open(reading, "rb")


def _help(path: Path, shown: Path, process: int | None, writing: int) -> NoReturn:
    """Read the rows in the helper and end it, silently whatever happens."""
    try:
        for number in _STOPPING:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
        gc.disable()
        # A connection must not be taken along into another process.
        with closing(Database(path, shown)) as database, open(writing, "wb") as pipe:
            names = Names(database)
            read = host.operators_and_ranges(database, names, process)
            pickle.dump((names.all(), read), pipe, protocol=5)
    finally:
        os._exit(0)


def _end(pid: int) -> None:
    """Kill a helper that still works, and wait for its end."""
    # An application may let the system reap its children. Then waiting raises ChildProcessError.
    with suppress(ChildProcessError, ProcessLookupError):
        if os.waitpid(pid, os.WNOHANG) == (0, 0):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
