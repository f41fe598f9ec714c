"""Rules: exposed copies by their cause."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from overlapscope.analysis import calls as call_kinds
from overlapscope.analysis.groups import LARGE_BYTES
from overlapscope.analysis.host import loading, staging
from overlapscope.base.columns import pick
from overlapscope.base.grouping import among, distinct
from overlapscope.base.intervals import I64
from overlapscope.base.words import duration, size
from overlapscope.catalog.advice import in_words_of
from overlapscope.catalog.causes import CopyCause
from overlapscope.catalog.measures import TINY_BYTES
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules._lines import is_not_torch, sampled_lines
from overlapscope.rules._program import SAVE_LESS, are_saved_tensors
from overlapscope.rules.explained import advice_by_case
from overlapscope.rules.rule import Draft, Rule, claimed, lost, streams
from overlapscope.trace.model import GpuOps, Kind, Memory

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


# -- blocking-copy ---------------------------------------------------------------------------------

_AFTERWARDS = {
    Kind.H2D: "After an upload nothing else is needed: ops of the same stream, and of streams that wait for it, see "
    "the data.",
    Kind.D2H: "After a download, synchronize an event or the stream before the host reads the buffer, as late as "
    "possible.",
}


@Rule("blocking-copy", effort="option", fixes=(("non-blocking",),)).on_claimed
def _blocking_copy(claims: Claims, pieces: ClaimedPieces) -> Draft:
    called = "without non_blocking=True" if claims.trace.framework == "pytorch" else "that block the host"
    kind = claims.device.timeline.ops.kind[claims.blocking]
    afterwards = [text for each, text in _AFTERWARDS.items() if (kind == each).any()]
    saved = are_saved_tensors(claims, claims.blocking)
    return Draft(
        title=f"Copies {called} cost {claims.time_a_step(pieces.time_ns)}",
        detail="The host waited inside each copy until the copy ended, which its memory does not require, and launched "
        f"more work only then. Because of that, {lost(claims, pieces)}.",
        fixes=() if saved else None,
        advice=SAVE_LESS if saved else "Pass non_blocking=True to copy_() and to().\n" + " ".join(afterwards),
    )


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
    for cause, (title, seen) in _REASONS.items():
        pieces = late.with_copy_cause(cause)
        if not claims.matters(pieces.time_ns):
            continue
        rebuilt = any(
            e.subject == "exposed-copy" and e.cause == cause and e.confidence == "rebuilt"
            for e in claims.device.result.evidence
        )
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
