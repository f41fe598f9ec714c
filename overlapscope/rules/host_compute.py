"""Rule: the host does other work while the GPU waits."""

from __future__ import annotations

from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules.rule import Draft, Rule, on_claimed


def _draft(claims: Claims, pieces: ClaimedPieces) -> Draft:
    return Draft(
        title=f"The GPU waits {claims.time_a_step(pieces.time_ns)} while the host does other work",
        detail=f"In {claims.times_a_step(len(pieces.start_ns), 'gap')} the launching thread ran CPU ops or Python "
        "between two "
        "launches. It neither launched nor waited.",
        advice="Move that work off the launching thread, or do it while the GPU is busy.\n"
        "Use a DataLoader worker, or a thread for logging and checkpoints; do it less often; do it on the GPU; or do "
        "it right after launching a long stretch of GPU work, so that both run at the same time.",
    )


RULE = Rule(
    id="host-compute",
    severity="warning",
    summary="The GPU waits while the launching thread does other work.",
    meaning="CPU ops and Python code between launches delay the next launch. As long as the host is ahead "
    "of the GPU this costs nothing; once the queue is empty, every millisecond of it is a millisecond of "
    "idle GPU.",
    computation="Idle time of cause host-compute: pauses of over 200 us between launches in which the "
    "thread was in no blocking call, DataLoader or pin_memory. An upper bound: the GPU may then wait for "
    "something else.",
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
    check=on_claimed("host-compute", _draft),
)
