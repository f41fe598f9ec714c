"""Many copies so small that latency is their cost."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from overlapscope.analysis import TraceAnalysis
from overlapscope.analysis.copies import TINY_BYTES
from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.base.words import duration, share, size
from overlapscope.rules._claims import MANY, Claims
from overlapscope.rules._text import first, spread
from overlapscope.rules.finding import Draft
from overlapscope.rules.rule import Rule


def _check(analysis: TraceAnalysis, device: DeviceAnalysis, found: Claims) -> Iterator[Draft]:
    mine = found.of("tiny-copies")
    if not found.matters(mine.time_ns):
        return
    ops = device.timeline.ops
    moved = ops.bytes[found.tiny]
    typical = int(np.median(ops.end_ns[found.tiny] - ops.start_ns[found.tiny]))
    places = mine.places(analysis.trace)
    yield Draft(
        title=f"{len(found.tiny)} copies of {size(int(np.median(moved)))} account for "
        f"{duration(mine.time_ns)} ({share(mine.time_ns, found.judged_ns)} of the span)",
        detail=f"{len(found.tiny)} copies below {size(TINY_BYTES)} moved {size(int(moved.sum()))} in all; "
        f"each took {duration(typical)} (median) on the device, which is latency and not bandwidth, and a "
        f"launch on the host. They were exposed for {duration(mine.exposed_ns)}, and the GPU was idle for "
        f"{duration(mine.idle_ns)} waiting for the next of them.{spread(places)}",
        advice="Join them: put the small tensors into one pinned buffer on the host (torch.cat or views of "
        "it), copy that once with non_blocking=True, and take views on the device with split() or narrow(). "
        "Values that do not change can stay on the device; values that can be computed there (torch.arange, "
        "masks) need no copy.",
        bound_ns=mine.time_ns,
        where=first(places),
        example=mine.example,
    )


RULE = Rule(
    id="tiny-copies",
    severity="warning",
    summary="Many copies so small that latency, not bandwidth, is their cost.",
    meaning="Every copy costs microseconds on the host to launch and microseconds on the device to begin "
    f"and end, whatever its size. At {size(TINY_BYTES)} that is as much as the bytes themselves take; below, nearly "
    "all of the time is latency.",
    computation=f"Where at least {MANY} copies below {size(TINY_BYTES)} run in the window (values read "
    "back by .item() are left to host-sync): their exposed time, whatever its cause, plus the launch-bound "
    "and launch-latency idle time that ended with one of them. These are left out of all other rules. An "
    "upper bound: one joined copy remains.",
    wrong="""import torch

samples = [torch.randn(1000, pin_memory=True) for _ in range(200)]
on_gpu = [sample.to("cuda", non_blocking=True) for sample in samples]
""",
    right="""import torch

samples = torch.randn(200, 1000, pin_memory=True)
on_gpu = samples.to("cuda", non_blocking=True).unbind()
""",
    check=_check,
    fixes=(("batch-copies",),),
)
