"""Recording the ops of all threads, and stopping without a crash.

By default, torch.profiler records the ops of the thread that starts it, and of the autograd threads that work for that
thread. Since torch 2.7, it can record all threads. But up to torch 2.13 at least, its stop frees memory to which other
threads may be writing an op (pytorch PRs 187483 and 188172): with four busy threads, 2 of 600 stops ended the process.
So the recording of ops is switched off first. The profiler stops once every thread was at rest, or has run for long
enough to have finished writing an op.

An op that is under way at the stop writes its end into the freed memory if another profiler of all threads runs by
then. As long as a thread may be inside such an op, a profiler records one thread: the op doesn't write its end for it.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

_THREADS = "/proc/self/task"
_NOTED_WITHIN_NS = 200_000
"""Running time of a thread within which it has written an op: this takes 1 us, or some 10 us to allocate memory."""
_BETWEEN_LOOKS_S = 0.001
_PATIENCE_S = 1.0
_BLIND_WAIT_S = 0.05
"""Time to wait if the system does not show the state of threads, in seconds."""
_ERROR = 2
"""torch's level of log messages that are errors."""


def is_supported() -> bool:
    """Return whether this torch can record the ops of all threads."""
    import torch
    from torch._C._profiler import _ExperimentalConfig

    has_option = "profile_all_threads" in (_ExperimentalConfig.__init__.__doc__ or "")
    return has_option and hasattr(torch._C._autograd, "_toggle_collection_dynamic")


def switch_off() -> None:
    """Have a profiler of all threads record no more ops. Those under way still get their end."""
    import torch
    from torch.profiler import ProfilerActivity

    autograd: Any = torch._C._autograd
    with quiet():
        autograd._toggle_collection_dynamic(False, {ProfilerActivity.CPU})


WHY_NOT_AGAIN = (
    "an op was under way when an earlier recording of all threads ended, and its end during another one would crash "
    "the program"
)
_left: set[int] = set()
"""System's numbers of threads that may be inside an op that a profiler of all threads has begun to record."""


def leave(threads: Collection[int]) -> None:
    """Note threads that were inside an op when a profiler of all threads stopped."""
    _left.update(threads)


def left_ops_are_over() -> bool:
    """Return whether no such op can be under way any more, since its thread has ended."""
    if _left and os.path.isdir(_THREADS):
        _left.intersection_update({thread for thread in _left if os.path.exists(f"{_THREADS}/{thread}")})
    return not _left


def settle() -> None:
    """Wait until no thread is writing an op, so that a profiler of all threads may stop after `switch_off`."""
    if not os.path.isdir(_THREADS):
        time.sleep(_BLIND_WAIT_S)
        return
    waiting = _threads()
    until = time.monotonic() + _PATIENCE_S
    while waiting and time.monotonic() < until:
        time.sleep(_BETWEEN_LOOKS_S)
        now = _threads()
        waiting = {thread: waiting[thread] for thread in waiting.keys() & now.keys()}
        for thread, before in list(waiting.items()):
            rests, ran_ns = now[thread]
            if (before.rests and rests) or ran_ns - before.ran_ns > _NOTED_WITHIN_NS:
                del waiting[thread]
            else:
                waiting[thread] = _ThreadState(rests, before.ran_ns)


class _ThreadState(NamedTuple):
    rests: bool
    """True while the thread waits in the kernel."""
    ran_ns: int
    """Time that it has run so far."""


def _threads() -> dict[str, _ThreadState]:
    """Return the state of each other thread, by its number."""
    threads: dict[str, _ThreadState] = {}
    for thread in os.listdir(_THREADS):
        if int(thread) != threading.get_native_id():
            try:
                with (
                    open(f"{_THREADS}/{thread}/stat", "rb") as stat,
                    open(f"{_THREADS}/{thread}/schedstat", "rb") as ran,
                ):
                    # A thread's name, in parentheses, may contain any character.
                    rests = stat.read().rpartition(b")")[2].split()[0] == b"S"
                    threads[thread] = _ThreadState(rests, int(ran.read().split()[0]))
            except (OSError, IndexError):
                continue
    return threads


@contextmanager
def quiet() -> Iterator[None]:
    """Keep torch's warnings from stderr, such as the warning about switching ops off while GPUs are recorded."""
    try:
        level = ctypes.c_int.in_dll(ctypes.CDLL("libc10.so"), "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        yield
        return
    before, level.value = level.value, max(level.value, _ERROR)
    try:
        yield
    finally:
        level.value = before
