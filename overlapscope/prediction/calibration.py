"""What a prediction needs to know of the hardware: how long copies take, what a launch, a wait and a graph cost.

The same figures come from the laboratory's calibration of a GPU, which is a file, from a trace
(`observed_hardware`), or from the table that is shipped, which is a calibration of an H200.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Literal

import msgspec

from overlapscope.base import disk
from overlapscope.base.saved import decode, encode
from overlapscope.errors import UsageError

_SHIPPED = Path(__file__).with_name("nvidia-h200.json")
_HOW = "`overlapscope scenarios calibrate` makes one on a GPU"


class SizedTime(msgspec.Struct, frozen=True, kw_only=True):
    """How long copies of one size take on the device, between pinned memory and the GPU, nothing beside them."""

    bytes: int
    duration_ns: int
    """Median."""
    low_ns: int
    """10th percentile."""
    high_ns: int
    """90th percentile."""


class Constants(msgspec.Struct, frozen=True, kw_only=True):
    """None and empty for what is not known. Times are medians."""

    h2d: tuple[SizedTime, ...] = ()
    """By size, ascending."""
    d2h: tuple[SizedTime, ...] = ()
    h2d_two_way: float | None = None
    """Rate of H2D copies beside D2H copies over their rate alone: 0.9 where both at once slow each other by a tenth."""
    d2h_two_way: float | None = None
    launch_latency_ns: int | None = None
    """Start of a launch call to start of its kernel, the stream being empty."""
    copy_latency_ns: int | None = None
    """Start of an asynchronous copy call to start of its copy, likewise."""
    kernel_gap_ns: int | None = None
    """End of a kernel to start of the next on its stream, which had been launched long before."""
    handover_ns: int | None = None
    """End of an op to start of the op on another stream that an event held back until then."""
    return_ns: int | None = None
    """End of the last op that a blocking call waits for to the call's return."""
    sync_call_ns: int | None = None
    """Length of a synchronize that has nothing to wait for."""
    launch_call_ns: int | None = None
    """Length of a kernel's launch call."""
    copy_call_ns: int | None = None
    """Length of the call of an asynchronous copy from or to pinned memory."""
    event_call_ns: int | None = None
    """Length of an event's record or wait call."""
    query_call_ns: int | None = None
    """Length of a call that does next to nothing, `cudaStreamIsCapturing`: how fast the host's code runs."""
    op_cost_ns: int | None = None
    """How much longer the host takes for a CPU op that is recorded than for one that is not..."""
    call_cost_ns: int | None = None
    """...for a runtime call..."""
    frame_cost_ns: int | None = None
    """...and for a Python function, with stacks. While launch calls took as long as `launch_call_ns` says."""
    graph_call_ns: int | None = None
    """Length of the launch call of a graph of one kernel..."""
    graph_node_call_ns: float | None = None
    """...and how much each further kernel adds."""
    graph_latency_ns: int | None = None
    """Start of a graph's launch call to start of its first kernel, the stream being empty."""
    graph_gap_ns: int | None = None
    """End of a kernel to start of the next inside a graph of one chain of kernels."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `overlapscope scenarios calibrate` measured, and on what."""

    kind: Literal["calibration"] = "calibration"
    gpu: str
    """Product name, as traces state it."""
    date: str | None
    """Day of the measurement (UTC)."""
    torch: str | None
    cuda: str | None
    """The version PyTorch was built for."""
    driver: str | None
    constants: Constants


def read(path: str | os.PathLike[str]) -> Calibration:
    """The calibration in a file. Raises UsageError, with what to do, where there is none."""
    try:
        data = disk.read(Path(path))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read as a calibration ({error.strerror or error}); {_HOW}.") from None
    try:
        return decode(data, Calibration)
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}: is not a calibration of this version of overlapscope ({error}); {_HOW}.") from None


def write(calibration: Calibration, path: Path) -> None:
    """Write a calibration, in place of an earlier one; its directory is made.

    Raises UsageError where that cannot be done, or the file is something else, which is kept.
    """
    check_writable(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        disk.write(path, [encode(calibration, indent=1)])
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror or error}); choose another file.") from None


def check_writable(path: Path) -> None:
    """Raises UsageError where a calibration would replace something else."""
    if path.is_dir():
        raise UsageError(f"{path}: is a directory; name a file in it.")
    if path.is_file():
        try:
            read(path)
        except UsageError:
            raise UsageError(f"{path}: exists and is not a calibration; choose another file.") from None


@functools.cache
def shipped() -> Calibration:
    """The calibration of an NVIDIA H200 that comes with overlapscope."""
    return read(_SHIPPED)
