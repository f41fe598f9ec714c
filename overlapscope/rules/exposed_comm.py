"""Rule: collectives that run while nothing computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np

from overlapscope.analysis.results import Window
from overlapscope.base.intervals import covered, cut
from overlapscope.base.words import percent, share
from overlapscope.rules._claims import Claims
from overlapscope.rules.rule import Draft, Rule, name
from overlapscope.trace.lost import FIGURES
from overlapscope.trace.model import Kind


def _check(claims: Claims) -> Iterator[Draft]:
    cost = claims.buckets.exposed_comm_ns
    if not claims.matters(cost):
        return
    timeline, ops = claims.device.timeline, claims.device.timeline.ops
    rows = np.flatnonzero(ops.kind == Kind.COMM)
    row, start, end = cut(ops.start_ns[rows], ops.end_ns[rows], claims.windows)
    each = covered(timeline.exposed_comm, start, end)
    by_name: Counter[str] = Counter()
    for op, time_ns in zip(rows[row].tolist(), each.tolist(), strict=True):
        by_name[ops.name(op)] += time_ns
    kernels = "; ".join(f"{claims.time(time_ns)} {name(kernel)}" for kernel, time_ns in by_name.most_common(3))
    worst = int(np.argmax(each))
    hidden = claims.overlap.comm_compute_pct
    yield Draft(
        title=f"Communication runs alone for {claims.time_a_step(cost)} ({share(cost, claims.judged_ns)})",
        detail=f"Collectives ran for {claims.time_a_step(claims.engines.comm_ns)}, {percent(hidden or 0)} of it beside "
        f"compute. Alone: {kernels}. A collective's kernel also waits for the slowest rank, so part of this time may "
        "be a late rank and not the transfer: compare the traces of the ranks.",
        advice="Start collectives earlier and in smaller parts, so that compute hides them.\n"
        "DDP overlaps a bucket's all-reduce with the rest of backward: try smaller buckets (bucket_cap_mb), and keep "
        "the last bucket small. FSDP prefetches with forward_prefetch or set_modules_to_forward_prefetch. Call "
        "collectives with async_op=True and wait() just before use. Accumulate gradients under no_sync() to "
        "communicate less often. If one rank is late, balance its work first.",
        bound_ns=cost,
        example=Window(start_ns=int(start[worst]), end_ns=int(end[worst])),
    )


RULE = Rule(
    id="exposed-comm",
    severity="warning",
    summary="Collectives run while nothing computes.",
    meaning="Communication beside compute costs little. If it is exposed, the GPU waits for the network or for "
    "another rank. The kernel of a collective runs from the arrival of this rank until all ranks have "
    "arrived, so a late rank looks like slow communication on all the others.",
    computation="The bucket `exposed_comm_ns`: communication kernels outside compute, without the lead-in. "
    "An upper bound: the last collective of a step has no compute of its step left to hide under.",
    wrong="""import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
gradients = [torch.randn(1 << 24, device="cuda") for _ in range(8)]
weight = torch.randn(4096, 4096, device="cuda")
for gradient in gradients:
    weight @ weight
    dist.all_reduce(gradient)
""",
    right="""import torch
import torch.distributed as dist

dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
gradients = [torch.randn(1 << 24, device="cuda") for _ in range(8)]
weight = torch.randn(4096, 4096, device="cuda")
pending = []
for gradient in gradients:
    pending.append(dist.all_reduce(gradient, async_op=True))
    weight @ weight
for work in pending:
    work.wait()
""",
    check=_check,
    effort="option",
    rests_on=FIGURES,
)
