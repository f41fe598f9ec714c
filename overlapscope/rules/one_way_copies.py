"""Rule: uploads and downloads that alternate on a link that carries both at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from overlapscope.base.grouping import distinct
from overlapscope.base.intervals import I64, Intervals, covered, cut, intersect
from overlapscope.base.words import listed, share
from overlapscope.rules._claims import Claims, streams_of
from overlapscope.rules.explained import advice_by_case
from overlapscope.rules.rule import Draft, Rule, streams
from overlapscope.trace.model import Kind

AT_ONCE = 0.1
"""Share of the shorter direction below which both directions count as never at once."""

TURNS = 3
"""Minimum number of changes of direction: two rounds. A single one (load, compute, store) has nothing to pipeline."""


def _check(claims: Claims) -> Iterator[Draft]:
    rest = claims.unhideable()
    upload, download = claims.engines.h2d_ns, claims.engines.d2h_ns
    both = int(covered(intersect(claims.device.timeline.h2d, claims.device.timeline.d2h), *claims.windows).sum())
    if not claims.matters(rest.time_ns) or both >= AT_ONCE * min(upload, download):
        return
    timeline = claims.device.timeline
    rows = claims.copies
    kinds = timeline.ops.kind[rows]
    turns = int((kinds[1:] != kinds[:-1]).sum())
    starts, ends = _periods(claims.windows, claims.device.steps.start_ns)
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
        "the direction "
        f"changed {claims.times(turns, 'time')}. {reason} The link carries both directions at once, though each a "
        "little "
        "more slowly. Only copy time that no compute can hide (cause no-compute) is counted, so no other finding "
        "except slow-link counts it.",
        advice=advice_by_case("one-way-copies", claims.gpu)["fix"],
        bound_ns=cost,
        where=places[0].where if places else None,
        example=rest.example,
    )


def _periods(windows: Intervals, step_starts: I64) -> tuple[I64, I64]:
    """Return the windows cut where steps begin, between which supply and demand were weighed."""
    cuts = distinct(np.concatenate([windows.starts, windows.ends, step_starts[1:]]))
    _, starts, ends = cut(cuts[:-1], cuts[1:], windows)
    return starts, ends


RULE = Rule(
    id="one-way-copies",
    check=_check,
    fixes=(("two-way",), ("side-stream",)),
)
