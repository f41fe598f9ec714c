"""A real job of two ranks multiplied to any number: events stay real, arrivals in collectives are made to differ."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from overlapscope.base.intervals import subtract, union
from overlapscope.ranks.join import report_on
from overlapscope.ranks.messages import CommKernels
from overlapscope.ranks.reduced import ReducedRank, reduce
from overlapscope.ranks.result import RanksReport, Unreadable
from overlapscope.reading import load

DDP = Path(__file__).parents[2] / "traces" / "ddp"
HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m|`@everyone`"
US = 1_000


@cache
def recorded() -> tuple[ReducedRank, ReducedRank]:
    """Return the two ranks as they were recorded."""
    first, second = (reduce(load(DDP / f"rank{rank}.json.gz"))[0] for rank in range(2))
    return first, second


def counting_all_waits() -> tuple[ReducedRank, ReducedRank]:
    """Return the two ranks without causes, so that all waits count. Their compute mostly waited for their hosts."""
    first, second = (replace(rank, comm_causes=()) for rank in recorded())
    return first, second


def multiplied(rank: int, size: int, *, late_us: float = 0.0) -> ReducedRank:
    """One rank of a job of `size`, which comes so much later to each collective than it did."""
    template = recorded()[rank % 2]
    random = np.random.default_rng(rank)
    longer = random.integers(0, 400 * US, len(template.steps.span_ns))
    steps = replace(template.steps, span_ns=template.steps.span_ns + longer)
    judged = template.judged
    assert judged is not None
    more_ns = int(longer.mean())
    buckets = replace(judged.buckets, idle_ns=judged.buckets.idle_ns + more_ns)
    comm = _later(template.comm, size, late_us + float(random.uniform(0, 100)))
    return replace(
        template,
        source=f"job/rank{rank}.json.gz",
        rank=rank,
        world_size=size,
        device=rank % 8,
        comm=comm,
        exposed_comm=subtract(template.exposed_comm, union(template.comm.start_ns, comm.start_ns)),
        judged=replace(judged, span_ns=judged.span_ns + more_ns, buckets=buckets),
        step_ns=judged.span_ns + more_ns,
        steps=steps,
    )


def _later(comm: CommKernels, size: int, late_us: float) -> CommKernels:
    """Each kernel still lasts for the transfer, in which ends may differ."""
    kinds = tuple(replace(kind, ranks="", group_size=size) for kind in comm.kinds)
    return replace(comm, kinds=kinds, start_ns=np.minimum(comm.start_ns + round(late_us * US), comm.end_ns - 100 * US))


@cache
def job(
    size: int,
    late: int | None = 5,
    *,
    late_us: float = 900.0,
    missing: tuple[int, ...] = (),
    broken: tuple[int, ...] = (),
) -> RanksReport:
    """Return the report of such a job; one rank is late, some are missing, and the traces of some cannot be read."""
    joined: list[ReducedRank | Unreadable] = []
    for rank in range(size):
        if rank in broken:
            joined.append(Unreadable(source=f"job/rank{rank}.json.gz", reason="is damaged; copy it again.", rank=rank))
        elif rank not in missing:
            joined.append(multiplied(rank, size, late_us=late_us if rank == late else 0.0))
    return report_on(joined)
