"""Rules on copies and memory.

They are on exposed copies by their cause; on copies beside compute, in both directions, and at the link's speed; and on
memory work of GPUs that runs while no kernel does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from overlapscope.analysis.event_waits import EXACT
from overlapscope.analysis.figures import Window
from overlapscope.analysis.groups import LARGE_BYTES
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import pick
from overlapscope.base.grouping import among, distinct, groups_of
from overlapscope.base.intervals import I64, Bool, covered, cut, intersect, union
from overlapscope.base.words import capital, duration, listed, part_of, percent, share, size
from overlapscope.catalog.advice import in_words_of
from overlapscope.catalog.causes import COPY_RANK, CopyCause
from overlapscope.catalog.measures import TINY_BYTES
from overlapscope.rules._claims import ClaimedPieces, Claims, streams_of
from overlapscope.rules._program import SAVE_LESS, are_saved_tensors
from overlapscope.rules.explained import advice_by_case
from overlapscope.rules.rule import Draft, Rule, claimed, lost, streams
from overlapscope.trace import calls as call_kinds
from overlapscope.trace.host import loading, staging
from overlapscope.trace.host_activity import is_not_torch
from overlapscope.trace.lost import PARTS_FOR_ENGINES, Part
from overlapscope.trace.model import GpuOps, Kind, Memory
from overlapscope.trace.op_names import is_migration

# -- pageable-memory -------------------------------------------------------------------------------


@Rule("pageable-memory", effort="option", fixes=(("pin",), ("pin", "non-blocking"))).on_claimed
def _pageable_memory(claims: Claims, pieces: ClaimedPieces) -> Draft:
    ops = claims.device.timeline.ops
    copies = claims.copies_of(pieces)
    if not len(copies) and len(staging(claims.trace)):
        return _staged_by_xla(claims, pieces)
    moved = int(ops.bytes[copies].clip(min=0).sum())
    downloads = bool((ops.kind[copies] == Kind.D2H).any())
    uploads = not downloads or bool((ops.kind[copies] == Kind.H2D).any())
    loads = bool(len(loading(claims.trace))) or not len(claims.trace.cpu_ops)
    cases = advice_by_case("pageable-memory", claims.gpu)
    advice = cases["saved-tensors"]
    if not are_saved_tensors(claims, copies):
        up = cases["upload"].format(batches="DataLoader(pin_memory=True) for batches, or " * loads)
        advice = cases["fix"].format(copies=f"{up} " * uploads + f"{cases['download']} " * downloads)
    even = " even with non_blocking=True" if claims.trace.framework == "pytorch" else ""
    return Draft(
        title=f"Copies of pageable (not pinned) memory cost {claims.time_a_step(pieces.time_ns)}",
        detail=f"{claims.times_a_step(len(copies), 'copy')} used pageable host memory: "
        f"{claims.size(moved)}{_speeds(ops, copies)}. "
        f"Because of that, {lost(claims, pieces)}. The driver stages such a copy through a buffer of its own: the call "
        f"blocks{even}, and the copy is slower. The exposed time and the idle time after the blocked "
        "call are counted. Pinning also shortens the copy itself, so that hidden copy time may shrink too.",
        advice=advice,
    )


def _staged_by_xla(claims: Claims, pieces: ClaimedPieces) -> Draft:
    return Draft(
        title=f"Staging arrays on the host costs {claims.time_a_step(pieces.time_ns)}",
        detail="XLA copied arrays from pageable into pinned memory before it could upload them, and the work that "
        f"needed them waited. Because of that, {lost(claims, pieces)}.",
        advice=in_words_of("jax", "pageable-memory", ""),
        fixes=(),
    )


def _speeds(ops: GpuOps, copies: I64) -> str:
    """Return the rates of the copies in each direction, compared with pinned ones. Only large copies count."""
    large = np.flatnonzero((ops.bytes >= LARGE_BYTES) & (ops.end_ns > ops.start_ns))
    pageable, pinned = distinct(large[among(large, copies)]), large[ops.host_memory[large] == Memory.PINNED]
    speeds = []
    for kind in (Kind.H2D, Kind.D2H):
        ours, others = pageable[ops.kind[pageable] == kind], pinned[ops.kind[pinned] == kind]
        if not len(ours):
            continue
        rate = ops.bytes[ours].sum() / (ops.end_ns - ops.start_ns)[ours].sum()
        best = (ops.bytes[others] / (ops.end_ns - ops.start_ns)[others]).max(initial=0.0)
        reached = f" (pinned memory in this recording: up to {best:.1f} GB/s)" if len(others) else ""
        speeds.append(f", {kind.name} at {rate:.1f} GB/s{reached}")
    return "".join(speeds)


# -- same-stream -----------------------------------------------------------------------------------

_DOWNLOAD_TOO = " Give downloads a third stream, which waits for an event after the op that computes the data."
_UPLOAD_TOO = " Issue uploads on another stream, one step ahead of their use."


@Rule(
    "same-stream",
    fixes=(
        ("side-stream",),
        ("side-stream", "prefetch"),
        ("non-blocking", "side-stream"),
        ("non-blocking", "side-stream", "prefetch"),
    ),
).on_claimed
def _same_stream(claims: Claims, pieces: ClaimedPieces) -> Draft:
    ops = claims.device.timeline.ops
    kind, used, rest = ops.kind[pieces.copies], distinct(ops.stream[pieces.copies]), claims.unhideable()
    rest = rest.take(among(ops.stream[rest.copy], used))
    other = bool((kind != kind[0]).any())
    download = 4 * int(pieces.length_ns[ops.kind[pieces.copy] == Kind.D2H].sum()) > 3 * pieces.time_ns
    cases = advice_by_case("same-stream", claims.gpu)
    saved = are_saved_tensors(claims, pieces.copies)
    if saved:
        advice = SAVE_LESS
    elif download:
        advice = in_words_of(claims.trace.framework, "two-way", cases["download"]) + _UPLOAD_TOO * other
    else:
        advice = cases["upload"] + _DOWNLOAD_TOO * other
    of_graph = call_kinds.launches_graph(claims.trace.runtime_calls)
    if pick(of_graph, ops.launch[pieces.copies], False).any():
        advice += claims.filled(" Fork that stream with events while the {graph} is captured.")
    more = ""
    blocking = int(among(pieces.copies, claims.blocking).sum())
    if blocking:
        waits = claims.times_a_step(blocking, "wait")
        more = f" The host also waited for copies ({waits}, no non_blocking=True), which must change too."
    if rest.time_ns:
        more += (
            f" Another {claims.time(rest.time_ns)} of copies on that stream cannot be hidden in any order, because "
            "copies outlast compute. It is not counted here."
        )
    return Draft(
        title=f"Copies on the compute stream run alone for {claims.time_a_step(pieces.time_ns)}",
        detail=f"{claims.times_a_step(len(pieces.copies), 'copy')} on {streams(used.tolist())} ran in order with the "
        f"compute of the same stream, so neither could run beside the other.{more}",
        advice=advice,
        for_all=download,
        fixes=() if saved else None,
    )


# -- late-prefetch ---------------------------------------------------------------------------------

_REASONS = {
    CopyCause.LATE_ISSUE: (
        "Copies issued too late run alone for",
        "began as soon as it was issued, but the compute that could have hidden it had already ended",
    ),
    CopyCause.EVENT_WAIT: (
        "Copies held by an event wait run alone for",
        "was issued in time, but an event wait kept copy and compute apart: either the copy waited for "
        "compute to end, or the next compute waited for the copy",
    ),
    CopyCause.ENGINE_BUSY: (
        "Copies queued behind other copies run alone for",
        "was queued behind other copies of the same direction, or held such a copy up, until compute had run out",
    ),
}
"""Title and evidence by cause."""


@Rule("late-prefetch", fixes=(("prefetch",),)).checking
def _late_prefetch(claims: Claims) -> Iterator[Draft]:
    late, cases = claims.of("late-prefetch"), advice_by_case("late-prefetch", claims.gpu)
    exposed = claims.device.exposed.inside(claims.device.windows)
    for cause, (title, seen) in _REASONS.items():
        pieces = late.with_copy_cause(cause)
        if not claims.matters(pieces.time_ns):
            continue
        rebuilt = bool((exposed.confidence[exposed.cause == COPY_RANK[cause]] != EXACT).any())
        kinds = claims.device.timeline.ops.kind[pieces.copy]
        download = 2 * int(pieces.length_ns[kinds == Kind.D2H].sum()) > pieces.time_ns
        advice = cases[cause]
        if download and cause != CopyCause.ENGINE_BUSY:
            advice = in_words_of(claims.trace.framework, "two-way", cases[f"{cause}-of-downloads"])
        doubt = " The recording does not say which event was waited for; it was rebuilt from the timeline." * rebuilt
        draft = Draft(
            title=f"{title} {claims.time_a_step(pieces.time_ns)}",
            detail=f"In {claims.times_a_step(len(pieces.copies), 'case')} the copy {seen} (cause {cause}).{doubt}",
            advice=advice,
            for_all=cause == CopyCause.ENGINE_BUSY or download,
            # No intervention loosens an event wait, changes the order in a queue, or downloads earlier.
            fixes=None if cause == CopyCause.LATE_ISSUE and not download else (),
        )
        yield claimed(claims, pieces, draft)


_OF_PAGEABLE = ("batch-copies", "pin", "non-blocking"), ("batch-copies", "pin")
"""Changes to uploads from ordinary memory, besides those to all copies."""


@Rule("tiny-copies", fixes=(("batch-copies",),)).on_claimed
def _tiny_copies(claims: Claims, pieces: ClaimedPieces) -> Draft:
    from overlapscope.rules._lines import sampled_lines

    ops = claims.device.timeline.ops
    moved = ops.bytes[claims.tiny]
    uploads = claims.tiny[ops.kind[claims.tiny] == Kind.H2D]
    pageable = len(uploads) and (ops.host_memory[uploads] == Memory.PAGEABLE).all()
    typical = int(np.median(ops.end_ns[claims.tiny] - ops.start_ns[claims.tiny]))
    return Draft(
        afterword=sampled_lines(claims, is_not_torch),
        title=f"{claims.times(len(claims.tiny), 'copy')} of {size(int(np.median(moved)))} cost the {claims.gpu} "
        f"{claims.time_a_step(pieces.time_ns)}",
        detail=f"{claims.times(len(claims.tiny), 'copy')} below {size(TINY_BYTES)} move "
        f"{claims.size(int(moved.sum()))}{claims.a_step}. "
        f"Each took {duration(typical)} (median) on the device, which is latency and not bandwidth, and a "
        f"launch on the host. Because of them, {lost(claims, pieces)}.",
        fixes=(*_OF_PAGEABLE, ("batch-copies",)) if pageable else None,
        case="uploads" if len(uploads) else "downloads",
        for_all=not len(uploads),
    )


# -- one-way-copies --------------------------------------------------------------------------------

AT_ONCE = 0.1
"""Share of the shorter direction below which both directions count as never at once."""

MIN_TURNS = 3
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
    if turns < MIN_TURNS or not claims.matters(cost):
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

SLOW_COPY_SHARE = 0.6
"""Share of the best bandwidth of its class below which a copy is slow.

One direction alone and both at once differ by less (55 and 45 to 50 GB/s on a PCIe 5 link).
"""

MIN_COPIES_IN_CLASS = 4
"""Minimum number of copies in a class to compare."""

MAX_SHARED_LINK_SHARE = 0.1
"""A copy that runs beside others for more than this share of its time shares the link and is not judged."""


@Rule("slow-link", rests_on=PARTS_FOR_ENGINES).checking
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
    enough = np.bincount(group) >= MIN_COPIES_IN_CLASS
    slow = enough[group] & (rate < SLOW_COPY_SHARE * best[group])
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
    shares: Bool = beside > MAX_SHARED_LINK_SHARE * (end - start)
    return shares


# -- overlap-achieved ------------------------------------------------------------------------------

GOOD_PCT = 90.0


@Rule("overlap-achieved", severity="info", rests_on=PARTS_FOR_ENGINES).checking
def _overlap_achieved(claims: Claims) -> Iterator[Draft]:
    overlap, engines, steps = claims.overlap, claims.engines, max(1, claims.steps)
    efficiency = overlap.efficiency_pct
    if efficiency is None or efficiency < GOOD_PCT or not claims.matters(overlap.copy_ns * steps):
        return
    if claims.analysis.result.trust.lost & PARTS_FOR_ENGINES:
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


# -- Memory ------------------------------------------------------------------------------------------


_MEMORY_WORK: Final[frozenset[Part]] = PARTS_FOR_ENGINES | {"other"}


@Rule("device-copy", rests_on=_MEMORY_WORK).on_claimed
def _device_copy(claims: Claims, pieces: ClaimedPieces) -> Draft:
    return Draft(
        title=f"Copies within the {claims.gpu}'s memory run alone for {claims.time_a_step(pieces.time_ns)}",
        detail=f"No kernel ran beside them. They read and write the {claims.gpu}'s memory, as kernels do, so running "
        "them beside kernels gains less than leaving them out.",
    )


@Rule("peer-copy", rests_on=_MEMORY_WORK).on_claimed
def _peer_copy(claims: Claims, pieces: ClaimedPieces) -> Draft:
    total_ns = claims.overlap.p2p_ns * max(1, claims.steps)
    return Draft(
        title=f"Copies between {claims.gpu}s run alone for {claims.time_a_step(pieces.time_ns)}",
        detail=f"They take {claims.time_a_step(total_ns)} in all. For {claims.time(pieces.time_ns)}, no kernel and no "
        "copy between host and device ran beside them.",
    )


@Rule("page-migration", effort="line", rests_on=_MEMORY_WORK).checking
def _page_migration(claims: Claims) -> Iterator[Draft]:
    ops, pieces = claims.device.timeline.ops, claims.of("page-migration")
    rows = np.flatnonzero(ops.named(is_migration))
    moved = int(covered(union(ops.start_ns[rows], ops.end_ns[rows]), *claims.windows).sum())
    if not claims.matters(moved):
        return
    count = int((covered(claims.windows, ops.start_ns[rows], ops.end_ns[rows]) > 0).sum())
    beside = moved - pieces.time_ns
    yield Draft(
        title=f"Pages of managed memory move between host and {claims.gpu} for {claims.time_a_step(moved)} "
        f"({share(moved, claims.judged_ns)})",
        detail=f"{claims.times(count, 'migration')}{claims.a_step}: {claims.time(beside)} while kernels or copies ran, "
        f"and {claims.time(pieces.time_ns)} while nothing else did. A kernel that touches a page on the host stops "
        "until the page has arrived, so the kernels' own time includes such stalls.",
        bound_ns=moved,
        example=pieces.example,
    )
