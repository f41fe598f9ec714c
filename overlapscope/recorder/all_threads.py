"""Has the profiler record the ops of all threads, and stop without a crash.

By itself torch.profiler records the ops of the thread that starts it, and of autograd's threads that work for that one.
From torch 2.7 on it can be asked for those of every thread. But up to torch 2.13 at least it frees, when it stops,
what other threads may be writing an op to (pytorch PRs 187483 and 188172): with four threads busy, 2 of 600 stops
ended the process. So the recording of ops is switched off before, and the profiler stopped once every thread has been
seen at rest, or has run for long enough to have left what it was in.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_THREADS = "/proc/self/task"
_NOTED_WITHIN_NS = 200_000
"""Of a thread's running time. To note an op takes a microsecond, or some ten where memory is to be had first."""
_BETWEEN_LOOKS_S = 0.001
_PATIENCE_S = 1.0
_BLIND_WAIT_S = 0.05
"""Where the system does not tell what threads do."""
_ERROR = 2
"""torch's level of log messages that are errors."""


def possible() -> bool:
    """Return whether this torch can record the ops of all threads."""
    import torch
    from torch._C._profiler import _ExperimentalConfig

    known = "profile_all_threads" in (_ExperimentalConfig.__init__.__doc__ or "")
    return known and hasattr(torch._C._autograd, "_toggle_collection_dynamic")


def settle() -> None:
    """Record no more ops, and wait until no thread is noting one: a profiler of all threads may be stopped then."""
    import torch
    from torch.profiler import ProfilerActivity

    autograd: Any = torch._C._autograd
    with quiet():
        autograd._toggle_collection_dynamic(False, {ProfilerActivity.CPU})
    if not os.path.isdir(_THREADS):
        time.sleep(_BLIND_WAIT_S)
        return
    waiting = _threads()
    until = time.monotonic() + _PATIENCE_S
    while waiting and time.monotonic() < until:
        time.sleep(_BETWEEN_LOOKS_S)
        now = _threads()
        waiting = {thread: waiting[thread] for thread in waiting.keys() & now.keys()}
        for thread, (rested, ran_ns) in list(waiting.items()):
            rests, has_run_ns = now[thread]
            if (rested and rests) or has_run_ns - ran_ns > _NOTED_WITHIN_NS:
                del waiting[thread]
            else:
                waiting[thread] = rests, ran_ns


def _threads() -> dict[str, tuple[bool, int]]:
    """Of each thread but this one, whether it rests, and for how long it has run."""
    threads: dict[str, tuple[bool, int]] = {}
    for thread in os.listdir(_THREADS):
        if int(thread) != threading.get_native_id():
            try:
                with (
                    open(f"{_THREADS}/{thread}/stat", "rb") as stat,
                    open(f"{_THREADS}/{thread}/schedstat", "rb") as ran,
                ):
                    # A thread's name may have anything in it.
                    rests = stat.read().rpartition(b")")[2].split()[0] == b"S"
                    threads[thread] = rests, int(ran.read().split()[0])
            except (OSError, IndexError):
                continue
    return threads


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps torch's warnings from stderr: among others, it says what comes of switching the ops off while GPUs are
    recorded, which end with them here.
    """
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
