"""Processes of this machine that reduce traces, each one trace at a time."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import ModuleType
from typing import Any, TypeVar

from overlapscope.base.memory import at_most, cores, free_bytes
from overlapscope.errors import ClusterFailed
from overlapscope.ranks.files import Location, error_text
from overlapscope.ranks.result import Unreadable

T = TypeVar("T")
_MAX_DEATHS = 4
"""Number of processes that die at their start, one after another, after which no others are started."""
_UNLIMITED_BYTES = 1 << 62


def outcomes(
    read: Callable[[Location], T | Unreadable], workers: int | None, locations: Sequence[Location]
) -> Generator[tuple[Location, T | Unreadable | None], None, None]:
    """Yield each location with its outcome, or with None if its process died or took more than its share of the memory.

    There are `workers` processes, or one for each core. Closing the generator ends them.

    Raises:
        ClusterFailed: If processes can't be started, or die as soon as they start.
    """
    free, most = free_bytes(), workers or cores()
    most_bytes = _UNLIMITED_BYTES if free is None else free // min(most, len(locations))
    waiting = deque(locations)
    processes: dict[Connection, SpawnProcess] = {}
    at_work: dict[Connection, Location] = {}
    deaths = 0
    with tempfile.TemporaryDirectory(prefix="overlapscope-") as scratch:
        try:
            while waiting or at_work:
                while len(processes) < min(most, len(waiting) + len(at_work)) and deaths < _MAX_DEATHS:
                    process, connection = _start(read, most_bytes, scratch)
                    processes[connection] = process
                if not processes:
                    dead = "the processes that read the traces die as soon as they start"
                    raise ClusterFailed(f"{dead}; the most likely reason is a memory limit.")
                answering = wait(list(processes))
                connection = next(each for each in processes if each in answering)
                try:
                    outcome, deaths = connection.recv(), 0
                except (EOFError, OSError):
                    outcome = None
                    deaths += connection not in at_work
                    _end(processes.pop(connection), connection)
                location = at_work.pop(connection, None)
                if waiting and connection in processes:
                    at_work[connection] = waiting.popleft()
                    # A process that has died already takes nothing, which shows when it doesn't answer.
                    with suppress(OSError):
                        connection.send(at_work[connection])
                if location is not None:
                    yield location, outcome
        finally:
            for connection, process in processes.items():
                _end(process, connection)


def _start(*arguments: Any) -> tuple[SpawnProcess, Connection]:
    context = get_context("spawn")
    connection, child_connection = context.Pipe()
    process = context.Process(target=_work, args=(child_connection, *arguments), daemon=True)
    main, signals = sys.modules["__main__"], signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        # Ctrl-C reaches all processes of a terminal. This process must end the others; each of them would print a
        # traceback. If started later, Python's tracker of semaphores would let interrupts through again.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        # The process would run the program's main module once more.
        sys.modules["__main__"] = ModuleType("__main__")
        with child_connection:
            process.start()
    except OSError as error:
        raise ClusterFailed(f"cannot start processes to read the traces ({error_text(error)}).") from None
    finally:
        sys.modules["__main__"] = main
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
    return process, connection


def _end(process: SpawnProcess, connection: Connection) -> None:
    process.kill()
    process.join()
    connection.close()


def _work(connection: Connection, read: Callable[[Location], T | Unreadable], most_bytes: int, scratch: str) -> None:
    """Send None at the start, and each location's outcome, until the other end is closed or memory runs out."""
    # A process that dies leaves the copy of a URL behind.
    tempfile.tempdir = scratch
    with at_most(most_bytes), suppress(EOFError, OSError, MemoryError):
        connection.send(None)
        while True:
            connection.send(read(connection.recv()))
