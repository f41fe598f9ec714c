"""The host does other work while the GPU waits."""

from __future__ import annotations

from collections.abc import Iterator

from overlapscope.analysis import TraceAnalysis
from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.base.words import duration, plural, share
from overlapscope.rules._claims import Claims
from overlapscope.rules._text import first, spread
from overlapscope.rules.finding import Draft
from overlapscope.rules.rule import Rule


def _check(analysis: TraceAnalysis, device: DeviceAnalysis, found: Claims) -> Iterator[Draft]:
    mine = found.of("host-compute")
    if not found.matters(mine.time_ns):
        return
    places = mine.places(analysis.trace)
    yield Draft(
        title=f"The GPU is idle for {duration(mine.time_ns)} while the host does other work "
        f"({share(mine.time_ns, found.judged_ns)} of the span)",
        detail=f"In {plural(len(mine.start_ns), 'gap')} the launching thread ran CPU ops "
        f"or Python between two launches and neither launched nor waited.{spread(places)}",
        advice="Move the work out of the launching thread (a DataLoader worker, a thread for logging or "
        "checkpoints), do it less often, do it on the GPU, or do it right after launching a long stretch of "
        "GPU work, so that it runs beside that.",
        bound_ns=mine.time_ns,
        where=first(places),
        example=mine.example,
    )


RULE = Rule(
    id="host-compute",
    severity="warning",
    summary="The GPU waits while the launching thread does other work.",
    meaning="CPU ops and Python code between launches delay the next launch. As long as the host is ahead "
    "of the GPU this costs nothing; once the queue is empty, every millisecond of it is a millisecond of "
    "idle GPU.",
    computation="Idle time of cause host-compute: pauses of over 200 us between launches in which the "
    "thread was in no blocking call, DataLoader or pin_memory. An upper bound: the GPU may find other "
    "things to wait for.",
    wrong="""import torch

weight = torch.randn(4096, 4096, device="cuda")
samples = torch.randn(1200, 1200)
for _ in range(10):
    weight @ weight
    torch.cuda.synchronize()
    for _ in range(20):
        samples.square().sum()
""",
    right="""import torch

weight = torch.randn(4096, 4096, device="cuda")
samples = torch.randn(1200, 1200)
for _ in range(10):
    weight @ weight
    for _ in range(20):
        samples.square().sum()
torch.cuda.synchronize()
""",
    check=_check,
)
