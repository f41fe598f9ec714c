"""Minimal traces for the rules, each written so that its truth is plain."""

from __future__ import annotations

from collections.abc import Sequence

from overlapscope.trace.model import Kind, Memory, Trace
from tests.support.helpers import MS, US, Host, Op, Wait, make_trace

MIB = 1 << 20


def uploads(
    lengths_ms: Sequence[float],
    *,
    memory: Memory = Memory.PINNED,
    beside: Kind | None = None,
    beside_compute: bool = False,
    size: int = 16 * MIB,
) -> Trace:
    """Uploads of equal size on stream 20, 1 ms apart; `beside` puts a copy of that kind beside each, on stream 21."""
    ops, now = [Op(Kind.COMPUTE, 0, MS, launch=(-100 * US, -90 * US))], 2 * MS
    for length in lengths_ms:
        end = now + round(length * MS)
        launch = (now - 20 * US, now - 10 * US)
        call = "cudaMemcpyAsync"
        ops.append(Op(Kind.H2D, now, end, stream=20, launch=launch, call=call, source=memory, size=size))
        if beside is not None:
            side = (now - 9 * US, now - 5 * US)
            ops.append(Op(beside, now, end, 21, side, call, source=Memory.DEVICE, target=Memory.PINNED, size=size))
        if beside_compute:
            ops.append(Op(Kind.COMPUTE, now, end, launch=(now - 4 * US, now - 2 * US)))
        now = end + MS
    ops.append(Op(Kind.COMPUTE, now, now + MS, launch=(now - 20 * US, now - 10 * US)))
    return make_trace(ops)


def scalars(count: int) -> Trace:
    """Compute, then `.item()`, over and over: 4 bytes down, a synchronize, 100 us until the next launch."""
    ops, calls, cpu_ops, now = [], [], [], 0
    for _ in range(count):
        ops.append(Op(Kind.COMPUTE, now, now + MS, launch=(now - 10 * US, now - 5 * US)))
        copied = now + MS + 2 * US
        ops.append(
            Op(
                Kind.D2H,
                now + MS,
                copied,
                launch=(now + 10 * US, now + 15 * US),
                call="cudaMemcpyAsync",
                source=Memory.DEVICE,
                target=Memory.PINNED,
                size=4,
            )
        )
        calls.append(Host("cudaStreamSynchronize", now + 16 * US, copied + 5 * US))
        cpu_ops.append(Host("aten::_local_scalar_dense", now + 9 * US, copied + 6 * US))
        now = copied + 100 * US
    return make_trace(ops, calls=calls, cpu_ops=cpu_ops)


def blocking_uploads(memory: Memory, *, cpu_ops: bool = True, op: str = "aten::copy_") -> Trace:
    """Three uploads of 2 ms on stream 20, each waited for inside its own op before compute is launched."""
    ops, calls, around, now = [], [], [], 0
    for _ in range(3):
        launch = (now - 20 * US, now - 10 * US)
        ops.append(Op(Kind.H2D, now, now + 2 * MS, 20, launch, "cudaMemcpyAsync", source=memory, size=100 * MIB))
        calls.append(Host("cudaStreamSynchronize", now - 9 * US, now + 2 * MS + 10 * US))
        around.append(Host(op, now - 25 * US, now + 2 * MS + 12 * US))
        start = now + 2 * MS + 30 * US
        ops.append(Op(Kind.COMPUTE, start, start + 3 * MS, launch=(start - 10 * US, start - 5 * US)))
        now = start + 3 * MS + 30 * US
    return make_trace(ops, calls=calls, cpu_ops=around if cpu_ops else ())


def two_streams(*, waits: bool, beside: bool = False) -> Trace:
    """Twenty kernels that take turns on two streams, all launched at the start; by event wait or not.

    `beside`: those of the second stream run beside those of the first instead.
    """
    ops, edges = [], []
    for turn in range(20):
        stream = (13, 17)[turn % 2]
        host = -1000 * US + turn * 20 * US
        start = (turn // 2 if beside else turn) * MS
        ops.append(Op(Kind.COMPUTE, start, start + MS - 2 * US, stream, (host + 10 * US, host + 15 * US)))
        if waits and turn:
            edges.append((host, stream))
    records = [Host("cudaEventRecord", host - 2 * US, host - 1 * US) for host, _ in edges]
    return make_trace(ops, calls=records, waits=[Wait(host, stream) for host, stream in edges])


def collective(exposed_ms: float, *, name: str = "ncclDevKernel_AllReduce") -> Trace:
    """Ten ms of compute and a collective that outlasts it."""
    end = 10 * MS + round(exposed_ms * MS)
    return make_trace(
        [
            Op(Kind.COMPUTE, 0, 10 * MS, launch=(-20 * US, -10 * US)),
            Op(Kind.COMM, 8 * MS, end, stream=30, launch=(-5 * US, -1 * US), name=name),
        ]
    )


def in_turns(*, both_streams: bool = False, turns: int = 5, at_once: bool = False) -> Trace:
    """Return uploads and downloads of 2 ms, in turns or at once, with hardly any compute."""
    ops = [Op(Kind.COMPUTE, 0, 100 * US, launch=(-40 * US, -30 * US))]
    for turn in range(turns):
        start = (2 if at_once else 4) * turn * MS
        down = start if at_once else start + 2 * MS
        host = -29 * US + turn
        up_stream, down_stream = 20, 21 if both_streams or at_once else 20
        ops.append(Op(Kind.H2D, start, start + 2 * MS, up_stream, (host, host + 1), "cudaMemcpyAsync"))
        ops.append(
            Op(
                Kind.D2H,
                down,
                down + 2 * MS,
                down_stream,
                (host, host + 1),
                "cudaMemcpyAsync",
                source=Memory.DEVICE,
                target=Memory.PINNED,
            )
        )
    return make_trace(ops)
