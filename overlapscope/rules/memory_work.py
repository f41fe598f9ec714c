"""Rules: memory work in and between GPUs that runs while no kernel does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from overlapscope.base.intervals import covered, union
from overlapscope.base.words import share
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules.explained import advice_by_case
from overlapscope.rules.rule import Draft, Rule, on_claimed
from overlapscope.trace.lost import ENGINES
from overlapscope.trace.op_names import is_migration

# -- device-copy -------------------------------------------------------------------------------------


def _draft_device_copy(claims: Claims, pieces: ClaimedPieces) -> Draft:
    return Draft(
        title=f"Copies within the {claims.gpu}'s memory run alone for {claims.time_a_step(pieces.time_ns)}",
        detail=f"No kernel ran beside them. They read and write the {claims.gpu}'s memory, as kernels do, so running "
        "them beside kernels gains less than leaving them out.",
        advice=advice_by_case("device-copy", claims.gpu)["fix"],
    )


DEVICE_COPY = Rule(
    id="device-copy",
    check=on_claimed("device-copy", _draft_device_copy),
    rests_on=ENGINES | {"other"},
)


# -- peer-copy ---------------------------------------------------------------------------------------


def _draft_peer_copy(claims: Claims, pieces: ClaimedPieces) -> Draft:
    total = claims.overlap.p2p_ns
    return Draft(
        title=f"Copies between {claims.gpu}s run alone for {claims.time_a_step(pieces.time_ns)}",
        detail=f"They take {claims.time_a_step(total * max(1, claims.steps))} in all. For "
        f"{claims.time(pieces.time_ns)}, no kernel and no copy between host and device ran beside them.",
        advice=advice_by_case("peer-copy", claims.gpu)["fix"],
    )


PEER_COPY = Rule(
    id="peer-copy",
    check=on_claimed("peer-copy", _draft_peer_copy),
    rests_on=ENGINES | {"other"},
)


# -- page-migration ----------------------------------------------------------------------------------


def _check_page_migration(claims: Claims) -> Iterator[Draft]:
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
        advice=advice_by_case("page-migration", claims.gpu)["fix"],
        bound_ns=moved,
        example=pieces.example,
    )


PAGE_MIGRATION = Rule(
    id="page-migration",
    check=_check_page_migration,
    effort="line",
    rests_on=ENGINES | {"other"},
)
