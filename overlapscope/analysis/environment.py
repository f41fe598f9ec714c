"""What a trace was recorded on, as far as it says."""

from __future__ import annotations

from overlapscope.analysis.results import Environment
from overlapscope.trace.model import Trace


def describe(trace: Trace) -> Environment:
    """The environment of one trace. Kineto itself does not write PyTorch's version; our recorder does."""
    return Environment(
        gpus=tuple(sorted({trace.device_names[one] for one in trace.devices if one in trace.device_names})),
        world_size=trace.world_size,
        torch=trace.versions.get("torch"),
        cuda=_cuda(trace.versions.get("cuda_runtime")),
        driver=_cuda(trace.versions.get("cuda_driver")),
        flags={
            "memory": trace.flags.get("profile_memory", False),
            "shapes": trace.flags.get("record_shapes", False),
            "stacks": trace.flags.get("with_stack", False) or bool(len(trace.python_frames)),
            # A program that waits for nothing has none, though they were asked for.
            **({"sync_events": True} if len(trace.syncs) else {}),
        },
    )


def _cuda(number: str | None) -> str | None:
    """CUDA numbers its versions 1000 * major + 10 * minor (`cudaRuntimeGetVersion`)."""
    if number is None or not number.isdecimal() or int(number) < 1000:
        return number
    return f"{int(number) // 1000}.{int(number) % 1000 // 10}"
