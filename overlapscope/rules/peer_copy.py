"""Rule: copies between GPUs that run while no kernel does."""

from __future__ import annotations

from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules.rule import Draft, Rule, on_claimed
from overlapscope.trace.lost import ENGINES


def _draft(claims: Claims, pieces: ClaimedPieces) -> Draft:
    total = claims.overlap.p2p_ns
    return Draft(
        title=f"Copies between GPUs run alone for {claims.time_a_step(pieces.time_ns)}",
        detail=f"They take {claims.time_a_step(total * max(1, claims.steps))} in all. For "
        f"{claims.time(pieces.time_ns)}, no kernel and no copy between host and device ran beside them.",
        advice="Copy between GPUs on a stream of its own, and let the consumer wait for an event.\n"
        "PyTorch orders such a copy after the current streams of both GPUs, so start it on a side stream as soon as "
        "its input is ready, and wait just before the result is used. Without peer access (`nvidia-smi topo -p2p r` "
        "shows it), the copy goes through the host; over NVLink it is several times faster than over PCIe. What "
        "stays on one GPU needs no copy.",
    )


RULE = Rule(
    id="peer-copy",
    severity="warning",
    summary="Copies from one GPU to another run while nothing computes.",
    meaning="A tensor moves from one GPU to another, as in a pipeline of GPUs or in DataParallel, and this GPU runs "
    "no kernel meanwhile. A copy engine does the work, so kernels could run beside it.",
    computation="The exposed time of copies between GPUs, outside all kernels and all copies between host and device. "
    "An upper bound: the next kernel may need the result at once.",
    wrong="""import torch

first, second = torch.nn.Linear(8192, 8192).to("cuda:0"), torch.nn.Linear(8192, 8192).to("cuda:1")
for batch in torch.randn(8, 8192, 8192, device="cuda:0"):
    second(first(batch).to("cuda:1"))
""",
    right="""import torch

first, second = torch.nn.Linear(8192, 8192).to("cuda:0"), torch.nn.Linear(8192, 8192).to("cuda:1")
sending, receiving = torch.cuda.Stream("cuda:0"), torch.cuda.Stream("cuda:1")
for batch in torch.randn(8, 8192, 8192, device="cuda:0"):
    hidden = first(batch)
    sending.wait_stream(torch.cuda.current_stream("cuda:0"))
    with torch.cuda.stream(sending), torch.cuda.stream(receiving):
        moved = hidden.to("cuda:1", non_blocking=True)
    hidden.record_stream(sending)
    torch.cuda.current_stream("cuda:1").wait_stream(receiving)
    moved.record_stream(torch.cuda.current_stream("cuda:1"))
    second(moved)
""",
    check=on_claimed("peer-copy", _draft),
    rests_on=ENGINES | {"other"},
)
