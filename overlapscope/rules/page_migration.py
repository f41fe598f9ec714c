"""Rule: pages of managed memory that move between host and GPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from overlapscope.base.intervals import covered, union
from overlapscope.base.words import share
from overlapscope.rules._claims import Claims
from overlapscope.rules.rule import Draft, Rule
from overlapscope.trace.lost import ENGINES
from overlapscope.trace.op_names import is_migration


def _check(claims: Claims) -> Iterator[Draft]:
    ops, pieces = claims.device.timeline.ops, claims.of("page-migration")
    rows = np.flatnonzero(ops.named(is_migration))
    moved = int(covered(union(ops.start_ns[rows], ops.end_ns[rows]), *claims.windows).sum())
    if not claims.matters(moved):
        return
    count = int((covered(claims.windows, ops.start_ns[rows], ops.end_ns[rows]) > 0).sum())
    beside = moved - pieces.time_ns
    yield Draft(
        title=f"Pages of managed memory move between host and GPU for {claims.time_a_step(moved)} "
        f"({share(moved, claims.judged_ns)})",
        detail=f"{claims.times(count, 'migration')}{claims.a_step}: {claims.time(beside)} while kernels or copies ran, "
        f"and {claims.time(pieces.time_ns)} while nothing else did. A kernel that touches a page on the host stops "
        "until the page has arrived, so the kernels' own time includes such stalls.",
        advice="Move the pages ahead with cudaMemPrefetchAsync, on a stream of its own.\n"
        "Prefetch to the GPU before the kernel, and to the host before the CPU reads. cudaMemAdvise with "
        "SetPreferredLocation or SetReadMostly keeps pages where they are used, or copies them. Pinned memory and "
        "more streams change nothing here.",
        bound_ns=moved,
        example=pieces.example,
    )


RULE = Rule(
    id="page-migration",
    severity="warning",
    check=_check,
    effort="line",
    rests_on=ENGINES | {"other"},
)
