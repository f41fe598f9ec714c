"""Rules: whether copies use the link in both directions, at its speed, and beside compute."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from overlapscope.analysis.figures import Window
from overlapscope.analysis.groups import LARGE_BYTES
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.grouping import distinct, groups_of
from overlapscope.base.intervals import I64, Bool, covered, cut, intersect
from overlapscope.base.words import capital, duration, listed, part_of, percent, share
from overlapscope.rules._claims import Claims, streams_of
from overlapscope.rules.rule import Draft, Rule, streams
from overlapscope.trace.lost import ENGINES
from overlapscope.trace.model import Kind, Memory

# -- one-way-copies --------------------------------------------------------------------------------

AT_ONCE = 0.1
"""Share of the shorter direction below which both directions count as never at once."""

TURNS = 3
"""Minimum number of changes of direction: two rounds. A single one (load, compute, store) has nothing to pipeline."""


@Rule("one-way-copies", fixes=(("two-way",), ("side-stream",))).checking
def _one_way_copies(claims: Claims) -> Iterator[Draft]:
    rest = claims.unhideable()
    upload, download = claims.engines.h2d_ns, claims.engines.d2h_ns
    both = int(covered(intersect(claims.device.timeline.h2d, claims.device.timeline.d2h), *claims.windows).sum())
    if not claims.matters(rest.time_ns) or both >= AT_ONCE * min(upload, download):
        return
    timeline = claims.device.timeline
    rows = claims.copies
    kinds = timeline.ops.kind[rows]
    turns = int((kinds[1:] != kinds[:-1]).sum())
    # The windows, cut where steps begin, between which supply and demand were weighed.
    cuts = distinct(np.concatenate([*claims.windows, claims.device.steps.start_ns[1:]]))
    _, starts, ends = cut(cuts[:-1], cuts[1:], claims.windows)
    shorter = np.minimum(covered(timeline.h2d, starts, ends), covered(timeline.d2h, starts, ends))
    shorter -= covered(intersect(timeline.h2d, timeline.d2h), starts, ends)
    unhideable = np.zeros(len(starts), np.int64)
    np.add.at(unhideable, np.searchsorted(starts, rest.start_ns, side="right") - 1, rest.length_ns)
    cost = int(np.minimum(shorter, unhideable).sum())
    if turns < TURNS or not claims.matters(cost):
        return
    up = list(streams_of(timeline, Kind.H2D, claims.windows))
    down = list(streams_of(timeline, Kind.D2H, claims.windows))
    shared = sorted(set(up) & set(down))
    if shared:
        reason = f"Both use {streams(shared)}, so they run in the order in which they were issued."
    else:
        reason = f"They use different streams ({listed(up)} and {listed(down)}), so events or the host keep them apart."
    at_once = f"both at once for {claims.time(both)}" if both else "never both at once"
    places = claims.places(rest)
    yield Draft(
        title=f"Uploads and downloads take turns: up to {claims.time_a_step(cost)} "
        f"({share(cost, claims.judged_ns)}) could overlap",
        detail=f"H2D copies ran for {claims.time_a_step(upload)}, D2H copies for {claims.time(download)}, {at_once}; "
        f"the direction changed {claims.times(turns, 'time')}. {reason} The link carries both directions at once, "
        "though each a little more slowly. Only copy time that no compute can hide (cause no-compute) is counted, so "
        "no other finding except slow-link counts it.",
        bound_ns=cost,
        where=places[0].where if places else None,
        example=rest.example,
    )


# -- slow-link -------------------------------------------------------------------------------------

SLOW = 0.6
"""Share of the best bandwidth of its class below which a copy is slow.

One direction alone and both at once differ by less (55 and 45 to 50 GB/s on a PCIe 5 link).
"""

FEWEST = 4
"""Minimum number of copies in a class to compare."""

BESIDE = 0.1
"""A copy that runs beside others for more than this share of its time shares the link and is not judged."""


@Rule("slow-link", rests_on=ENGINES).checking
def _slow_link(claims: Claims) -> Iterator[Draft]:
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
            f"Others of about the same size, direction and memory kind reached {best:.1f} GB/s. No other copy ran "
            f"beside them. {guess}Other findings may count the same exposed time by its cause.",
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


# -- overlap-achieved ------------------------------------------------------------------------------

GOOD_PCT = 90.0


@Rule("overlap-achieved", severity="info", rests_on=ENGINES).checking
def _overlap_achieved(claims: Claims) -> Iterator[Draft]:
    overlap, engines, steps = claims.overlap, claims.engines, max(1, claims.steps)
    efficiency = overlap.efficiency_pct
    if efficiency is None or efficiency < GOOD_PCT or not claims.matters(overlap.copy_ns * steps):
        return
    if claims.analysis.result.trust.lost & ENGINES:
        return
    lengths = (("compute", engines.sm_ns), ("H2D copies", engines.h2d_ns), ("D2H copies", engines.d2h_ns))
    longest, longest_ns = max(lengths, key=lambda each: each[1])
    beyond, a_step, exposed_ns = overlap.busy_ns - overlap.ideal_ns, claims.a_step, claims.buckets.exposed_copy_ns
    case, hidden = "copies-longest", part_of(overlap.hidden_copy_ns, overlap.copy_ns)
    title = (
        f"The {longest[:3]} link limits the speed: copies overlap as far as they can, and {claims.time(exposed_ns)}"
        f"{a_step} still run alone (overlap efficiency {percent(efficiency)})"
    )
    if longest == "compute":
        case = "some-exposed" if claims.matters(exposed_ns) else "none-exposed"
        title = capital(
            f"{hidden} of copies{a_step} are hidden under compute (overlap efficiency {percent(efficiency)})"
        )
    yield Draft(
        title=title,
        detail=f"Kernels and copies together took {duration(overlap.busy_ns)}{a_step}. The longest of them alone, "
        f"{longest}, took {claims.time(longest_ns)}, which is the ideal. At most {duration(beyond)} "
        f"({share(beyond * steps, claims.judged_ns)}) is left to gain. One after the other they would have taken "
        f"{duration(overlap.serial_ns)}.",
        case=case,
    )
