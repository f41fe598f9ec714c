"""The Dask clusters that traces are read by: one of our own on this machine, or one that is there already."""

from __future__ import annotations

import logging
import pydoc
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, ClassVar

import overlapscope
from overlapscope.base.extras import how_to_install
from overlapscope.errors import ClusterFailed, MissingPackage
from overlapscope.ranks.files import said

if TYPE_CHECKING:
    from distributed import Client, LocalCluster

_DEATHS = 1
"""How many processes of our own may die of a file before it has to wait, to be tried again alone."""
_ANSWER_S = 10.0
"""How long a scheduler may take to answer."""
_START_S = 20.0
"""How long to wait for the last of our own processes, before the others begin."""
_POLL_S = 0.05
_LEAST_LOGGED = logging.CRITICAL + 1
_KEPT_BYTES, _LARGEST_KEPT_BYTES = 256 << 20, 32 << 20
"""Of memory that a worker has freed, how much it keeps in all, and the largest piece."""
_VERSION = "overlapscope.__version__"
"""What `pydoc.locate` finds the version by; it returns None where there is no such package, while a function of our own
could not even be unpickled there."""


class Cluster(ABC):
    """Workers, and the connection to them."""

    larger: ClassVar[str]
    """What to use where a worker has too little memory."""
    _patience_s: ClassVar[float]
    """How long it may have no worker at all."""

    def __init__(self, client: Client, *, lost: str, empty: str) -> None:
        """What to say where the connection to the scheduler is gone, and where there has been no worker for long."""
        self.client = client
        self._lost, self._empty = lost, empty
        self._last_worker_s = time.monotonic()

    def threads(self) -> int:
        """How many files can be read at once, as it is now.

        Raises ClusterFailed where there is no telling, where there has been no worker for long, or one is not fit.
        """
        try:
            threads: dict[str, int] = self.client.nthreads()
            self._look_at(threads)
        except (OSError, RuntimeError, AttributeError):
            # Whatever a client does that has just lost its connection.
            raise self.lost() from None
        now_s = time.monotonic()
        if threads:
            self._last_worker_s = now_s
        elif now_s - self._last_worker_s > self._patience_s:
            raise ClusterFailed(self._empty)
        return sum(threads.values())

    def lost(self) -> ClusterFailed:
        """The connection to the scheduler is gone."""
        return ClusterFailed(self._lost)

    @abstractmethod
    def _look_at(self, threads: Mapping[str, int]) -> None:
        """Look after the workers, by the threads of each. Raises ClusterFailed where one cannot do this work."""


class _Own(Cluster):
    """Processes of our own."""

    larger = "fewer --workers"
    _patience_s = 60.0

    def __init__(self, client: Client, cluster: LocalCluster, processes: int) -> None:
        super().__init__(
            client,
            lost="the Dask scheduler stopped; start it again.",
            empty="the processes that read the traces die as soon as they start; the most likely reason is a "
            "memory limit.",
        )
        self._cluster = cluster
        self._processes = processes

    def start(self) -> None:
        """Returns when all processes are there, or some after a while. Raises ClusterFailed where none is."""
        patience_s = time.monotonic() + _START_S
        while (there := self.threads()) < self._processes and not (there and time.monotonic() > patience_s):
            time.sleep(_POLL_S)

    def _look_at(self, threads: Mapping[str, int]) -> None:
        loop = self._cluster.loop
        if len(threads) < self._processes and loop is not None:
            loop.add_callback(self._start_again)

    def _start_again(self) -> None:
        """Dask starts a process again that died, but gives it up if it dies while it is started."""
        from distributed.core import Status

        workers = self._cluster.workers
        for name in [name for name, worker in workers.items() if worker.status in (Status.closed, Status.failed)]:
            del workers[name]
        self._cluster.scale(self._processes)


class _Foreign(Cluster):
    """A cluster that others look after."""

    larger = "workers with more memory"
    # They may have to be started first.
    _patience_s = 300.0

    def __init__(self, client: Client, address: str) -> None:
        super().__init__(
            client,
            lost=f"{address}: the connection to the scheduler was lost; see its log, and try again.",
            empty=f"{address}: the cluster has no worker; start some with `dask worker {address}`.",
        )
        self._address = address
        self._known: set[str] = set()
        """Workers that are fit."""

    def _look_at(self, threads: Mapping[str, int]) -> None:
        """Dask would take a worker that lacks a package for one that died of its task."""
        self._compare_new(threads.keys() - self._known)
        self._known |= threads.keys()

    def _compare_new(self, workers: Set[str]) -> None:
        if not workers:
            return
        if not self._known:
            # It unpickles the tasks, too.
            self._compare({"its scheduler": self.client.run_on_scheduler(pydoc.locate, _VERSION)})
        answers = self.client.run(pydoc.locate, _VERSION, workers=list(workers), on_error="return")
        # One that is gone by now answers with an error.
        there = {address: answer for address, answer in answers.items() if not isinstance(answer, BaseException)}
        self._compare({f"worker {address}": answer for address, answer in there.items()})

    def _compare(self, versions: Mapping[str, object]) -> None:
        here = overlapscope.__version__
        wrong = [(who, version) for who, version in versions.items() if version != here]
        if not wrong:
            return
        who, version = wrong[0]
        there = "no overlapscope" if version is None else f"overlapscope {version}"
        more = f", and {len(wrong) - 1} more do not match either" if len(wrong) > 1 else ""
        raise ClusterFailed(
            f"{self._address}: {who} has {there}{more}; install overlapscope {here} on the scheduler and on all "
            "workers, as here."
        )


@contextmanager
def own(workers: int | None, files: int) -> Iterator[Cluster]:
    """Processes of one thread each, on this machine and for nobody else: `workers`, or one for each core and file.

    Raises MissingPackage without Dask, ClusterFailed where the processes cannot be started.
    """
    _require_dask()
    import dask
    from dask.system import CPU_COUNT
    from distributed import Client, LocalCluster
    from distributed.system import MEMORY_LIMIT

    processes = max(1, min(workers or CPU_COUNT, files))
    config = {
        "distributed.scheduler.allowed-failures": _DEATHS,
        "distributed.scheduler.worker-saturation": 1.0,
        # What a worker keeps is nothing beside the trace it reads. To stop taking tasks would not make that less.
        "distributed.worker.memory.target": False,
        "distributed.worker.memory.spill": False,
        "distributed.worker.memory.pause": False,
        # A hundred times a second Dask looks where a task is, and fifty times whether it is itself late. Nobody asks.
        "distributed.worker.profile.enabled": False,
        "distributed.admin.tick.interval": "1s",
        # Dask has them give back all memory at once. To get it again for each trace takes a third of a worker's time.
        "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": _KEPT_BYTES,
        "distributed.nanny.pre-spawn-environ.MALLOC_MMAP_THRESHOLD_": _LARGEST_KEPT_BYTES,
    }
    with ExitStack() as stack:
        stack.enter_context(_silence())
        # As long as processes may be started, which is when one has died, too.
        stack.enter_context(dask.config.set(config))
        try:
            with _interrupts_later():
                # The processes are started afterwards, where it does not matter if one dies at once.
                cluster = LocalCluster(
                    n_workers=0,
                    threads_per_worker=1,
                    processes=True,
                    memory_limit=MEMORY_LIMIT // processes,
                    host="127.0.0.1",
                    # Dask serves its figures by HTTP in any case; a port of its own keeps two runs apart.
                    dashboard_address="127.0.0.1:0",
                    silence_logs=_LEAST_LOGGED,
                    scheduler_kwargs={"dashboard": False},
                )
                stack.enter_context(cluster)
                client = stack.enter_context(Client(cluster, set_as_default=False))
        except (OSError, RuntimeError) as error:
            raise ClusterFailed(f"cannot start processes to read the traces ({said(error)}).") from None
        processes_here = _Own(client, cluster, processes)
        processes_here.start()
        yield processes_here


@contextmanager
def connected(address: str) -> Iterator[Cluster]:
    """The cluster whose scheduler listens at this address.

    Raises MissingPackage without Dask, ClusterFailed where no scheduler answers.
    """
    _require_dask()
    from distributed import Client

    with _silence():
        try:
            client = Client(address, timeout=_ANSWER_S, set_as_default=False, name="overlapscope")
        except (OSError, ValueError, RuntimeError) as error:
            raise ClusterFailed(
                f"{address}: no Dask scheduler answers there ({said(error)}); start one with `dask scheduler`, and its "
                "workers with `dask worker ADDRESS`."
            ) from None
        with client:
            yield _Foreign(client, address)


def scratch() -> str | None:
    """Where this process may leave files, if it is a worker: what it leaves there goes when it dies."""
    if sys.modules.get("distributed") is None:
        return None
    from distributed import get_worker

    try:
        return str(get_worker().local_directory)
    except ValueError:
        return None


def has_dask() -> bool:
    """Whether there can be a cluster."""
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
    """Holds an interrupt back, in the threads started meanwhile and their processes for good.

    Ctrl-C reaches all processes of a terminal. Ending the workers is for this one to do; by themselves each would print
    where it was.
    """
    # Started later, Python's tracker of semaphores would let interrupts through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _silence() -> Iterator[None]:
    """Keeps to itself what Dask logs of workers that die and connections that break: it is said once, by us."""
    handlers = logging.getLogger("distributed").handlers
    before = [handler.level for handler in handlers]
    for handler in handlers:
        handler.setLevel(_LEAST_LOGGED)
    try:
        yield
    finally:
        for handler, level in zip(handlers, before, strict=True):
            handler.setLevel(level)
