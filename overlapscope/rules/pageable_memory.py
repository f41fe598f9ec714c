"""Rule: copies from or to pageable host memory."""

from __future__ import annotations

import numpy as np

from overlapscope.analysis.groups import LARGE_BYTES
from overlapscope.analysis.host import loading, staging
from overlapscope.base.grouping import among, distinct
from overlapscope.base.intervals import I64
from overlapscope.catalog.advice import in_words_of
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules._features import are_saved_tensors
from overlapscope.rules.explained import advice_by_case
from overlapscope.rules.rule import Draft, Rule, lost, on_claimed
from overlapscope.trace.model import GpuOps, Kind, Memory

_DOWNLOADS = (
    "Download with buffer.copy_(data, non_blocking=True) into a pinned buffer made once, and synchronize an event "
    "before the host reads it."
)


def _draft(claims: Claims, pieces: ClaimedPieces) -> Draft:
    ops = claims.device.timeline.ops
    copies = claims.copies_of(pieces)
    if not len(copies) and len(staging(claims.trace)):
        return _staged_by_xla(claims, pieces)
    moved = int(ops.bytes[copies].clip(min=0).sum())
    downloads = bool((ops.kind[copies] == Kind.D2H).any())
    uploads = not downloads or bool((ops.kind[copies] == Kind.H2D).any())
    loads = len(loading(claims.trace)) or not len(claims.trace.cpu_ops)
    batches = "DataLoader(pin_memory=True) for batches, or " if loads else ""
    even = " even with non_blocking=True" if claims.trace.framework == "pytorch" else ""
    return Draft(
        title=f"Copies of pageable (not pinned) memory cost {claims.time_a_step(pieces.time_ns)}",
        detail=f"{claims.times_a_step(len(copies), 'copy')} used pageable host memory: "
        f"{claims.size(moved)}{_speeds(ops, copies)}. "
        f"Because of that, {lost(claims, pieces)}. The driver stages such a copy through a buffer of its own: the call "
        f"blocks{even}, and the copy is slower. The exposed time and the idle time after the blocked "
        "call are counted. Pinning also shortens the copy itself, so that hidden copy time may shrink too.",
        advice=advice_by_case("pageable-memory", claims.gpu)["saved-tensors"]
        if are_saved_tensors(claims, copies)
        else "Pin the host memory once, outside the loop.\n"
        + (
            f"Use {batches}one buffer made once with torch.empty(..., pin_memory=True) and filled in place; then copy "
            "with non_blocking=True. "
        )
        * uploads
        + f"{_DOWNLOADS} " * downloads
        + "Do not call pin_memory() right before each copy: pinning new memory takes longer than most copies.",
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


RULE = Rule(
    id="pageable-memory",
    check=on_claimed("pageable-memory", _draft),
    effort="option",
    fixes=(("pin",), ("pin", "non-blocking")),
)
