"""Helping processes: when there may be any, and how they begin and end."""

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
    """How many cores this process may use, up to MOST_PROCESSES."""
    if sys.platform != "linux":
        return 1
    cores = len(os.sched_getaffinity(0))
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, int(quota) // int(period))
    return min(cores, MOST_PROCESSES)


def alone() -> bool:
    """Whether no other Python thread runs, which a fork would leave behind with the locks it holds."""
    return len(sys._current_frames()) == 1 and threading.current_thread() is threading.main_thread()


@contextmanager
def signals_later() -> Iterator[None]:
    """Holds back what would interrupt this process, lest it forgets a helper that it is just starting."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def fork(work: Callable[[], object]) -> int:
    """Starts a process that does the work and ends, whatever happens, without a word. Returns its id.

    Call it inside `signals_later`. Raises OSError where no process can be made.
    """
    with warnings.catch_warnings():
        # Python warns of threads. Its own have been looked for, and those of numpy's libraries stop for a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _work_and_end(work)
    return pid


def fork_into_pipe(work: Callable[[int], object]) -> tuple[int, int] | None:
    """The same with a pipe, to whose end `work` writes: the process, and the end to read from. None where no process
    can be made.
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
    """Waits for a helper to end, and ends it if that takes too long."""
    # Where the application leaves its children to the system, there is nothing to wait for and ChildProcessError.
    with suppress(ChildProcessError, ProcessLookupError):
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() >= deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return
            time.sleep(_POLL_S)
