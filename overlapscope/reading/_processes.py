"""Helper processes: when they may be used, and how they start and end."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

MOST_PROCESSES = 8
_POLL_S = 0.0005
_STOPPING = (signal.SIGINT, signal.SIGTERM)


def usable_cores() -> int:
    """Return the number of cores that this process may use, up to MOST_PROCESSES."""
    if sys.platform != "linux":
        return 1
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, int(quota) // int(period))
    return min(cores, MOST_PROCESSES)


def alone() -> bool:
    """Return whether this is the only Python thread. A fork would copy the locks that other threads hold."""
    return len(sys._current_frames()) == 1 and threading.current_thread() is threading.main_thread()


@contextmanager
def signals_later() -> Iterator[None]:
    """Defer signals that would interrupt this process while it starts a helper, so that it keeps track of it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def fork(work: Callable[[], object]) -> int:
    """Start a process that does the work and ends, silently whatever happens; return its id.

    Call this inside `signals_later`.

    Raises:
        OSError: No process can be started.
    """
    with warnings.catch_warnings():
        # Python warns about threads. It has no other threads here, and the threads of numpy's libraries stop for a
        # fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _work_and_end(work)
    return pid


def fork_into_pipe(work: Callable[[int], object]) -> tuple[int, int] | None:
    """Start a process with a pipe that `work` writes to.

    Returns:
        The process and the pipe's reading end; None where no process can be started.
    """
    reading, writing = os.pipe()

    def begin() -> None:
        os.close(reading)
        work(writing)

    try:
        with signals_later():
            pid = fork(begin)
    except OSError:
        os.close(reading)
        return None
    finally:
        os.close(writing)
    return pid, reading


def _work_and_end(work: Callable[[], object]) -> NoReturn:
    try:
        for number in _STOPPING:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
        gc.disable()
        work()
    finally:
        os._exit(0)


def reap(pid: int, deadline: float) -> None:
    """Wait for a helper to end, and kill it after the deadline."""
    # An application may let the system reap its children. Then waiting raises ChildProcessError.
    with suppress(ChildProcessError, ProcessLookupError):
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() >= deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return
            time.sleep(_POLL_S)
