"""Reduction of many traces at once, by processes of this machine or by a Dask cluster.

On a cluster, each file is a task. Only a few more tasks than the workers can start are submitted at a time, so that ten
thousand files work as well as eight. Results are yielded as they arrive. A reduced trace is small; neither this process
nor the scheduler ever holds a whole one.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from overlapscope.errors import OverlapscopeError, UnreadableTrace
from overlapscope.ranks.clusters import RETRIES, Read, T, connected, given_up, scratch
from overlapscope.ranks.files import Location, fetched
from overlapscope.ranks.result import Unreadable
from overlapscope.reading import LIMIT_BYTES, load
from overlapscope.reading.file_names import file_and_part
from overlapscope.reading.patterns import NamePatterns, name_patterns, using
from overlapscope.trace.model import Trace

_FEW_BYTES = 4 << 20
"""Size of all files together up to which reading them takes less time than starting other processes."""


def each(
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
            yield from _alone_again(partial(cluster.outcomes, read), locations, needs)
        return
    read_here = partial(_reduce_here, read)
    if len(locations) > 1 and not _are_few(locations):
        # Imported only where they are used, since few commands start processes.
        from multiprocessing import current_process

        from overlapscope.ranks.processes import outcomes

        # Python lets daemonic processes, such as Dask's workers, start no others.
        if not current_process().daemon:
            needs = "there is. Record fewer steps."
            yield from _alone_again(partial(outcomes, read_here, workers), locations, needs)
            return
    for location in locations:
        try:
            yield read_here(location)
        except MemoryError:
            yield Unreadable(source=location.source, reason="needs more memory than is free; record fewer steps.")


def _alone_again(
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


def _reduce_here(read: Read[T], location: Location) -> T | Unreadable:
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
                return given_up(location, error)
