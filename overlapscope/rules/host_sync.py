"""Rule: the host waits for the GPU, then the GPU waits for the host."""

from __future__ import annotations

from overlapscope.base.words import duration
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules.rule import Draft, Rule, lost, on_claimed


def _draft(claims: Claims, pieces: ClaimedPieces) -> Draft:
    return Draft(
        title=f"Host synchronization costs the GPU {duration(pieces.time_ns)}",
        detail="The host waited in a blocking call and launched the next work only after the call returned. "
        f"Because of that, {lost(pieces)}.",
        afterword=" Record with stacks (with_stack=True) to see the Python line."
        * (not len(claims.trace.python_frames)),
        advice="Read values back less often: no .item(), .cpu() or print in the loop.\n"
        "Keep losses and metrics on the GPU and read them every few steps. Avoid nonzero(), masked indexing and "
        "Python branches on GPU values. To order streams, use event.wait() or wait_stream() instead of "
        "synchronize(), so that the stream waits instead of the host. If a value must be read, copy it to pinned "
        "memory with non_blocking=True and read it one step later.",
    )


RULE = Rule(
    id="host-sync",
    severity="warning",
    summary="The host waits for the GPU, and the GPU then waits for the host.",
    meaning="Launches are asynchronous: a host that runs ahead keeps the GPU's queues filled. A "
    "synchronize, or an op that needs a value on the host, empties them; afterwards the GPU is idle until "
    "the host has launched again, and copies in flight have no compute to hide under.",
    computation="Idle time and exposed copy time of cause host-sync, without the time of blocking-copy and "
    "pageable-memory. The time for which the host itself waited is not the cost and does not count. An "
    "upper bound: without the wait, the host may be launch-bound.",
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
    check=on_claimed("host-sync", _draft),
    fixes=(("no-sync {call}",),),
)
