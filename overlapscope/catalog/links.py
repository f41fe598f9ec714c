"""Speeds of the links between GPUs, by the GPUs' names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_NVLINK: Final = (
    (re.compile(r"(Tesla |NVIDIA )?V100-SXM\d"), 150.0),
    (re.compile(r"(NVIDIA )?A100-SXM4"), 300.0),
    (re.compile(r"NVIDIA (H100 80GB HBM3|H200)$"), 450.0),
    (re.compile(r"NVIDIA G?B200\b"), 900.0),
)
"""GPUs whose boards connect all of them by NVLink, and the GB/s of a GPU each way: half of what NVIDIA's data sheets
state. Cards for PCIe have other names."""


def nvlink_gb_per_s(devices: Iterable[str | None]) -> float | None:
    """Return the bandwidth of NVLink each way; None if it is unknown for any of these GPUs, or they differ."""
    speeds = {next((speed for name, speed in _NVLINK if device and name.match(device)), None) for device in devices}
    return speeds.pop() if len(speeds) == 1 else None
