"""Hardware constants for predictions: lengths of copies, and costs of launches, waits and graphs.

They come from a file written by the laboratory's calibration of a GPU, from a trace (`hardware.observe`), or from the
shipped table, which is a calibration of an H200.
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
    """Time of copies of a given size on the device, between pinned memory and the GPU, with nothing beside them."""

    bytes: int
    duration_ns: int
    """Median."""
    low_ns: int
    """10th percentile."""
    high_ns: int
    """90th percentile."""


class Constants(msgspec.Struct, frozen=True, kw_only=True):
    """Hardware constants; None or empty if unknown. Times are medians."""

    h2d: tuple[SizedTime, ...] = ()
    """Ascending by size."""
    d2h: tuple[SizedTime, ...] = ()
    h2d_two_way: float | None = None
    """Rate of H2D copies beside D2H copies, as a fraction of their rate alone."""
    d2h_two_way: float | None = None
    launch_latency_ns: int | None = None
    """Start of a launch call to start of its kernel, with an empty stream."""
    copy_latency_ns: int | None = None
    """Start of an asynchronous copy call to start of its copy, with an empty stream."""
    kernel_gap_ns: int | None = None
    """End of a kernel to start of the next on its stream, if that was launched long before."""
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
    query_call_ns: int | None = None
    """Length of a trivial call, `cudaStreamIsCapturing`, which shows the speed of the host's code."""
    op_cost_ns: int | None = None
    """Overhead of recording a CPU op, while launch calls took `launch_call_ns`."""
    call_cost_ns: int | None = None
    """Overhead of recording a runtime call."""
    frame_cost_ns: int | None = None
    """Overhead of recording a Python function, with stacks."""
    graph_call_ns: int | None = None
    """Length of the launch call of a graph with a single kernel."""
    graph_node_call_ns: float | None = None
    """Additional length for each further kernel."""
    graph_latency_ns: int | None = None
    """Start of a graph's launch call to start of its first kernel, with an empty stream."""
    graph_gap_ns: int | None = None
    """End of a kernel to start of the next inside a graph that is a chain of kernels."""


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Result of `overlapscope scenarios calibrate`, with the hardware and software it ran on."""

    kind: Literal["calibration"] = "calibration"
    gpu: str
    """Product name, as traces state it."""
    date: str | None
    """Day of the measurement (UTC)."""
    torch: str | None
    cuda: str | None
    """CUDA version that PyTorch was built for."""
    driver: str | None
    constants: Constants


def read(path: str | os.PathLike[str]) -> Calibration:
    """Read a calibration from a file.

    Returns:
        The calibration.

    Raises:
        UsageError: There is none; the message says what to do.
    """
    try:
        data = disk.read(Path(path))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read as a calibration ({error.strerror or error}); {_HOW}.") from None
    try:
        return decode(data, Calibration)
    except msgspec.DecodeError as error:
        raise UsageError(f"{path}: is not a calibration of this version of overlapscope ({error}); {_HOW}.") from None


def write(calibration: Calibration, path: Path) -> None:
    """Write a calibration, replacing an earlier one; missing directories are made.

    Raises:
        UsageError: The file can't be written, or is something else, which is kept.
    """
    check_writable(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        disk.write(path, [encode(calibration, indent=1)])
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror or error}); choose another file.") from None


def check_writable(path: Path) -> None:
    """Raise UsageError if a calibration would replace something else."""
    if path.is_dir():
        raise UsageError(f"{path}: is a directory; name a file in it.")
    if path.is_file():
        try:
            read(path)
        except UsageError:
            raise UsageError(f"{path}: exists and is not a calibration; choose another file.") from None


@functools.cache
def shipped() -> Calibration:
    """Return the shipped calibration of an NVIDIA H200."""
    return read(_SHIPPED)
