"""A training run of any length, made up in memory: too large to be written as a file and read again.

Each step computes on one stream while batches are uploaded on a second, results downloaded on a third, and gradients
reduced on a fourth. One thread launches everything, a little ahead of the device, each call from a CPU op of its own.
The result is the same for the same number of ops.
"""

from __future__ import annotations

import numpy as np

from overlapscope.trace.model import (
    I64,
    Collectives,
    DeviceAnnotations,
    GpuOps,
    HostEvents,
    Kind,
    Memory,
    RuntimeCalls,
    Syncs,
    Trace,
)

OPS_PER_STEP = 5_000
_KERNELS = tuple(f"void kernel_{number}<float>(float*, int)" for number in range(200))
_NAMES = (
    *_KERNELS,
    "ncclDevKernel_AllReduce_Sum_f32",
    "Memcpy HtoD (Pinned -> Device)",
    "Memcpy DtoH (Device -> Pageable)",
)
_COMM, _H2D, _D2H, _LAUNCH, _COPY, _OP, _FIRST_STEP = range(200, 207)
_KIND_OF_NAME = {_COMM: Kind.COMM, _H2D: Kind.H2D, _D2H: Kind.D2H}
_AHEAD_NS = 300_000

# Share of the ops, median length in ns, and stream.
_STREAMS = {
    Kind.COMPUTE: (0.70, 20_000, 7),
    Kind.H2D: (0.14, 40_000, 13),
    Kind.D2H: (0.11, 30_000, 14),
    Kind.COMM: (0.05, 150_000, 20),
}


def make(ops: int, seed: int = 0) -> Trace:
    """Return a trace of one device with about `ops` GPU ops, as many launches and as many CPU ops."""
    random = np.random.default_rng(seed)
    # Compute is busy for 85% of the time; the mean of its lengths is 13% above their median.
    share, median_ns, _ = _STREAMS[Kind.COMPUTE]
    span_ns = int(share * ops * median_ns * 1.13 / 0.85)
    columns = [_stream(random, kind, int(share * ops), span_ns) for kind, (share, *_) in _STREAMS.items()]
    start, end, kind, name, stream = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    order = np.lexsort((-end, start))
    start, end, kind, name, stream = (column[order] for column in (start, end, kind, name, stream))
    rows = np.arange(len(start))
    copy = (kind == Kind.H2D) | (kind == Kind.D2H)
    # Calls follow one another: each ends before the next begins.
    called = np.maximum.accumulate(start - _AHEAD_NS) + 20 * rows
    called -= called[0]
    returned = called + np.minimum(np.append(np.diff(called), 3_000) - 4, 3_000)
    origin = _AHEAD_NS + int((called - start).max(initial=0)) + 1_000_000
    start, end = start + origin, end + origin
    thread = np.full(len(rows), 1, np.int64)
    steps = np.arange(0, len(rows), OPS_PER_STEP)
    names = (
        *_NAMES,
        "cudaLaunchKernel",
        "cudaMemcpyAsync",
        "aten::op",
        *(f"ProfilerStep#{i}" for i in range(len(steps))),
    )
    calls = RuntimeCalls(
        names,
        called,
        returned,
        np.where(copy, _COPY, _LAUNCH).astype(np.int32),
        rows.astype(np.int32),
        thread,
        correlation=rows + 1,
    )
    return Trace(
        source="synthetic.json",
        names=names,
        gpu_ops=GpuOps(
            names,
            start,
            end,
            name.astype(np.int32),
            rows.astype(np.int32),
            kind.astype(np.int8),
            np.zeros(len(rows), np.int32),
            stream.astype(np.int32),
            correlation=rows + 1,
            launch=rows,
            bytes=np.where(copy, (end - start) * 50, -1),
            source_kind=np.where(kind == Kind.H2D, Memory.PINNED, Memory.DEVICE).astype(np.int8),
            target_kind=np.where(kind == Kind.D2H, Memory.PAGEABLE, Memory.DEVICE).astype(np.int8),
            stated_gb_per_s=np.full(len(rows), -1.0),
            blocks=np.full(len(rows), -1),
            block_threads=np.full(len(rows), -1),
            source_device=np.full(len(rows), -1, np.int32),
            target_device=np.full(len(rows), -1, np.int32),
            graph_node=np.full(len(rows), -1),
        ),
        runtime_calls=calls,
        cpu_ops=HostEvents(
            names, called - 1, returned + 1, np.full(len(rows), _OP, np.int32), rows.astype(np.int32), thread
        ),
        annotations=HostEvents(
            names,
            called[steps] - 2,
            np.append(called[steps[1:]] - 3, returned[-1] + 2),
            (_FIRST_STEP + np.arange(len(steps))).astype(np.int32),
            steps.astype(np.int32),
            np.ones(len(steps), np.int64),
        ),
        python_frames=HostEvents.empty(names=names),
        overheads=HostEvents.empty(names=names),
        syncs=Syncs.empty(names=names),
        device_annotations=DeviceAnnotations.empty(names=names),
        collectives=Collectives.empty(names=names),
        device_names={0: "made-up GPU"},
        start_ns=0,
        end_ns=int(end.max()) + 1,
    )


def _stream(random: np.random.Generator, kind: Kind, count: int, span_ns: int) -> tuple[I64, I64, I64, I64, I64]:
    """Start, end, kind, name and stream of the ops of one stream, one after the other over the whole span."""
    _, median_ns, stream = _STREAMS[kind]
    length = np.maximum(random.lognormal(np.log(median_ns), 0.5, count).astype(np.int64), 1_000)
    # Most gaps are short, a few are long.
    weight = random.pareto(1.5, count) + 0.01
    free = max(span_ns - int(length.sum()), count)
    gap = (weight / weight.sum() * free).astype(np.int64)
    end = np.cumsum(length + gap)
    name = random.integers(0, len(_KERNELS), count)
    for place, meant in _KIND_OF_NAME.items():
        if meant is kind:
            name[:] = place
    return end - length, end, np.full(count, kind), name, np.full(count, stream)
