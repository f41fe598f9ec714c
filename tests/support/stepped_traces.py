"""Kineto files of programs made of steps: in each a kernel, then a copy on the same stream, then nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

JITTER_US = (0.0, 0.3, -0.2, 0.1, -0.3, 0.2, -0.1, 0.4)
"""Additional length of each step's kernel, in turn."""


def write_steps(
    path: Path,
    steps: int = 8,
    *,
    compute_us: float = 600.0,
    copy_us: float = 200.0,
    idle_us: float = 100.0,
    direction: str = "HtoD",
    hidden: bool = False,
    rank: int | None = None,
    world_size: int = 1,
    gpu: str = "GPU A",
    cuda: int = 12080,
    marked: bool = True,
    ranges: bool = False,
    memory: str = "Pinned",
    slow: dict[int, float] | None = None,
    nbytes: int = 10_000_000,
) -> str:
    """Write a trace. `hidden` copies run beside the kernel; `slow` is added to the kernel of some steps, in us;
    `ranges` puts the record_function range `forward` around what a step launches. Each step is a `ProfilerStep`."""
    events: list[dict[str, Any]] = []
    at = 1000.0
    for step in range(steps):
        kernel_us = compute_us + JITTER_US[step % len(JITTER_US)] + (slow or {}).get(step, 0.0)
        first = 10 * step + 1
        span = kernel_us + (0.0 if hidden else copy_us) + idle_us
        if marked:
            events.append(_event("user_annotation", f"ProfilerStep#{step + 3}", at, span))
        if ranges:
            events.append(_event("user_annotation", "forward", at + 1, 20))
        events += [
            _event("cpu_op", "aten::mm", at + 2, 4),
            _event("cuda_runtime", "cudaLaunchKernel", at + 3, 2, correlation=first),
            _event("kernel", "gemm", at + 10, kernel_us, correlation=first, device=0, stream=7),
        ]
        if copy_us:
            begin = at + 12 if hidden else at + 10 + kernel_us
            host, device = (memory, "Device") if direction == "HtoD" else ("Device", memory)
            events += [
                _event("cpu_op", "aten::copy_", at + 6, 4),
                _event("cuda_runtime", "cudaMemcpyAsync", at + 7, 2, correlation=first + 1),
                _event(
                    "gpu_memcpy",
                    f"Memcpy {direction} ({host} -> {device})",
                    begin,
                    copy_us,
                    correlation=first + 1,
                    device=0,
                    stream=9 if hidden else 7,
                    bytes=nbytes,
                ),
            ]
        at += span
    # The last step ends like the others.
    events += [
        _event("cuda_runtime", "cudaLaunchKernel", at + 3, 2, correlation=9_999_999),
        _event("kernel", "last", at + 10, 1, correlation=9_999_999, device=0, stream=7),
    ]
    content: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": gpu}],
        "cuda_runtime_version": cuda,
        "traceEvents": events,
    }
    if rank is not None:
        content["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world_size}
    path.write_bytes(msgspec.json.encode(content))
    return str(path)


def _event(category: str, name: str, start: float, duration: float, **args: Any) -> dict[str, Any]:
    event = {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, "pid": 1, "tid": 1}
    return event | {"args": args}
