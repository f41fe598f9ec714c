"""Growth of the analysis with devices, streams, threads, steps and ranges, on made-up traces: `python -m
benchmarks.lanes`.

The table has CPU seconds of reading, analysis and report; what doubles with the launches grows with ops, not lanes.
On a shared machine of two cores:

| launches | 1,250 | 2,500 | 5,000 |
|---|---|---|---|
| one of each | 0.11 | 0.11 | 0.17 |
| 256 devices | 1.95 | 2.19 | 2.48 |
| a stream for each launch | 0.53 | 1.05 | 2.08 |
| a thread for each launch | 0.25 | 0.50 | 0.98 |
| a step for each launch | 0.21 | 0.39 | 0.76 |
| a range for each launch | 0.11 | 0.18 | 0.33 |

`analyze --format html` of 5,000 streams takes 5.7 s.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec

import overlapscope as ov
from overlapscope.base.saved import encode

LAUNCHES = (1_250, 2_500, 5_000)
MANY = {"one of each": {}, "256 devices": {"devices": 256}} | {
    f"a {item} for each launch": {f"{item}s": max(LAUNCHES)} for item in ("stream", "thread", "step", "range")
}


def made_up(
    launches: int, *, devices: int = 1, streams: int = 1, threads: int = 1, steps: int = 0, ranges: int = 0
) -> dict[str, Any]:
    """Return a trace of launches in turn on all devices, streams and threads; every fourth op is a copy."""
    events: list[dict[str, Any]] = []

    def add(cat: str, name: str, pid: int, tid: int, ts: float, dur: float, **args: int) -> None:
        events.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args})

    for number in range(launches):
        device, stream, at = number % devices, 7 + number // devices % streams, 10.0 * number + 1.5
        add("cuda_runtime", "cudaLaunchKernel", 1, 1 + number % threads, at, 2.0, correlation=number + 1)
        of = {"device": device, "stream": stream, "correlation": number + 1}
        if number % 4:
            add("kernel", "gemm", device, stream, at + 4, 8.0, **of)
        else:
            add("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", device, stream, at + 4, 8.0, bytes=4096, **of)
    for count, name in ((min(steps, launches), "ProfilerStep#"), (min(ranges, launches), "range ")):
        length = 10.0 * launches / max(1, count)
        for number in range(count):
            add("user_annotation", f"{name}{number}", 1, 1, number * length + 1, length - 0.5)
    return {"schemaVersion": 1, "traceEvents": events}


def main() -> None:
    print(f"| {' | '.join(('launches', *(f'{launches:,}' for launches in LAUNCHES)))} |\n|{'---|' * 4}")
    with tempfile.TemporaryDirectory() as folder:
        for what, many in MANY.items():
            row = []
            for launches in LAUNCHES:
                path = Path(folder) / "trace.json"
                path.write_bytes(msgspec.json.encode(made_up(launches, **many)))
                begun = time.process_time()
                encode(ov.analyze(ov.load(path, cache=False)))
                row.append(f"{time.process_time() - begun:.2f}")
            print(f"| {' | '.join((what, *row))} |", flush=True)


if __name__ == "__main__":
    main()
