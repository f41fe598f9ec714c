"""A program that is made up, as it is and as a recording that slows its host would show it."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct

from overlapscope.trace.model import Kind, Trace
from tests.support.helpers import MS, US, Host, Op, make_trace

LAUNCH, LATENCY, GAP, RETURN = 2_200, 10 * US, 1 * US, 4 * US
"""Length of an unrecorded launch call;

From its start to its kernel's; between kernels; from a kernel's end to the return of the call that waits for it.
"""


class Work(NamedTuple):
    """The host's work up to a call, and the call."""

    kernel_ns: int
    """Length of the launched kernel; 0 for a synchronize."""
    ops: int = 1
    """CPU ops that begin in the work."""
    work_ns: int = 3 * US
    """Length of the work without a recording."""


class Slowed(Struct, frozen=True):
    """By how much a recording lengthens each event."""

    op_ns: int = 0
    call_ns: int = 0
    around_call_ns: int = 0

    @classmethod
    def by(cls, added_ns: int) -> Slowed:
        """In the proportions that recordings on GPUs have."""
        return cls(8 * added_ns // 10, 8 * added_ns // 10, 6 * added_ns // 10)


PLAIN = Slowed()
HOST_BOUND = (
    *[Work(2 * US, ops=2, work_ns=12 * US)] * 30,
    Work(100 * US),
    Work(0, ops=3),
    Work(5 * US, ops=5, work_ns=60 * US),
)
"""Launches of tiny kernels, a longer kernel, a synchronize, and then work of the host."""
GPU_BOUND = (Work(200 * US, ops=3),) * 10


def record(step: tuple[Work, ...], slowed: Slowed = PLAIN, *, steps: int = 8) -> Trace:
    """Run that step so many times on one stream, its host `slowed`."""
    ops: list[Op] = []
    calls: list[Host] = []
    cpu_ops: list[Host] = []
    begins: list[int] = []
    now, free = 1 * MS, 0
    for _ in range(steps):
        begins.append(now)
        now += slowed.op_ns
        for work in step:
            for _ in range(work.ops):
                # The profiler notes an op's start last, and its end first.
                begin = now + slowed.op_ns // 2
                cpu_ops.append(Host("aten::op", begin, begin + work.work_ns // work.ops))
                now += slowed.op_ns + work.work_ns // work.ops
            now += slowed.around_call_ns // 2
            returned = now + LAUNCH + slowed.call_ns
            if work.kernel_ns:
                start = max(now + LATENCY, free + GAP)
                free = start + work.kernel_ns
                ops.append(Op(Kind.COMPUTE, start, free, launch=(now, returned)))
            else:
                returned = max(returned, free + RETURN)
                calls.append(Host("cudaDeviceSynchronize", now, returned))
            now = returned + slowed.around_call_ns - slowed.around_call_ns // 2
    ends = [*begins[1:], now]
    notes = [Host(f"ProfilerStep#{number}", *both) for number, both in enumerate(zip(begins, ends, strict=True))]
    return make_trace(ops, calls=calls, cpu_ops=cpu_ops, annotations=notes, device_names={0: "NVIDIA H200"})
