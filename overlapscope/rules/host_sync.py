"""The host waits for the GPU, then the GPU waits for the host."""

from __future__ import annotations

from collections.abc import Iterator

from overlapscope.analysis import TraceAnalysis
from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.base.words import duration, share
from overlapscope.rules._claims import Claims
from overlapscope.rules._text import first, spread
from overlapscope.rules.finding import Draft
from overlapscope.rules.rule import Rule


def _check(analysis: TraceAnalysis, device: DeviceAnalysis, found: Claims) -> Iterator[Draft]:
    mine = found.of("host-sync")
    if not found.matters(mine.time_ns):
        return
    places = mine.places(analysis.trace)
    exposed = f" and left {duration(mine.exposed_ns)} of copies exposed" if mine.exposed_ns else ""
    yield Draft(
        title=f"Host synchronisation accounts for {duration(mine.time_ns)} "
        f"({share(mine.time_ns, found.judged_ns)} of the span)",
        detail="The host waited in a blocking call and launched the next work only after it had returned. "
        f"That kept the GPU idle for {duration(mine.idle_ns)}{exposed}.{spread(places)}"
        + (
            "" if len(analysis.trace.python_frames) else " Record with stacks (with_stack=True) to see the Python line."
        ),
        advice="Do not read values back in the loop: keep losses and metrics on the GPU and call .item(), "
        ".cpu(), tolist() or print every so many steps; avoid nonzero(), masked indexing and Python "
        "branches on GPU values. Where order between streams is what is meant, use event.wait() or "
        "wait_stream() instead of synchronize(): those make the stream wait, not the host. Where a value "
        "must be read, copy it to pinned memory with non_blocking=True and read it one step later.",
        bound_ns=mine.time_ns,
        where=first(places),
        example=mine.example,
    )


RULE = Rule(
    id="host-sync",
    severity="warning",
    summary="The host waits for the GPU, and the GPU then waits for the host.",
    meaning="Launches are asynchronous: a host that runs ahead keeps the GPU's queues filled. A "
    "synchronize, or an op that needs a value on the host, empties them; afterwards the GPU is idle until "
    "the host has launched again, and copies in flight have no compute to hide under.",
    computation="Idle time and exposed copy time of cause host-sync, without what blocking-copy and "
    "pageable-copy answer for. How long the host itself waited is not the cost and not counted. An upper "
    "bound: without the wait the host may turn out launch-bound.",
    wrong="""import torch

model = torch.nn.Linear(1024, 1024).cuda()
batch = torch.randn(1024, 1024, device="cuda")
losses = []
for _ in range(100):
    loss = model(batch).square().mean()
    loss.backward()
    losses.append(loss.item())
""",
    right="""import torch

model = torch.nn.Linear(1024, 1024).cuda()
batch = torch.randn(1024, 1024, device="cuda")
losses = []
for _ in range(100):
    loss = model(batch).square().mean()
    loss.backward()
    losses.append(loss.detach())
losses = torch.stack(losses).tolist()
""",
    check=_check,
    fixes=(("no-sync {call}",),),
)
