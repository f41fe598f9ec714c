"""Has a profiler that stops leave nothing behind in the program.

It would leave CUPTI attached, and the program slower for good: 1.2 to 1.45 times where the host's time is the step's
(H200, torch 2.11, CUDA 13). Kineto detaches it if TEARDOWN_CUPTI says so; the next start then takes some 12 ms. With
CUDA graphs that crashes programs before CUDA 13 (torch/profiler/profiler.py), so there all is left as it is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from overlapscope.recorder import devices

_TEARDOWN, _NO_REINIT = "TEARDOWN_CUPTI", "DISABLE_CUPTI_LAZY_REINIT"
_FIRST_CUDA = 13
_THREADS = "/proc/self/task"
_PATIENCE_NS = 1_000_000_000
_BETWEEN_CALLS_S = 0.001


@contextmanager
def detached() -> Iterator[None]:
    """A profiler that stops inside has let go of the program behind it. Takes some 10 to 20 ms more."""
    if not (devices.cuda_is_up() and _may_be_detached()):
        yield
        return
    said = os.environ.get(_TEARDOWN)
    os.environ[_TEARDOWN] = "1"
    before = _threads()
    try:
        yield
    finally:
        if said is None:
            del os.environ[_TEARDOWN]
        else:
            os.environ[_TEARDOWN] = said
        _await(_threads() - before)


def stays_attached() -> bool:
    """Return whether steps behind a recording are no longer plain: there is a GPU, and CUPTI may not be detached."""
    import torch

    return torch.version.cuda is not None and torch.cuda.device_count() > 0 and not _may_be_detached()


def _may_be_detached() -> bool:
    import torch

    if int((torch.version.cuda or "0").partition(".")[0]) < _FIRST_CUDA:
        return False
    # A user's own word counts; torch's, where it finds CUDA graphs, comes with another.
    forbidden = os.environ.get(_TEARDOWN) == "0" and os.environ.get(_NO_REINIT) != "1"
    return not forbidden and os.path.isdir(_THREADS)


def _await(threads: set[str]) -> None:
    """Wait for the thread that Kineto leaves it to.

    It does its work inside the program's next call of CUDA. A process that ends before that hangs.
    """
    until = time.monotonic_ns() + _PATIENCE_NS
    while threads & _threads() and time.monotonic_ns() < until:
        # The device may have failed, but it was called.
        with suppress(RuntimeError):
            devices.synchronize()
        time.sleep(_BETWEEN_CALLS_S)


def _threads() -> set[str]:
    return set(os.listdir(_THREADS))
