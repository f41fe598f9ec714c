"""Rule: the GPU waits while the container's CPU quota is used up."""

from __future__ import annotations

from overlapscope.catalog.causes import IdleCause
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules._lines import host_time
from overlapscope.rules.rule import Draft, Rule, on_claimed


def _quota(claims: Claims) -> str:
    """Return the quota, as the end of a sentence."""
    activity = claims.trace.host_activity
    if activity is None or activity.facts.quota_cpus is None:
        return ""
    return f", because it had used up its quota of {activity.facts.quota_cpus:g} CPUs"


def _draft(claims: Claims, pieces: ClaimedPieces) -> Draft:
    return Draft(
        afterword=host_time(claims, pieces, IdleCause.CPU_THROTTLED),
        title=f"The GPU waits {claims.time_a_step(pieces.time_ns)} while the CPU quota is used up",
        detail=f"The control group stopped the program{_quota(claims)}.",
        advice="Raise the container's CPU limit, or run fewer threads.\n"
        "Set limits.cpu (Kubernetes) or --cpus (Docker) higher, or leave it out. torch.set_num_threads() and fewer "
        "DataLoader workers use the quota more slowly.",
    )


RULE = Rule(
    id="cpu-throttled",
    severity="warning",
    summary="The GPU waits while the container's CPU quota is used up.",
    meaning="A control group with a CPU quota stops all its threads once they have used it up, until the next "
    "period, often for tens of milliseconds.",
    computation="Time for which the quota stopped the program in steps without the profiler (`cpu.stat`), taken out "
    "of the launching thread's Python, then its ops. An estimate: these are other steps than the recorded ones.",
    wrong="""import torch

# docker run --cpus 2
torch.set_num_threads(16)
weight = torch.randn(64, 64, device="cuda")
samples = torch.randn(2000, 2000)
for _ in range(100):
    weight @ weight
    samples @ samples
""",
    right="""import torch

# docker run --cpus 2
torch.set_num_threads(2)
weight = torch.randn(64, 64, device="cuda")
samples = torch.randn(2000, 2000)
for _ in range(100):
    weight @ weight
    samples @ samples
""",
    check=on_claimed("cpu-throttled", _draft),
    fixes=(("less-host cpu-throttled",),),
    effort="option",
)
