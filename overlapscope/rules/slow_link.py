"""Rule: copies far slower than others of their size and kind."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from overlapscope.analysis.figures import Window
from overlapscope.analysis.groups import LARGE_BYTES
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.grouping import groups_of
from overlapscope.base.intervals import I64, Bool, covered, cut
from overlapscope.base.words import share
from overlapscope.rules._claims import Claims
from overlapscope.rules.explained import advice_by_case
from overlapscope.rules.rule import Draft, Rule
from overlapscope.trace.lost import ENGINES
from overlapscope.trace.model import Kind, Memory

SLOW = 0.6
"""Share of the best bandwidth of its class below which a copy is slow.

One direction alone and both at once differ by less (55 and 45 to 50 GB/s on a PCIe 5 link).
"""

FEWEST = 4
"""Minimum number of copies in a class to compare."""

BESIDE = 0.1
"""A copy that runs beside others for more than this share of its time shares the link and is not judged."""


def _check(claims: Claims) -> Iterator[Draft]:
    timeline = claims.device.timeline
    ops = timeline.ops
    for kind, slow, excess_ns, best in _slow_copies(timeline, claims.copies):
        row, start, end = cut(ops.start_ns[slow], ops.end_ns[slow], claims.windows)
        exposed = np.zeros(len(slow), np.int64)
        np.add.at(exposed, row, covered(timeline.exposed_copy, start, end))
        each = np.minimum(excess_ns, exposed)
        # Two copies that run together for a moment share its exposed time.
        cost = min(int(each.sum()), claims.judged_ns)
        if not claims.matters(cost):
            continue
        moved = int(ops.bytes[slow].sum())
        took = int((ops.end_ns - ops.start_ns)[slow].sum())
        beside_comm = int(covered(timeline.comm, ops.start_ns[slow], ops.end_ns[slow]).sum())
        guess = (
            "The recording does not tell pinned from pageable memory; pageable memory is the likeliest "
            "cause. " * bool((ops.host_memory[slow] == Memory.UNKNOWN).any())
        )
        if beside_comm > took // 2:
            guess += "Communication ran beside most of them and may share the link. "
        worst = slow[int(np.argmax(each))]
        yield Draft(
            title=f"Slow {kind.name} copies cost up to {claims.time_a_step(cost)} ({share(cost, claims.judged_ns)})",
            detail=f"{claims.times_a_step(len(slow), 'copy')}, {claims.size(moved)}, ran at {moved / took:.1f} GB/s. "
            "Others of "
            f"about the same size, direction and memory kind reached {best:.1f} GB/s. No other copy ran beside them. "
            f"{guess}Other findings may count the same exposed time by its cause.",
            advice=advice_by_case("slow-link", claims.gpu)["fix"],
            bound_ns=cost,
            example=Window(start_ns=int(ops.start_ns[worst]), end_ns=int(ops.end_ns[worst])),
        )


def _slow_copies(timeline: Timeline, rows: I64) -> Iterator[tuple[Kind, I64, I64, float]]:
    """Yield the slow copies by direction.

    Each item has their rows, how much longer than the best of its class each took, and the bandwidth in GB/s that they
    would have had.
    """
    ops = timeline.ops
    length = ops.end_ns - ops.start_ns
    rows = rows[(ops.bytes[rows] >= LARGE_BYTES) & (length[rows] > 0)]
    pageable = (ops.source_kind[rows] == Memory.PAGEABLE) | (ops.target_kind[rows] == Memory.PAGEABLE)
    managed = (ops.source_kind[rows] == Memory.MANAGED) | (ops.target_kind[rows] == Memory.MANAGED)
    rows = rows[~pageable & ~managed]
    rows = rows[~_shares_link(timeline, rows)]
    if not len(rows):
        return
    rate = ops.bytes[rows] / length[rows]
    size_class = (np.log2(ops.bytes[rows]) // 2).astype(np.int64)
    group = groups_of([ops.kind[rows], ops.source_kind[rows], ops.target_kind[rows], size_class])
    best = np.zeros(int(group.max()) + 1)
    np.maximum.at(best, group, rate)
    enough = np.bincount(group) >= FEWEST
    slow = enough[group] & (rate < SLOW * best[group])
    excess = length[rows] - (ops.bytes[rows] / best[group]).astype(np.int64)
    for kind in (Kind.H2D, Kind.D2H):
        here = slow & (ops.kind[rows] == kind)
        if here.any():
            moved = ops.bytes[rows[here]]
            yield kind, rows[here], excess[here], float(moved.sum() / (moved / best[group[here]]).sum())


def _shares_link(timeline: Timeline, rows: I64) -> Bool:
    """Select copies that ran beside another copy of either direction for long enough to be slowed by it."""
    ops = timeline.ops
    start, end = ops.start_ns[rows], ops.end_ns[rows]
    beside = np.where(ops.kind[rows] == Kind.H2D, covered(timeline.d2h, start, end), covered(timeline.h2d, start, end))
    for kind in (Kind.H2D, Kind.D2H):
        everyone = np.flatnonzero(ops.kind == kind)
        reach = np.maximum.accumulate(np.append(0, ops.end_ns[everyone]))[:-1]
        following = np.append(ops.start_ns[everyone][1:], np.iinfo(np.int64).max)
        overlap = np.maximum(reach - ops.start_ns[everyone], 0) + np.maximum(ops.end_ns[everyone] - following, 0)
        here = ops.kind[rows] == kind
        beside[here] += overlap[np.searchsorted(everyone, rows[here])]
    shares: Bool = beside > BESIDE * (end - start)
    return shares


RULE = Rule(
    id="slow-link",
    check=_check,
    rests_on=ENGINES,
)
