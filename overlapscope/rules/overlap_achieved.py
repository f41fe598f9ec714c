"""Good news: what can run side by side does."""

from __future__ import annotations

from collections.abc import Iterator

from overlapscope.base.words import duration, percent, share
from overlapscope.rules._claims import Claims
from overlapscope.rules.rule import Draft, Rule
from overlapscope.trace.lost import FIGURES

GOOD_PCT = 90.0


def _check(claims: Claims) -> Iterator[Draft]:
    overlap, engines = claims.overlap, claims.engines
    efficiency = overlap.efficiency_pct
    if efficiency is None or efficiency < GOOD_PCT or not claims.matters(overlap.copy_ns):
        return
    if claims.analysis.result.trust.lost & FIGURES:
        return
    longest = max(
        ("compute", engines.sm_ns),
        ("H2D copies", engines.h2d_ns),
        ("D2H copies", engines.d2h_ns),
        key=lambda e: e[1],
    )
    beyond = overlap.busy_ns - overlap.ideal_ns
    if longest[0] == "compute":
        title = (
            f"Copies run beside compute: {duration(overlap.hidden_copy_ns)} of {duration(overlap.copy_ns)} "
            f"are hidden, overlap efficiency {percent(efficiency)}"
        )
        left = claims.matters(claims.buckets.exposed_copy_ns)
        advice = (
            "Little is left to gain from moving copies; the other findings say where."
            if left
            else "Nothing to change about copies; the rest of the time is compute and idle gaps."
        )
    else:
        exposed = claims.buckets.exposed_copy_ns
        title = (
            f"The {longest[0][:3]} link sets the pace: copies overlap as far as they can (efficiency "
            f"{percent(efficiency)}), {duration(exposed)} remain exposed"
        )
        advice = (
            "No order of the same work is much faster. Move less: lower precision for what is copied, keep "
            "what is used again on the GPU, larger batches per copied byte, or compute what is now copied."
        )
    yield Draft(
        title=title,
        detail=f"The engines worked {duration(overlap.busy_ns)} in all; the longest alone, {longest[0]}, "
        f"{duration(longest[1])}, which is the ideal. That leaves {duration(beyond)} "
        f"({share(beyond, claims.judged_ns)} of the span) to gain; one thing at a time would have taken "
        f"{duration(overlap.serial_ns)}.",
        advice=advice,
    )


RULE = Rule(
    id="overlap-achieved",
    severity="info",
    summary="Copies and compute overlap as far as they can, and how close to ideal that is.",
    meaning="Compute, uploads and downloads can run side by side. The best any order can reach is that only "
    "the longest of the three shows. This finding says that the program is close to that, and which of the "
    "three sets the pace: if it is a copy direction, only moving less helps.",
    computation=f"Fires at an overlap efficiency of {GOOD_PCT:.0f}% or more, (serial - busy) / (serial - "
    "ideal) without the lead-in, where copies take at least 1% of the span. Costs nothing.",
    wrong="""import torch

batch = torch.randn(1 << 24, pin_memory=True)
weight = torch.randn(8192, 8192, device="cuda")
for _ in range(10):
    batch.to("cuda", non_blocking=True)
    weight @ weight
""",
    right="""import torch

batch = torch.randn(1 << 24, pin_memory=True)
weight = torch.randn(8192, 8192, device="cuda")
copies = torch.cuda.Stream()
for _ in range(10):
    with torch.cuda.stream(copies):
        batch.to("cuda", non_blocking=True)
    weight @ weight
torch.cuda.synchronize()
""",
    check=_check,
    rests_on=FIGURES,
)
