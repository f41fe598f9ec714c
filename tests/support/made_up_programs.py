"""Programs made up of launches, copies and synchronizes, and a profiler's recordings of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

from overlapscope.trace.model import Kind, Memory, Trace
from tests.support.helpers import MS, US, Host, Op, make_trace

CALL, LATENCY, GAP, RETURN, STAGING = 5 * US, 6 * US, 1 * US, 4 * US, 80 * US
"""Length of a call; from a launch call to its op; between ops of a stream or engine; from an op's end to the return of
the call that waits for it; from a pageable copy's call to the copy."""


class Do(Struct, frozen=True):
    """One thing that the host does, after `work_ns` of its own."""

    what: Literal["kernel", "h2d", "d2h", "pageable", "sync", "step"]
    length_ns: int = 0
    stream: int = 7
    work_ns: int = 10 * US


def record(program: Iterable[Do], *, gb_per_s: float = 50.0) -> Trace:
    """Run it on one GPU with a copy engine for each direction; copies do not slow each other."""
    ops: list[Op] = []
    calls: list[Host] = []
    steps: list[int] = []
    streams: dict[int, int] = {}
    engines: dict[Kind, int] = {}
    now = 1 * MS
    for do in program:
        now += do.work_ns
        if do.what == "step":
            steps.append(now)
            now += 1
            continue
        if do.what == "sync":
            end = max(now + CALL, max(streams.values(), default=0) + RETURN)
            calls.append(Host("cudaDeviceSynchronize", now, end))
            now = end
            continue
        kind = {"kernel": Kind.COMPUTE, "d2h": Kind.D2H}.get(do.what, Kind.H2D)
        pageable = do.what == "pageable"
        ready = max(now + (STAGING if pageable else LATENCY), streams.get(do.stream, 0) + GAP)
        if kind != Kind.COMPUTE:
            ready = max(ready, engines.get(kind, 0) + GAP)
        over = streams[do.stream] = ready + do.length_ns
        if kind != Kind.COMPUTE and not pageable:
            engines[kind] = over
        returned = over + RETURN if pageable else now + CALL
        memory = Memory.PAGEABLE if pageable else Memory.PINNED
        ops.append(
            Op(
                kind,
                ready,
                over,
                do.stream,
                (now, returned),
                "cudaLaunchKernel" if kind == Kind.COMPUTE else "cudaMemcpyAsync",
                source=memory if kind == Kind.H2D else Memory.DEVICE,
                target=Memory.DEVICE if kind != Kind.D2H else memory,
                size=-1 if kind == Kind.COMPUTE else int(do.length_ns * gb_per_s),
            )
        )
        now = returned
    ends = [*steps[1:], now + 1]
    notes = [Host(f"ProfilerStep#{number}", *ends) for number, ends in enumerate(zip(steps, ends, strict=True))]
    return make_trace(ops, calls=calls, annotations=notes, device_names={0: "NVIDIA H200"})


def repeated(step: list[Do], times: int) -> list[Do]:
    """Return a program of this many equal steps."""
    return [do for _ in range(times) for do in (Do("step", work_ns=1), *step)]
