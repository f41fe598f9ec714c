"""Rules: memory calls of the host that the GPU waits for, and memory work of GPUs that runs while no kernel does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from overlapscope.analysis import calls as call_kinds
from overlapscope.base.grouping import distinct
from overlapscope.base.intervals import covered, union
from overlapscope.base.words import listed, share
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules.rule import Draft, Rule, name
from overlapscope.trace.lost import ENGINES, Part
from overlapscope.trace.op_names import is_migration


@Rule("allocation", effort="option").on_claimed
def _allocation(claims: Claims, pieces: ClaimedPieces) -> Draft:
    calls = claims.trace.runtime_calls
    behind = Counter(calls.name(int(row)) for row in distinct(pieces.call[pieces.call >= 0]))
    counts = listed([f"{claims.times(count, 'call')} of {name(call)}" for call, count in behind.most_common(4)])
    return Draft(
        title=f"{claims.waits(pieces)} while the driver allocates or frees memory",
        detail="The host was inside a memory call of the driver and could not launch: "
        f"{f'{counts}{claims.a_step}' if counts else 'the calls are not recorded'}.",
    )


@Rule("pin-in-loop", effort="line", fixes=(("pin",),)).on_claimed
def _pin_in_loop(claims: Claims, pieces: ClaimedPieces) -> Draft:
    calls = claims.trace.runtime_calls
    behind = distinct(pieces.call[pieces.call >= 0])
    locking = behind[call_kinds.pins(calls)[behind]]
    took = int((calls.end_ns[locking] - calls.start_ns[locking]).sum())
    locked = f" {claims.times_a_step(len(locking), 'call')} that page-lock memory took {claims.time(took)}."
    return Draft(
        title=f"{claims.waits(pieces)} while the host pins memory",
        detail="Pinning copies the data once more on the host. Unless the allocator has a block of that size to spare, "
        "it also asks the driver to page-lock new memory, which takes about as long as many "
        f"copies.{locked if len(locking) else ''}",
    )


_MEMORY_WORK: Final[frozenset[Part]] = ENGINES | {"other"}


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
