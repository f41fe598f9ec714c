"""The host cannot launch as fast as the GPU works."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from overlapscope.analysis import TraceAnalysis
from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.grouping import distinct
from overlapscope.base.intervals import cut
from overlapscope.base.words import duration, plural, share
from overlapscope.rules._claims import Claims
from overlapscope.rules._text import first, spread
from overlapscope.rules.finding import Draft
from overlapscope.rules.rule import Rule
from overlapscope.trace.model import Kind


def _check(analysis: TraceAnalysis, device: DeviceAnalysis, found: Claims) -> Iterator[Draft]:
    mine = found.of("launch-bound")
    if not found.matters(mine.time_ns):
        return
    ops = device.timeline.ops
    compute = np.flatnonzero(ops.kind == Kind.COMPUTE)
    row, _, _ = cut(ops.start_ns[compute], ops.end_ns[compute], found.windows)
    kernels = compute[distinct(row)]
    lengths = ops.end_ns[kernels] - ops.start_ns[kernels]
    typical = f"; their median duration is {duration(int(np.median(lengths)))}" if len(lengths) else ""
    places = mine.places(analysis.trace)
    inflated = ""
    if len(analysis.trace.python_frames):
        inflated = " Recording with stacks slows the host, so without the profiler the idle time is shorter."
    yield Draft(
        title=f"The GPU is idle for {duration(mine.time_ns)} because launches cannot keep up "
        f"({share(mine.time_ns, found.judged_ns)} of the span)",
        detail=f"In {plural(len(mine.start_ns), 'gap')} the next op began as soon as it was launched, and "
        f"the host was launching without a pause. {plural(len(kernels), 'compute kernel')} "
        f"ran{typical}.{inflated}{spread(places)}",
        advice="Launch less often: torch.compile(model) fuses small kernels, "
        "torch.compile(mode='reduce-overhead') or torch.cuda.graph replays a whole step with one launch; "
        "fused or foreach optimizers (fused=True), larger batches and channels-last or lower precision only "
        "help where kernels become fewer or the host runs less Python.",
        bound_ns=mine.time_ns,
        where=first(places),
        example=mine.example,
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
    check=_check,
    fixes=(("graph",),),
)
