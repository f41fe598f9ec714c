"""Less of CUPTI, through which Kineto records GPUs: calls that it leaves out, and detaching it at the end.

CUPTI records every call of the CUDA runtime and driver, and Kineto drops most of those that only ask or set something,
such as `cudaGetLastError` after each launch. They cost the program nothing if CUPTI itself leaves them out.

CUPTI slows the program while it is attached: 1.2 to 1.45 times if the host bounds the step (H200, torch 2.11,
CUDA 13). Kineto detaches it if TEARDOWN_CUPTI is set; the next start then takes some 12 ms. Before CUDA 13, this
crashes programs that use CUDA graphs (torch/profiler/profiler.py), so CUPTI stays attached there.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from overlapscope.recorder import devices
from overlapscope.recorder.wrapping import with_variable

_TEARDOWN, _NO_REINIT = "TEARDOWN_CUPTI", "DISABLE_CUPTI_LAZY_REINIT"
_FIRST_CUDA = 13
_THREADS = "/proc/self/task"
_PATIENCE_NS = 1_000_000_000
_BETWEEN_CALLS_S = 0.001
_MAX_CALLS = 2000
"""More than the numbers of calls of an interface of CUDA; CUDA 13.0's driver has some 800."""
_BOOKKEEPING = (
    (
        "Runtime",
        2,
        r"cuda(GetDevice|SetDevice|GetLastError|PeekAtLastError|GetErrorString|GetErrorName|DeviceGetAttribute"
        r"|EventCreate(WithFlags)?|EventDestroy)",
    ),
    (
        "Driver",
        1,
        r"cu(Ctx(Get|Set|Push|Pop)\w+|Device(Get|PrimaryCtxGet)\w*|(Func|Kernel|Library|Module|Pointer|Stream)(Get|Set)\w+"
        r"|Event(Create|Destroy)|StreamIsCapturing|Occupancy\w+|TensorMap\w+|Get(ProcAddress|ErrorName|ErrorString)"
        r"|DriverGetVersion|ThreadExchangeStreamCaptureMode)",
    ),
)
"""Interface, its number in CUPTI (`CUpti_CallbackDomain`), and names of calls that give a GPU no work and wait for
nothing. Kineto drops those of the driver, and those of the runtime that concern devices, events or the last error
(`CuptiCbidRegistry.cpp`). `cudaStreamIsCapturing` is kept, since its length tells how fast the host is."""
_VERSION = r"(_v\d+|_ptsz|_ptds)*"


@functools.cache
def library() -> ctypes.CDLL | None:
    """Return CUPTI as torch has loaded it; None without it."""
    import torch

    try:
        return ctypes.CDLL(f"libcupti.so.{(torch.version.cuda or '').partition('.')[0]}")
    except OSError:
        return None


def record_bookkeeping(record: bool) -> None:
    """Have CUPTI record calls that only ask or set something, or leave them out, while the profiler runs.

    Where CUPTI stays attached, nothing is left out, since such a choice might outlive the profiler.
    """
    import torch

    if not (torch.cuda.is_available() and _may_be_detached()):
        return
    for interface, number in _bookkeeping_calls():
        getattr(library(), f"cuptiActivityEnable{interface}Api")(ctypes.c_uint32(number), ctypes.c_uint8(record))


@functools.cache
def _bookkeeping_calls() -> tuple[tuple[str, int], ...]:
    """Return their interfaces and CUPTI's numbers; none if CUPTI cannot leave calls out."""
    cupti: Any = library()
    if not hasattr(cupti, "cuptiActivityEnableDriverApi"):
        return ()
    found, name = [], ctypes.c_char_p()
    for interface, domain, pattern in _BOOKKEEPING:
        for number in range(1, _MAX_CALLS):
            failed = cupti.cuptiGetCallbackName(domain, ctypes.c_uint32(number), ctypes.byref(name))
            if not failed and re.fullmatch(pattern + _VERSION, (name.value or b"").decode()):
                found.append((interface, number))
    return tuple(found)


@contextmanager
def detached() -> Iterator[None]:
    """Detach CUPTI from the program when a profiler stops inside this context. Takes some 10 to 20 ms more."""
    if not (devices.cuda_is_up() and _may_be_detached()):
        yield
        return
    before = _threads()
    try:
        with with_variable(_TEARDOWN, "1"):
            yield
    finally:
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
