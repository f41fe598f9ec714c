"""Rule: the host can't launch as fast as the GPU works."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from overlapscope.analysis.host_work import backward_threads
from overlapscope.analysis.periods import is_step
from overlapscope.base.grouping import among, distinct
from overlapscope.base.intervals import I64, cut
from overlapscope.base.texts import GPU
from overlapscope.base.words import duration, each, listed
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules._features import DATA_PARALLEL, features_of
from overlapscope.rules._launches import Owner, launches, outside_graphs, owners, who_launches
from overlapscope.rules._lines import is_torch, most_in, sampled_lines, stacks_cost, top_line
from overlapscope.rules.explained import advice_by_case
from overlapscope.rules.rule import Draft, Fixes, Rule, on_claimed
from overlapscope.trace.model import Kind
from overlapscope.trace.servers import batch_in


def _draft(claims: Claims, pieces: ClaimedPieces) -> Draft:
    ops = claims.device.timeline.ops
    compute = np.flatnonzero(ops.kind == Kind.COMPUTE)
    row, _, _ = cut(ops.start_ns[compute], ops.end_ns[compute], claims.windows)
    kernels = compute[distinct(row)]
    lengths = ops.end_ns[kernels] - ops.start_ns[kernels]
    typical = f"; their median duration is {duration(int(np.median(lengths)))}" if len(lengths) else ""
    launch_rows = launches(claims)
    by, outside = owners(claims), outside_graphs(claims, launch_rows)
    who = who_launches(claims, launch_rows, by)
    remark, more = f": {who}" if who else "", ""
    if len(outside) < len(launch_rows):
        count = each(len(outside), max(1, claims.steps))
        remark = (
            f", {count} of {claims.times_a_step(len(launch_rows), 'launch')}{claims.filled(' outside the {graph}s')}"
        )
        more = f" {who[0].upper()}{who[1:]}." if who else ""
        more += _without_graphs(claims, launch_rows, outside)
    cases = advice_by_case("dispatch", claims.gpu)
    advice, fixes = _advice(claims, pieces, by, launch_rows, launch_rows[~among(launch_rows, outside)])
    return Draft(
        where=top_line(claims, is_torch),
        title=f"{claims.waits(pieces)} while the host launches{most_in(claims, is_torch)}",
        remark=remark,
        afterword=f"{more}{sampled_lines(claims, is_torch)}",
        fixes=fixes,
        for_all=advice in (cases["inside-graphs"], cases["outside-graphs"]),
        nameless="between nodes of the backward pass" if len(backward_threads(claims.trace)) else "between launches",
        detail=f"In {claims.times_a_step(pieces.gaps, 'idle gap')} the launching thread was inside launch "
        f"calls and the ops that make them. {claims.times(len(kernels), 'compute kernel')} ran{typical}."
        f"{stacks_cost(claims)}",
        advice=advice,
    )


def _without_graphs(claims: Claims, launch_rows: I64, outside: I64) -> str:
    """Return which of the judged steps of a server launch no CUDA graph, as a sentence; empty if all or none do."""
    notes, per_step = claims.trace.annotations, claims.device.result.per_step
    marks = notes.take(is_step(notes))
    batches = {number: batch for number in range(len(marks)) if (batch := batch_in(marks.name(number)))}

    def requests(rows: I64) -> dict[int, int | None]:
        """Return the steps of the judged phase that make some launches, and their numbers of requests."""
        step = np.searchsorted(marks.start_ns, claims.trace.runtime_calls.start_ns[rows], side="right") - 1
        found = {number: batches[number] for number in distinct(step).tolist() if number in batches}
        return {n: batch.requests for n, batch in found.items() if per_step and batch.phase == per_step.phase}

    every, graphs = requests(launch_rows), requests(launch_rows[~among(launch_rows, outside)])
    without = {each for number, each in every.items() if number not in graphs}
    if not graphs or not without:
        return ""
    alike = None in without or without & {*graphs.values()}
    which = "" if alike else f": those of {listed(map(str, sorted(filter(None, without))))} requests"
    return claims.filled(f" {len(every) - len(graphs)} of {len(every)} steps launch no {{graph}}{which}.")


def _advice(
    claims: Claims, pieces: ClaimedPieces, by: Sequence[Owner], launch_rows: I64, graphs: I64
) -> tuple[str, Fixes | None]:
    """Return what to change, which the program doesn't do yet, and the fixes that represent it; None for the rule's."""
    features, ops, cases = (
        features_of(claims.trace),
        claims.device.timeline.ops,
        advice_by_case("dispatch", claims.gpu),
    )
    fusible = [owner for owner in by if owner.can_be_fused]
    ends = claims.device.timeline.idle.ends[pieces.gap]

    def are_most(calls: Iterable[I64]) -> bool:
        """Return whether these are most of the launches, or most of the idle time ends with ops that they launch."""
        rows = np.concatenate([launch_rows[:0], *calls])
        awaited = among(ends, ops.start_ns[among(ops.launch, rows)])
        return 2 * len(rows) > len(launch_rows) or 2 * int(pieces.length_ns[awaited].sum()) > pieces.time_ns

    if claims.gpu != GPU:
        # The catalog has the advice, and no replay is of fewer kernels.
        return cases["compile"], ()
    if features.data_parallel:
        return claims.filled(DATA_PARALLEL), ()
    if are_most(owner.calls for owner in fusible):
        return cases["fuse"].format(listed(owner.optimizer for owner in fusible)), (("fused",),)
    if are_most(owner.calls for owner in by if owner.zero_grad):
        return cases["zero-grad"], ()
    if are_most([graphs]):
        return cases["inside-graphs"], ()
    if len(graphs):
        return cases["outside-graphs"], (("graph",),)
    if features.compiled:
        return cases["compiled"], (("graph",),)
    fuse = f" Pass fused=True to {listed(owner.optimizer for owner in fusible)}." if fusible else ""
    return cases["compile"] + fuse, None if fusible else (("graph",),)


RULE = Rule(
    id="dispatch",
    check=on_claimed("dispatch", _draft),
    effort="line",
    fixes=(("graph",), ("fused",)),
)
