"""Rule: the host can't launch as fast as the GPU works."""

from __future__ import annotations

import numpy as np

from overlapscope.analysis.grouping import distinct
from overlapscope.base.intervals import cut
from overlapscope.base.words import duration
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules.rule import Draft, Rule, on_claimed
from overlapscope.trace.model import Kind


def _draft(claims: Claims, pieces: ClaimedPieces) -> Draft:
    ops = claims.device.timeline.ops
    compute = np.flatnonzero(ops.kind == Kind.COMPUTE)
    row, _, _ = cut(ops.start_ns[compute], ops.end_ns[compute], claims.windows)
    kernels = compute[distinct(row)]
    lengths = ops.end_ns[kernels] - ops.start_ns[kernels]
    typical = f"; their median duration is {duration(int(np.median(lengths)))}" if len(lengths) else ""
    inflated = ""
    if len(claims.trace.python_frames):
        inflated = " Recording with stacks slows the host, so the idle time is shorter without the profiler."
    return Draft(
        title=f"The GPU waits {claims.time_a_step(pieces.time_ns)} because the host launches too slowly",
        detail=f"In {claims.times_a_step(len(pieces.start_ns), 'gap')} the next op began as soon as it was launched, "
        "and "
        f"the host was launching without a pause. {claims.times(len(kernels), 'compute kernel')} "
        f"ran{typical}.{inflated}",
        advice='Launch less often: torch.compile(model, mode="reduce-overhead").\n'
        "It replays forward and backward as CUDA graphs; the default mode only joins small kernels. torch.cuda.graph "
        "does the same by hand for a whole step. Pass fused=True to the optimizer. Larger batches and lower precision "
        "help only if there are fewer kernels or less Python.",
    )


RULE = Rule(
    id="launch-bound",
    severity="warning",
    summary="The host cannot launch kernels as fast as the GPU finishes them.",
    meaning="Every op costs the host some microseconds of Python, dispatch and launch. Where kernels are "
    "shorter than that, the GPU finishes each before the next has been launched, and its speed is the "
    "host's.",
    computation="Idle time of cause launch-bound: the gap ended within 10 us of its op's launch, and "
    "launches followed one another closely. Gaps that end with one of many tiny copies go to tiny-copies. "
    "An upper bound: a graph's ops still have a microsecond between them.",
    wrong="""import torch

value = torch.ones(256, device="cuda")
for _ in range(300):
    value.add_(1.0)
""",
    right="""import torch

value = torch.ones(256, device="cuda")
value.add_(1.0)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    for _ in range(300):
        value.add_(1.0)
graph.replay()
""",
    check=on_claimed("launch-bound", _draft),
    effort="line",
    fixes=(("graph",),),
)
