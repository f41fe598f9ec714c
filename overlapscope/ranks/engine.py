"""Reduction of many traces at once, by processes of this machine or by a Dask cluster.

On a cluster, each file is a task. Only a few more tasks than the workers can start are submitted at a time, so that ten
thousand files work as well as eight. Results are yielded as they arrive. A reduced trace is small; neither this process
nor the scheduler ever holds a whole one.
"""

from __future__ import annotations

import logging
import pydoc
import queue
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from msgspec.structs import replace

import overlapscope
from overlapscope.base.extras import how_to_install
from overlapscope.errors import ClusterFailed, MissingPackage, OverlapscopeError, UnreadableTrace
from overlapscope.ranks.files import Location, error_text, fetched
from overlapscope.ranks.result import Unreadable
from overlapscope.reading import LIMIT_BYTES, load
from overlapscope.reading.file_names import file_and_part
from overlapscope.reading.patterns import NamePatterns, name_patterns, using
from overlapscope.trace.model import Trace

if TYPE_CHECKING:
    from dask.typing import Key
    from distributed import Client, Future


T = TypeVar("T")
ReadLocation: TypeAlias = Callable[[Location], T | Unreadable]
"""Function that reduces the trace at a location."""
RETRIES = 2
"""Number of retries after failures that may be temporary, such as a network failure or a shortage of memory."""
_ANSWER_S = 10.0
"""Seconds to wait for a scheduler's answer."""
_PATIENCE_S = 300.0
"""Maximum time without any worker, in seconds: they may have to be started first."""
_TASKS_PER_THREAD = 4
"""Tasks submitted per thread of the cluster.

If there are more than twice as many tasks as threads, Dask keeps the others at the scheduler until a worker is free.
With fewer, a worker would hold two tasks, and its death would count against both.
"""
_LOOK_S = 1.0
"""Seconds between checks of the cluster."""
_TRANSFER_S = 5.0
"""A result that takes longer than this to transfer, in seconds, was lost with its worker."""
_ABOVE_ALL_LEVELS = logging.CRITICAL + 1
_TOO_BUSY = "Dask did not start within 10 s, because this machine is too busy; try again."
"""Message for an assertion of Dask, which fails if its thread hasn't begun by then."""
_VERSION = "overlapscope.__version__"
"""Name that `pydoc.locate` finds the version by.

It returns None where the package is missing, while a function of this package could not even be unpickled there.
"""


def failed_outcome(location: Location, error: Exception) -> Unreadable:
    """Return the outcome of a file that could not be read, however often it was tried."""
    reason = f"could not be read in {RETRIES + 1} tries ({error_text(error)})."
    return Unreadable(source=location.source, reason=reason)


class Cluster:
    """Workers, and the connection to them."""

    def __init__(self, client: Client, address: str) -> None:
        """Wrap the connection to the scheduler that listens at this address."""
        self._client = client
        self._address = address
        self._checked: set[str] = set()
        """Workers whose versions are right."""
        self._last_worker_s = time.monotonic()

    def outcomes(
        self, read: ReadLocation[T], locations: Sequence[Location]
    ) -> Generator[tuple[Location, T | Unreadable | None], None, None]:
        """Yield each location with its outcome, or with None if its workers died."""
        from distributed import CancelledError, KilledWorker

        done: queue.SimpleQueue[Future[T | Unreadable]] = queue.SimpleQueue()
        waiting = deque(locations)
        running: dict[Key, Location] = {}
        threads, look_s = self._threads(), time.monotonic() + _LOOK_S
        while waiting or running:
            while waiting and len(running) < _TASKS_PER_THREAD * max(threads, 1):
                future = self._client.submit(read, waiting[0], pure=False, retries=RETRIES)
                running[future.key] = waiting.popleft()
                future.add_done_callback(done.put)
                del future
            if time.monotonic() >= look_s:
                threads, look_s = self._threads(), time.monotonic() + _LOOK_S
            try:
                future = done.get(timeout=_LOOK_S)
            except queue.Empty:
                continue
            outcome: T | Unreadable | None = None
            try:
                outcome = future.result(timeout=_TRANSFER_S)
            except KilledWorker:
                pass
            except CancelledError:
                raise self._lost() from None
            except Exception as error:
                if isinstance(error, TimeoutError) and future.status != "error":
                    # The result was lost with its worker, so the file is read again.
                    future.add_done_callback(done.put)
                    continue
                outcome = failed_outcome(running[future.key], error)
            location = running.pop(future.key)
            # Dask keeps a result as long as its future exists.
            del future
            yield location, outcome

    def _threads(self) -> int:
        """Return the number of files that can be read at once at the moment.

        Raises:
            ClusterFailed: If the number is unknown, there has been no worker for too long, or a worker can't be used.
        """
        try:
            threads: dict[str, int] = self._client.nthreads()
            self._compare(threads.keys() - self._checked)
        except (OSError, RuntimeError, AttributeError):
            # The client raises any of these when it has just lost its connection.
            raise self._lost() from None
        now_s = time.monotonic()
        if threads:
            self._last_worker_s = now_s
        elif now_s - self._last_worker_s > _PATIENCE_S:
            raise ClusterFailed(
                f"{self._address}: the cluster has no worker; start some with `dask worker {self._address}`."
            )
        return sum(threads.values())

    def _lost(self) -> ClusterFailed:
        """Return the error of a lost connection."""
        return ClusterFailed(f"{self._address}: the connection to the scheduler was lost; see its log, and try again.")

    def _compare(self, new: set[str]) -> None:
        """Compare the versions on new workers, because Dask treats a worker without a package as if it had died.

        Raises:
            ClusterFailed: If another version is installed there.
        """
        if not new:
            return
        # The scheduler unpickles the tasks too.
        first = not self._checked
        versions = {"its scheduler": self._client.run_on_scheduler(pydoc.locate, _VERSION)} if first else {}
        answers = self._client.run(pydoc.locate, _VERSION, workers=list(new), on_error="return")
        # A worker that is gone by now answers with an error.
        versions |= {f"worker {at}": answer for at, answer in answers.items() if not isinstance(answer, BaseException)}
        here = overlapscope.__version__
        if wrong := [(who, version) for who, version in versions.items() if version != here]:
            who, version = wrong[0]
            installed = "no overlapscope" if version is None else f"overlapscope {version}"
            more = f", and {len(wrong) - 1} more do not match either" if len(wrong) > 1 else ""
            raise ClusterFailed(
                f"{self._address}: {who} has {installed}{more}; install overlapscope {here} "
                "on the scheduler and on all workers, as here."
            )
        self._checked |= new


@contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """Connect to the scheduler that listens at this address.

    Yields:
        The cluster of the scheduler's workers.

    Raises:
        MissingPackage: Without Dask.
        ClusterFailed: If no scheduler answers.
    """
    try:
        from distributed import Client
        from distributed.comm.addressing import parse_address
        from distributed.comm.registry import get_backend
    except ImportError:
        raise MissingPackage(f"--scheduler needs Dask. {how_to_install('cluster')}") from None

    with _silence():
        try:
            # An address that can't be one is refused before Dask starts a thread for it.
            get_backend(parse_address(address)[0])
            client = Client(address, timeout=_ANSWER_S, set_as_default=False, name="overlapscope")
        except AssertionError:
            raise ClusterFailed(_TOO_BUSY) from None
        except (OSError, ValueError, RuntimeError) as error:
            raise ClusterFailed(
                f"{address}: no Dask scheduler answers there ({error_text(error)}); start one with `dask scheduler`, "
                "and its workers with `dask worker ADDRESS`."
            ) from None
        with client:
            yield Cluster(client, address)


def scratch() -> str | None:
    """Return the directory of a worker of a cluster, which is removed when the worker dies; None elsewhere."""
    if sys.modules.get("distributed") is None:
        return None
    from distributed import get_worker

    try:
        return str(get_worker().local_directory)
    except ValueError:
        return None


@contextmanager
def _silence() -> Iterator[None]:
    """Silence Dask's log of workers that die and connections that break, which this module reports itself."""
    handlers = logging.getLogger("distributed").handlers
    before = [handler.level for handler in handlers]
    for handler in handlers:
        handler.setLevel(_ABOVE_ALL_LEVELS)
    try:
        yield
    finally:
        for handler, level in zip(handlers, before, strict=True):
            handler.setLevel(level)


# -- Reduction, here or elsewhere --------------------------------------------------------------------

_FEW_BYTES = 4 << 20
"""Size of all files together up to which reading them takes less time than starting other processes."""


def reduce_each(
    reduction: Callable[[Trace], T],
    locations: Sequence[Location],
    *,
    scheduler: str | None = None,
    workers: int | None = None,
    limit_bytes: int = LIMIT_BYTES,
) -> Generator[T | Unreadable, None, None]:
    """Reduce the trace at each location.

    Closing the generator, as an interrupt does, ends all processes that it started. A single file and a few small files
    are read in this process. A file that can't be read is an outcome, and so is a file that kills its process again
    when nothing else is being read.

    Args:
        reduction: Function that reduces a trace to the data to send back.
        locations: The traces.
        scheduler: Address of a Dask scheduler (`tcp://host:8786`), whose workers read the files where they are.
        workers: Number of processes on this machine without a scheduler. By default one per core.
        limit_bytes: Maximum size of an unpacked trace.

    Yields:
        The outcomes, in the order of completion.

    Raises:
        ClusterFailed: If there is no usable cluster, or it is lost, or if processes can't be started.
        MissingPackage: If a scheduler is requested without Dask.
    """
    # A machine that reads may have another configuration than the one that asks.
    read = partial(reduce_by, reduction, limit_bytes=limit_bytes, patterns=name_patterns())
    if scheduler is not None:
        with connected(scheduler) as cluster:
            needs = "they have. Use workers with more memory."
            yield from _retried_alone(partial(cluster.outcomes, read), locations, needs)
        return
    read_here = partial(_reduce_here, read)
    if len(locations) > 1 and not _are_few(locations):
        # Imported only where they are used, since few commands start processes.
        from multiprocessing import current_process

        from overlapscope.ranks.processes import outcomes

        # Python lets daemonic processes, such as Dask's workers, start no others.
        if not current_process().daemon:
            needs = "there is. Record fewer steps."
            yield from _retried_alone(partial(outcomes, read_here, workers), locations, needs)
            return
    for location in locations:
        try:
            yield read_here(location)
        except MemoryError:
            yield Unreadable(source=location.source, reason="needs more memory than is free; record fewer steps.")


def _retried_alone(
    outcomes: Callable[[Sequence[Location]], Generator[tuple[Location, T | Unreadable | None], None, None]],
    locations: Sequence[Location],
    needs: str,
) -> Iterator[T | Unreadable]:
    """Yield the outcomes. Files whose processes died (None) are read again after all others, alone."""
    deadly = []
    with closing(outcomes(locations)) as found:
        for location, outcome in found:
            if outcome is None:
                deadly.append(location)
            else:
                yield outcome
    died = "every process that read it died, the last one while nothing else was read; most likely it needs more memory"
    for location in deadly:
        with closing(outcomes([location])) as found:
            for _, outcome in found:
                reason = f"{died} than {needs}"
                yield Unreadable(source=location.source, reason=reason) if outcome is None else outcome


def _are_few(locations: Sequence[Location]) -> bool:
    sizes = 0
    for location in locations:
        if location.filesystem is not None:
            return False
        with suppress(OSError):
            sizes += file_and_part(Path(location.path))[0].stat().st_size
    return sizes <= _FEW_BYTES


def reduce_by(
    reduction: Callable[[Trace], T], location: Location, limit_bytes: int, patterns: NamePatterns | None = None
) -> T | Unreadable:
    """Reduce one file on a worker, with its own configuration unless `patterns` are given.

    Returns:
        The reduced trace, or a failure that a retry can't fix. Any other failure is raised.
    """  # noqa: DOC501
    opened = location.source
    try:
        with fetched(location, limit_bytes=limit_bytes, directory=scratch()) as path:
            opened = str(path)
            if location.filesystem is None and not file_and_part(path)[0].exists():
                raise UnreadableTrace(
                    f"the file does not exist on {socket.gethostname()}, which should read it; put it where every "
                    "worker can see it, or name it by a URL."
                )
            # Each trace is read once, so caching it would only evict traces that are read again. Periods of two ranks
            # may differ in length and number, so they are no steps to compare.
            with using(patterns):
                trace = load(path, limit_bytes=limit_bytes, progress=False, cache=False, periodic=False)
        return reduction(replace(trace, source=location.source))
    except OverlapscopeError as error:
        return Unreadable(source=location.source, reason=error.reason.replace(opened, location.source))


def _reduce_here(read: ReadLocation[T], location: Location) -> T | Unreadable:
    """Reduce one file without a cluster, with as many retries as on one, except if memory runs out."""
    tried = 0
    while True:
        try:
            return read(location)
        except MemoryError:
            raise
        except Exception as error:
            tried += 1
            if tried > RETRIES:
                return failed_outcome(location, error)
