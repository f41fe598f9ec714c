"""Small Kineto files written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def kernel(ts: float, dur: float, *, stream: int = 7, correlation: int = 1, name: str = "k", **args: Any) -> Event:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": args.get("device", 0),
        "tid": stream,
        "ts": ts,
        "dur": dur,
        "args": {"device": 0, "context": 1, "stream": stream, "correlation": correlation} | args,
    }


def memcpy(ts: float, dur: float, *, name: str = "Memcpy HtoD (Pinned -> Device)", **args: Any) -> Event:
    return kernel(ts, dur, **({"stream": 13, "bytes": 1024} | args)) | {"cat": "gpu_memcpy", "name": name}


def call(ts: float, dur: float, correlation: int, *, name: str = "cudaLaunchKernel", tid: int = 1) -> Event:
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": name,
        "pid": 1,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": {"cbid": 211, "correlation": correlation},
    }


def host(cat: str, name: str, ts: float, dur: float, *, tid: int = 1, **args: Any) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def write(path: Path, events: list[Event], **top: Any) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "baseTimeNanoseconds": 0} | top | {"traceEvents": events}))
    return path
