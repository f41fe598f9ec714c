"""Rule: collectives that run while nothing computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.collectives import CommKind, comm_kinds
from overlapscope.analysis.exposed_comm import GATHERS, NO_DEPTH, lead_ns, prefetch_depths
from overlapscope.analysis.figures import Window
from overlapscope.analysis.graphs import origins_of
from overlapscope.analysis.groups import sites_of_ops
from overlapscope.analysis.pieces import CommOps, Exposed
from overlapscope.base.columns import pick, quantile
from overlapscope.base.intervals import contains
from overlapscope.base.words import duration, listed, percent, share, shorten
from overlapscope.catalog.causes import COMM_CAUSES, CommCause
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules._program import DATA_PARALLEL, features_of
from overlapscope.rules.explained import advice_by_case
from overlapscope.rules.rule import Draft, Rule, name, spread
from overlapscope.trace import calls as call_kinds
from overlapscope.trace.host import Where
from overlapscope.trace.lost import PARTS_FOR_ENGINES, PARTS_FOR_FINDINGS
from overlapscope.trace.op_names import short_kernel

_DDP = "DDP: use smaller buckets, above all a small last one (bucket_cap_mb). "
_NO_SYNC = ", or accumulate gradients under no_sync()"
_FSDP = (
    "FSDP: prefetch further ahead, with forward_prefetch or set_modules_to_forward_prefetch and "
    "set_modules_to_backward_prefetch. "
)
_BEGINNINGS = {
    CommCause.LATE_ISSUE: "when the host launched it",
    CommCause.HOST_SYNC: "when the host launched it after a wait",
    CommCause.BLOCKED_BEHIND: "after the collective before it",
    CommCause.WAITING_FOR_INPUT: "after an op that it waited for",
    CommCause.UNKNOWN: "after a delay that the recording does not explain, such as a full {gpu}",
}


def _fitting(claims: Claims, advice: str) -> str:
    """Return advice without options that the program cannot have, because it uses no DDP or FSDP."""
    features = features_of(claims.trace)
    if features.data_parallel:
        return claims.filled(DATA_PARALLEL)
    return advice.format(ddp=_DDP * features.ddp, fsdp=_FSDP * features.fsdp, no_sync=_NO_SYNC * features.ddp)


@Rule("exposed-comm", effort="option", rests_on=PARTS_FOR_ENGINES).checking
def _exposed_comm(claims: Claims) -> Iterator[Draft]:
    cost = claims.buckets.exposed_comm_ns
    if not claims.matters(cost):
        return
    ops, comm = claims.device.timeline.ops, claims.device.comm
    described = comm_kinds(claims.trace, ops.take(comm.op))
    pieces = claims.device.exposed_comm.inside(claims.windows)
    kind = described.kind[np.searchsorted(comm.op, pieces.op)]
    time_ns = np.zeros(len(described.kinds), np.int64)
    np.add.at(time_ns, kind, pieces.length_ns)
    costliest: list[int] = np.argsort(-time_ns, kind="stable")[:3].tolist()
    named = ((claims.time(ns), name(described.kinds[each].words)) for each in costliest if (ns := int(time_ns[each])))
    hidden = percent(claims.overlap.comm_compute_pct or 0)
    title = f"Communication runs alone for {claims.time_a_step(cost)} ({share(cost, claims.judged_ns)})"
    detail = (
        f"Collectives ran for {claims.time_a_step(claims.engines.comm_ns)}, {hidden} of it beside compute. "
        f"Alone: {'; '.join(f'{time} {words}' for time, words in named)}."
    )
    top = pieces.take(kind == costliest[0])
    longest = int(np.argmax(top.length_ns))
    draft = Draft(
        title=title,
        detail=detail,
        advice=_fitting(claims, advice_by_case("exposed-comm", claims.gpu)["general"]),
        bound_ns=cost,
        example=Window(start_ns=int(top.start_ns[longest]), end_ns=int(top.end_ns[longest])),
    )
    # If a part of the recording that decides causes may be lost, they are unknown.
    if not claims.analysis.result.trust.lost & PARTS_FOR_FINDINGS:
        draft = _explained(claims, draft, described.kinds[costliest[0]], top, comm.take(described.kind == costliest[0]))
    yield draft


def _explained(claims: Claims, draft: Draft, kind: CommKind, pieces: Exposed, comm: CommOps) -> Draft:
    """Return the draft with the causes of a kind of collective; `pieces` are its exposed time."""
    time_ns = np.zeros(len(COMM_CAUSES), np.int64)
    np.add.at(time_ns, pieces.cause, pieces.length_ns)
    order: list[int] = np.argsort(-time_ns, kind="stable").tolist()
    causes = [(COMM_CAUSES[rank], int(time_ns[rank])) for rank in order if time_ns[rank]]
    cause = causes[0][0]
    why = listed(f"{claims.time(ns)} {each}" for each, ns in causes[:3])
    blamed = pieces.take(pieces.cause == order[0])
    calls = claims.trace.runtime_calls
    times = {"start_ns": blamed.start_ns, "end_ns": blamed.end_ns}
    places = claims.places(ClaimedPieces.of_calls(claims.trace, blamed.call, rule=-1, cause=order[0], **times))
    cases = advice_by_case("exposed-comm", claims.gpu)
    meaning, advice = CommCause(cause).words.evidence, cases.get(cause, cases["general"])
    allocating = blamed.length_ns[pick(call_kinds.allocates(calls), blamed.call, False)]
    if cause == CommCause.HOST_SYNC and 2 * int(allocating.sum()) > int(blamed.length_ns.sum()):
        advice = cases["allocating"]
    return replace(
        draft,
        title=f"{draft.title}: mostly {name(shorten(kind.words, 50))}, {cause}",
        detail=f"{draft.detail} Causes of the first: {why}. Mostly, it {meaning}.{_held(claims, blamed)}"
        f"{_beginnings(claims, comm)}{_depths(claims, kind, comm)}{spread(claims, places)}",
        advice=_fitting(claims, advice),
        where=_captured_at(claims, blamed) or (places[0].where if places else None),
    )


def _captured_at(claims: Claims, pieces: Exposed) -> Where | None:
    """Return where the collective of the longest piece was captured; None if no graph has it, or that is unknown."""
    longest = pieces.take(np.argmax(pieces.length_ns, keepdims=True))
    op = claims.device.timeline.ops.take(longest.op)
    if (origins_of(claims.trace, op).row < 0).any():
        return None
    return sites_of_ops(claims.trace, op, longest.call).site_at(claims.trace, 0)


def _held(claims: Claims, pieces: Exposed) -> str:
    """Return the op that collectives waited for longest, in a sentence."""
    held = pieces.take(pieces.held_by >= 0)
    if not len(held.op):
        return ""
    ops, time_ns = claims.device.timeline.ops, Counter[str]()
    for op, ns in zip(held.held_by.tolist(), held.length_ns.tolist(), strict=True):
        time_ns[short_kernel(ops.name(op))] += ns
    return f" Before it began, it waited mostly for {name(time_ns.most_common(1)[0][0])}."


def _beginnings(claims: Claims, comm: CommOps) -> str:
    """Return what let the collectives begin, and how long before its first use the median one ended."""
    ops = claims.device.timeline.ops
    comm = comm.take(contains(claims.windows, ops.start_ns[comm.op]))
    counts = Counter(COMM_CAUSES[rank] for rank in comm.cause.tolist())
    if not counts:
        return ""
    began = claims.filled(
        listed(f"{claims.times(n, 'time')} {_BEGINNINGS[cause]}" for cause, n in counts.most_common())
    )
    used = comm.take(comm.consumer >= 0)
    lead = ""
    if len(used.op):
        median_ns = quantile(lead_ns(ops, used), 0.5)
        lead = f" The median one ended {duration(median_ns)} before the first compute that waits for it."
    return f" {'Per step, it' if claims.steps else 'It'} began {began}.{lead}"


def _depths(claims: Claims, kind: CommKind, comm: CommOps) -> str:
    """Return the prefetch depths of an all-gather in a sentence; an empty text for other collectives."""
    ops = claims.device.timeline.ops
    depths = prefetch_depths(ops, claims.trace.runtime_calls, comm)
    known = depths[contains(claims.windows, ops.start_ns[comm.op]) & (depths != NO_DEPTH)]
    if not GATHERS.search(kind.collective) or not len(known):
        return ""
    counts = sorted(Counter(known.tolist()).items())
    depth = listed(f"{depth} ({claims.times(count, 'time')})" for depth, count in counts)
    return f" Prefetch depth: {depth}."
