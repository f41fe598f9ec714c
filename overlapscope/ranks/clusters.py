"""Dask clusters that read traces: a temporary one on this machine, or one that is already running."""

from __future__ import annotations

import logging
import pydoc
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Final

import overlapscope
from overlapscope.base.extras import how_to_install
from overlapscope.errors import ClusterFailed, MissingPackage
from overlapscope.ranks.files import error_text

if TYPE_CHECKING:
    from distributed import Client, LocalCluster

_DEATHS = 1
"""Number of processes that may die of a file before it is tried again alone."""
_ANSWER_S = 10.0
"""Seconds to wait for a scheduler's answer."""
_START_S = 20.0
"""Seconds to wait for the last process to start before the others begin."""
_POLL_S = 0.05
_LEAST_LOGGED = logging.CRITICAL + 1
_KEPT_BYTES, _LARGEST_KEPT_BYTES = 256 << 20, 32 << 20
"""Maximum amount of freed memory that a worker keeps, and the size of its largest piece."""
_TOO_BUSY = "Dask did not start within 10 s, because this machine is too busy; try again."
"""Message for an assertion of Dask, which fails if its thread hasn't begun by then."""
_VERSION = "overlapscope.__version__"
"""Name that `pydoc.locate` finds the version by.

It returns None where the package is missing, while a function of this package could not even be unpickled there.
"""


class Cluster:
    """Workers, and the connection to them."""

    def __init__(
        self,
        client: Client,
        look: Callable[[Mapping[str, int]], None],
        *,
        lost: str,
        empty: str,
        larger: str,
        patience_s: float,
    ) -> None:
        """Connect to workers.

        Args:
            client: The connection.
            look: Checks the workers, given the number of threads of each. Raises ClusterFailed if one can't do this
                work.
            lost: Message for a lost connection.
            empty: Message for a cluster that has had no worker for too long.
            larger: Advice for when a worker has too little memory.
            patience_s: Maximum time without any worker, in seconds.
        """
        self.client, self.larger = client, larger
        self._look, self._lost, self._empty, self._patience_s = look, lost, empty, patience_s
        self._last_worker_s = time.monotonic()

    def threads(self) -> int:
        """Return the number of files that can be read at once at the moment.

        Raises:
            ClusterFailed: If the number is unknown, there has been no worker for too long, or a worker can't be used.
        """
        try:
            threads: dict[str, int] = self.client.nthreads()
            self._look(threads)
        except (OSError, RuntimeError, AttributeError):
            # The client raises any of these when it has just lost its connection.
            raise self.lost() from None
        now_s = time.monotonic()
        if threads:
            self._last_worker_s = now_s
        elif now_s - self._last_worker_s > self._patience_s:
            raise ClusterFailed(self._empty)
        return sum(threads.values())

    def lost(self) -> ClusterFailed:
        """Return the error of a lost connection."""
        return ClusterFailed(self._lost)


_SETTINGS: Final = {
    "distributed.scheduler.allowed-failures": _DEATHS,
    "distributed.scheduler.worker-saturation": 1.0,
    # A worker keeps little besides the trace it reads, and to stop taking tasks would not free it.
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    # Dask samples tasks a hundred times a second, and its own delay fifty times. Both are unused here.
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    # Dask makes workers return all memory at once. Getting it back takes a third of a worker's time for each trace.
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": _KEPT_BYTES,
    "distributed.nanny.pre-spawn-environ.MALLOC_MMAP_THRESHOLD_": _LARGEST_KEPT_BYTES,
}
"""Of Dask, for workers that read traces."""


@contextmanager
def local_workers(workers: int | None, files: int) -> Iterator[Cluster]:
    """Start worker processes of one thread each: `workers`, or one for each core and file.

    Yields:
        The cluster of those workers, which end with the block.

    Raises:
        MissingPackage: Without Dask.
        ClusterFailed: If the processes can't be started.
    """
    _require_dask()
    import dask
    from dask.system import CPU_COUNT
    from distributed import Client, LocalCluster
    from distributed.system import MEMORY_LIMIT

    processes = max(1, min(workers or CPU_COUNT, files))
    with ExitStack() as stack:
        stack.enter_context(_silence())
        # This must last as long as processes may be started, which includes restarts.
        stack.enter_context(dask.config.set(_SETTINGS))
        try:
            with _interrupts_later():
                # Processes are started later, when it doesn't matter if one of them dies at once.
                cluster = LocalCluster(
                    n_workers=0,
                    threads_per_worker=1,
                    processes=True,
                    memory_limit=MEMORY_LIMIT // processes,
                    host="127.0.0.1",
                    # Dask serves its dashboard over HTTP in any case. Port 0 keeps two runs apart.
                    dashboard_address="127.0.0.1:0",
                    silence_logs=_LEAST_LOGGED,
                    scheduler_kwargs={"dashboard": False},
                )
                stack.enter_context(cluster)
                client = stack.enter_context(Client(cluster, set_as_default=False))
        except AssertionError:
            raise ClusterFailed(_TOO_BUSY) from None
        except (OSError, RuntimeError) as error:
            raise ClusterFailed(f"cannot start processes to read the traces ({error_text(error)}).") from None
        here = Cluster(
            client,
            partial(_keep_up, cluster, processes),
            lost="the Dask scheduler stopped; start it again.",
            empty="the processes that read the traces die as soon as they start; the most likely reason is a memory "
            "limit.",
            larger="fewer --workers",
            patience_s=60.0,
        )
        # Wait until all processes have started, or for a while until some have.
        patience_s = time.monotonic() + _START_S
        while (ready := here.threads()) < processes and not (ready and time.monotonic() > patience_s):
            time.sleep(_POLL_S)
        yield here


def _keep_up(cluster: LocalCluster, processes: int, threads: Mapping[str, int]) -> None:
    """Restart processes that Dask gave up: it restarts a process that died, unless that dies while it starts."""
    from distributed.core import Status

    def start_again() -> None:
        workers = cluster.workers
        for name in [name for name, worker in workers.items() if worker.status in (Status.closed, Status.failed)]:
            del workers[name]
        cluster.scale(processes)

    if len(threads) < processes and cluster.loop is not None:
        cluster.loop.add_callback(start_again)


@contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """Connect to the scheduler that listens at this address.

    Yields:
        The cluster of the scheduler's workers.

    Raises:
        MissingPackage: Without Dask.
        ClusterFailed: If no scheduler answers.
    """
    _require_dask()
    from distributed import Client
    from distributed.comm.addressing import parse_address
    from distributed.comm.registry import get_backend

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
            yield Cluster(
                client,
                partial(_compare_new, client, address, set()),
                lost=f"{address}: the connection to the scheduler was lost; see its log, and try again.",
                empty=f"{address}: the cluster has no worker; start some with `dask worker {address}`.",
                larger="workers with more memory",
                # Its workers may have to be started first.
                patience_s=300.0,
            )


def _compare_new(client: Client, address: str, checked: set[str], threads: Mapping[str, int]) -> None:
    """Compare the versions on new workers, because Dask treats a worker without a package as if its task had killed it.

    Raises:
        ClusterFailed: If another version is installed there.
    """
    if not (new := threads.keys() - checked):
        return
    # The scheduler unpickles the tasks too.
    versions = {} if checked else {"its scheduler": client.run_on_scheduler(pydoc.locate, _VERSION)}
    answers = client.run(pydoc.locate, _VERSION, workers=list(new), on_error="return")
    # A worker that is gone by now answers with an error.
    versions |= {f"worker {at}": answer for at, answer in answers.items() if not isinstance(answer, BaseException)}
    here = overlapscope.__version__
    if wrong := [(who, version) for who, version in versions.items() if version != here]:
        who, version = wrong[0]
        installed = "no overlapscope" if version is None else f"overlapscope {version}"
        more = f", and {len(wrong) - 1} more do not match either" if len(wrong) > 1 else ""
        raise ClusterFailed(
            f"{address}: {who} has {installed}{more}; install overlapscope {here} on the scheduler and on all workers, "
            "as here."
        )
    checked |= threads.keys()


def scratch() -> str | None:
    """Return the directory of a worker, which is removed when the worker dies; None outside workers."""
    if sys.modules.get("distributed") is None:
        return None
    from distributed import get_worker

    try:
        return str(get_worker().local_directory)
    except ValueError:
        return None


def has_dask() -> bool:
    """Return whether Dask is installed."""
    try:
        import distributed  # noqa: F401
    except ImportError:
        return False
    return True


def _require_dask() -> None:
    if not has_dask():
        raise MissingPackage(f"traces are read by several workers with Dask. {how_to_install('cluster')}")


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """Block interrupts in threads that start meanwhile, and in their processes for good.

    Ctrl-C reaches all processes of a terminal. This process must end the workers; each of them would print a traceback.
    """
    # If started later, Python's tracker of semaphores would let interrupts through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _silence() -> Iterator[None]:
    """Silence Dask's log of workers that die and connections that break, which this module reports itself."""
    handlers = logging.getLogger("distributed").handlers
    before = [handler.level for handler in handlers]
    for handler in handlers:
        handler.setLevel(_LEAST_LOGGED)
    try:
        yield
    finally:
        for handler, level in zip(handlers, before, strict=True):
            handler.setLevel(level)
