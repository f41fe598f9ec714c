"""Rule: the GPU waits while the launching thread runs ops on the CPU."""

from __future__ import annotations

from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules._lines import fewer_threads, is_not_torch, most_in, top_line, with_lines
from overlapscope.rules.rule import Draft, Rule, on_claimed


def _draft(claims: Claims, pieces: ClaimedPieces) -> Draft:
    return Draft(
        where=top_line(claims, is_not_torch),
        afterword=with_lines(claims, pieces, is_not_torch),
        title=f"The GPU waits {claims.time_a_step(pieces.time_ns)} while the host runs ops on the CPU"
        f"{most_in(claims, is_not_torch)}",
        detail=f"In {claims.times_a_step(pieces.gaps, 'idle gap')} the launching thread was inside ops that "
        "launch nothing.",
        advice=f"{fewer_threads(claims)}"
        'Run these ops on the GPU: make their tensors with device="cuda".\n'
        "Or run them on another thread (a DataLoader worker), less often, or right after launching a long stretch of "
        "GPU work, so that both run at the same time.",
    )


RULE = Rule(
    id="cpu-ops",
    severity="warning",
    summary="The GPU waits while the launching thread runs ops on the CPU.",
    meaning="Ops on tensors in host memory run on the launching thread, which launches nothing meanwhile. Once the "
    "GPU's queue is empty, every millisecond of them is a millisecond of idle GPU.",
    computation="Idle time of cause cpu-ops: the launching thread was inside an outermost CPU op without runtime "
    "calls that makes no view and allocates nothing, or in any such op of 0.1 ms or more, unless it mostly makes "
    "views. An upper bound: the GPU may then wait for something else.",
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
    check=on_claimed("cpu-ops", _draft),
    fixes=(("less-host cpu-ops",),),
)
