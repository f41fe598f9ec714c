"""Environment of a trace, and checks whether traces belong to the same job.

Files of an earlier run with more ranks may lie beside those of the last run.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from overlapscope.analysis.results import Environment, TraceResult
from overlapscope.base.words import clean
from overlapscope.trace.model import Trace

APART_NS = 600 * 1_000_000_000
"""Maximum distance between recordings of a job, more than the clocks of two machines differ."""

_SINCE_EPOCH_NS = 10**18
"""Times below this (2001) are not dates."""


class Recorded(Struct, frozen=True):
    """Facts about a rank's job in its trace."""

    source: str
    rank: int | None
    world_size: int | None
    start_ns: int
    end_ns: int
    """End of the last GPU op."""


def mixture(traces: Sequence[TraceResult]) -> tuple[str, ...]:
    """Return reasons why traces can't belong to the same job, in sentences; empty if they may be."""
    return different_jobs(
        [
            Recorded(
                source=trace.source,
                rank=trace.rank,
                world_size=trace.environment.world_size,
                start_ns=min(device.window.start_ns for device in trace.devices),
                end_ns=max(device.window.end_ns for device in trace.devices),
            )
            for trace in traces
            if trace.devices
        ]
    )


def different_jobs(recorded: Sequence[Recorded]) -> tuple[str, ...]:
    """Return reasons why recordings can't belong to the same job; their order doesn't matter."""
    doubts = []
    sizes = {trace.world_size: trace for trace in recorded if trace.world_size is not None}
    if len(sizes) > 1:
        stated = ", ".join(map(str, sorted(sizes)))
        named = ", ".join(f"{_name(sizes[size])} {size}" for size in sorted(sizes)[:2])
        doubts.append(f"The traces state different world sizes ({stated}), so they are of different jobs: {named}.")
    for trace in recorded:
        if trace.rank is not None and trace.world_size is not None and trace.rank >= trace.world_size:
            doubts.append(
                f"{_name(trace)} is of rank {trace.rank}, and says that its job has {trace.world_size} ranks."
            )
            break
    ranks = (trace for trace in recorded if trace.rank is not None and (trace.world_size or 0) != 1)
    dated = sorted((trace for trace in ranks if trace.start_ns >= _SINCE_EPOCH_NS), key=lambda trace: trace.start_ns)
    reach: Recorded | None = None
    for trace in dated:
        if reach is not None and trace.start_ns - reach.end_ns > APART_NS:
            minutes = (trace.start_ns - reach.end_ns) // (60 * 1_000_000_000)
            doubts.append(f"{_name(trace)} was recorded {minutes:,} minutes after {_name(reach)}, so not in one run.")
            break
        reach = trace if reach is None or trace.end_ns > reach.end_ns else reach
    return tuple(doubts)


def _name(trace: Recorded) -> str:
    return clean(trace.source, 200)


def describe_environment(trace: Trace) -> Environment:
    """Return the environment of one trace. PyTorch's version is written by our recorder, not by Kineto."""
    return Environment(
        recorder=trace.recorder,
        gpus=tuple(sorted({trace.device_names[device] for device in trace.devices if device in trace.device_names})),
        world_size=trace.world_size,
        torch=trace.versions.get("torch"),
        cuda=_cuda(trace.versions.get("cuda_runtime")),
        driver=_cuda(trace.versions.get("cuda_driver")),
        flags={
            "memory": trace.flags.get("profile_memory", False),
            "shapes": trace.flags.get("record_shapes", False),
            "stacks": trace.flags.get("with_stack", False) or bool(len(trace.python_frames)),
            # A program without waits has no sync events even if they were requested.
            **({"sync_events": True} if len(trace.syncs) else {}),
        },
    )


def _cuda(number: str | None) -> str | None:
    """Return a CUDA version from its number, which is 1000 * major + 10 * minor (`cudaRuntimeGetVersion`)."""
    if number is None or not number.isdecimal() or int(number) < 1000:
        return number
    return f"{int(number) // 1000}.{int(number) % 1000 // 10}"
