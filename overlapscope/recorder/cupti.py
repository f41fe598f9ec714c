"""Detaching CUPTI when profiling stops.

CUPTI slows the program while it is attached: 1.2 to 1.45 times if the host bounds the step (H200, torch 2.11,
CUDA 13). Kineto detaches it if TEARDOWN_CUPTI is set; the next start then takes some 12 ms. Before CUDA 13, this
crashes programs that use CUDA graphs (torch/profiler/profiler.py), so CUPTI stays attached there.
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
    """Detach CUPTI from the program when a profiler stops inside this context. Takes some 10 to 20 ms more."""
    if not (devices.cuda_is_up() and _may_be_detached()):
        yield
        return
    user_setting = os.environ.get(_TEARDOWN)
    os.environ[_TEARDOWN] = "1"
    before = _threads()
    try:
        yield
    finally:
        if user_setting is None:
            del os.environ[_TEARDOWN]
        else:
            os.environ[_TEARDOWN] = user_setting
        _await(_threads() - before)


def stays_attached() -> bool:
    """Return whether CUPTI slows the steps after a recording: a GPU exists, and CUPTI may not be detached."""
    import torch

    return torch.version.cuda is not None and torch.cuda.device_count() > 0 and not _may_be_detached()


def _may_be_detached() -> bool:
    import torch

    if int((torch.version.cuda or "0").partition(".")[0]) < _FIRST_CUDA:
        return False
    # If torch forbids it because of CUDA graphs, it also sets the other variable; otherwise the user forbade it.
    forbidden = os.environ.get(_TEARDOWN) == "0" and os.environ.get(_NO_REINIT) != "1"
    return not forbidden and os.path.isdir(_THREADS)


def _await(threads: set[str]) -> None:
    """Wait for the threads of Kineto that detach CUPTI.

    They do so inside the program's next call of CUDA. A process that ends before that hangs.
    """
    until = time.monotonic_ns() + _PATIENCE_NS
    while threads & _threads() and time.monotonic_ns() < until:
        # Even if the device has failed, this calls CUDA.
        with suppress(RuntimeError):
            devices.synchronize()
        time.sleep(_BETWEEN_CALLS_S)


def _threads() -> set[str]:
    return set(os.listdir(_THREADS))
