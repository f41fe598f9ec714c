"""Rule: the host can't launch as fast as the GPU works."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from overlapscope.analysis.grouping import distinct, rows_by
from overlapscope.analysis.host_work import backward_threads
from overlapscope.analysis.late_launch import LAUNCH_PACE_NS
from overlapscope.base.intervals import covered, cut, union
from overlapscope.base.words import duration, listed
from overlapscope.catalog.devices import are_no_gpus
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules._launches import FUSED, Maker, launches, makers, optimizer_class, optimizers
from overlapscope.rules._lines import is_torch, most_in, sampled_lines, stacks_cost, top_line
from overlapscope.rules.rule import Draft, Fixes, Rule, name, on_claimed
from overlapscope.trace.model import Kind


def _draft(claims: Claims, pieces: ClaimedPieces) -> Draft:
    slow_ns = _in_slow_calls(claims, pieces)
    if 2 * slow_ns > pieces.time_ns:
        return _of_slow_calls(claims, pieces, slow_ns)
    ops = claims.device.timeline.ops
    compute = np.flatnonzero(ops.kind == Kind.COMPUTE)
    row, _, _ = cut(ops.start_ns[compute], ops.end_ns[compute], claims.windows)
    kernels = compute[distinct(row)]
    lengths = ops.end_ns[kernels] - ops.start_ns[kernels]
    typical = f"; their median duration is {duration(int(np.median(lengths)))}" if len(lengths) else ""
    made = launches(claims)
    by = makers(claims, made)
    fused = any(maker.how == "fused" for maker in by)
    known = optimizers(claims.trace)
    fuse = "Pass fused=True to the optimizer. " if (known is None or known & FUSED) and not fused else ""
    plain = [maker for maker in by if maker.optimizer and not maker.how and optimizer_class(maker.name) in FUSED]
    fixes: Fixes | None = None if fuse else (("graph",),)
    on_gpu = not are_no_gpus(claims.trace.device_names.values())
    if 2 * sum(maker.launches for maker in plain) > len(made):
        # If an optimizer makes most launches, an option of it comes before a graph of the whole step.
        fixes = (("fused",),)
    if not on_gpu:
        # No replay is of fewer kernels.
        fixes = ()
    return Draft(
        where=top_line(claims, is_torch),
        title=f"The GPU waits {claims.time_a_step(pieces.time_ns)} while the host launches{most_in(claims, is_torch)}",
        afterword=f"{_by_maker(claims, len(made), by, on_gpu)}{sampled_lines(claims, is_torch)}",
        fixes=fixes,
        nameless="between nodes of the backward pass" if len(backward_threads(claims.trace)) else "between launches",
        detail=f"In {claims.times_a_step(pieces.gaps, 'idle gap')} the launching thread was inside launch "
        f"calls and the ops that make them. {claims.times(len(kernels), 'compute kernel')} ran{typical}."
        f"{stacks_cost(claims)}",
        advice='Launch less often: torch.compile(model, mode="reduce-overhead").\n'
        "It replays forward and backward as CUDA graphs; the default mode only joins small kernels. torch.cuda.graph "
        f"does the same by hand for a whole step. {fuse}Larger batches and lower precision help only if there are "
        "fewer kernels or less Python.",
    )


def _by_maker(claims: Claims, count: int, by: Sequence[Maker], on_gpu: bool) -> str:
    """Return who makes the launches, and on GPUs which optimizers can be fused, as sentences."""
    named = [maker for maker in by if 20 * maker.launches >= count][:3]
    if not named:
        return ""
    parts = [f"{claims.times(maker.launches, 'launch').split()[0]} come from {name(maker.name)}" for maker in named]
    text = f" Of {claims.times_a_step(count, 'launch')}, {listed(parts)}."
    for maker in named:
        if on_gpu and maker.optimizer and maker.how != "fused" and optimizer_class(maker.name) in FUSED:
            how = "uses foreach and isn't fused" if maker.how else "isn't fused: pass fused=True to it"
            text += f" {name(maker.name)} {how}."
    return text


def _in_slow_calls(claims: Claims, pieces: ClaimedPieces) -> int:
    """Return the time of the pieces inside calls of over `LAUNCH_PACE_NS`, except repeated launches of a kernel."""
    calls, ops = claims.trace.runtime_calls, claims.trace.gpu_ops
    slow = calls.end_ns - calls.start_ns > LAUNCH_PACE_NS
    launched = np.flatnonzero(ops.launch >= 0)
    launched = launched[np.lexsort((calls.start_ns[ops.launch[launched]], ops.name_id[launched]))]
    repeats = np.append(False, np.diff(ops.name_id[launched]) == 0)[: len(launched)]
    slow[ops.launch[launched[repeats]]] = False
    rows = np.flatnonzero(slow)
    total = 0
    for thread, of_thread in rows_by(pieces.thread):
        of_calls = rows[calls.thread[rows] == thread]
        inside = union(calls.start_ns[of_calls], calls.end_ns[of_calls])
        at_ns = pieces.at_ns[of_thread]
        total += int(covered(inside, at_ns, at_ns + pieces.length_ns[of_thread]).sum())
    return total


def _of_slow_calls(claims: Claims, pieces: ClaimedPieces, slow_ns: int) -> Draft:
    on_cuda = claims.trace.runtime_calls.named(lambda call: call.startswith("cu")).any()
    eager = " CUDA_MODULE_LOADING=EAGER loads all modules at the start." if on_cuda else ""
    return Draft(
        title=f"The GPU waits {claims.time_a_step(pieces.time_ns)} while the host launches",
        detail=f"{claims.time_a_step(slow_ns)} are inside calls of over {duration(LAUNCH_PACE_NS)}. A first launch "
        "loads the kernel's module.",
        advice="Launch each kernel once before the part that matters.\n"
        f"Later launches of the same kernel take microseconds.{eager}",
        for_all=True,
        fixes=(),
    )


RULE = Rule(
    id="dispatch",
    severity="warning",
    summary="The host cannot launch kernels as fast as the GPU finishes them.",
    meaning="Every op costs the host some microseconds of dispatch and launch, besides Python. Where kernels are "
    "shorter than that, the GPU finishes each before the next has been launched, and its speed is the host's.",
    computation="Idle time of cause dispatch: the launching thread was inside a launch call, an op that launches, "
    "makes a view or allocates, or in a pause of up to 200 us between two nodes of a backward pass. Where the "
    "recording has no CPU ops, launches within 200 us of one another. Gaps that end with one of many tiny copies go to "
    "tiny-copies. An upper bound: a graph's ops still have a microsecond between them.",
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
    check=on_claimed("dispatch", _draft),
    effort="line",
    fixes=(("graph",), ("fused",)),
)
