"""Rules: compute streams that run one after the other, and streams without work."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from overlapscope.analysis.event_waits import HANDOVER_NS
from overlapscope.analysis.figures import Window
from overlapscope.base.columns import pick
from overlapscope.base.grouping import among, distinct
from overlapscope.base.intervals import I64, covered, cut, total
from overlapscope.base.words import listed, plural, share
from overlapscope.rules._claims import Claims, streams_of
from overlapscope.rules.rule import Draft, Rule
from overlapscope.trace.model import Kind, Sync

# -- streams-without-overlap -------------------------------------------------------------------------

SUBSTANTIAL = 0.1
"""Minimum share of all compute for a stream to count."""

CONCURRENT = 0.1
"""Minimum share of the possible gain at which streams count as running side by side."""

MAX_STRETCH = 2.0
"""Maximum factor by which running beside another kernel stretches a kernel. Larger differences mean other work."""

_EVENT, _QUEUED, _LATE = range(3)
_IN_TURN = {
    _QUEUED: (
        "each kernel fills the {gpu}",
        "Kernels of both were queued at the same time and still ran one after the other, beside each other only as one "
        "began while the other ended: each fills the {gpu}, so a second stream has nothing to run on.",
        "full",
    ),
    _LATE: (
        "the host launches them in turn",
        "Each stream's work was launched only when the other's had ended, so nothing could run side by side.",
        "launched-late",
    ),
}
"""Title, evidence and case where no event orders the streams, so that nothing could be gained from events."""


@Rule("streams-without-overlap").checking
def _streams_without_overlap(claims: Claims) -> Iterator[Draft]:
    use = streams_of(claims.device.timeline, Kind.COMPUTE, claims.windows)
    lengths = {stream: total(ran) for stream, ran in use.items()}
    busy = {s: n for s, n in lengths.items() if n >= SUBSTANTIAL * claims.buckets.compute_ns and claims.matters(n)}
    if len(busy) < 2:
        return
    ops = claims.device.timeline.ops
    rows = claims.ran(np.flatnonzero((ops.kind == Kind.COMPUTE) & among(ops.stream, list(busy))))
    bound_ns = claims.buckets.compute_ns - max(busy.values())
    if _gain(claims, rows) >= CONCURRENT * bound_ns or not claims.matters(bound_ns):
        return
    weights, example = _reasons(claims, rows)
    if not weights.any():
        return
    reason, streams = int(np.argmax(weights)), plural(len(busy), "compute stream")
    seen = (
        f"Streams {listed(sorted(busy))} computed for {listed([claims.time(busy[s]) for s in sorted(busy)])}, together "
        f"{claims.time_a_step(claims.buckets.compute_ns)}, as long as one after the other. "
    )
    if reason == _EVENT:
        yield Draft(
            title=f"Event waits make {streams} take turns, for up to {claims.time_a_step(bound_ns)} "
            f"({share(bound_ns, claims.judged_ns)})",
            detail=f"{seen}Where the work passes from one stream to another, an event wait orders it. The "
            "cost is the saving if everything ran beside the longest stream. That needs work that does not "
            f"depend on the other stream's results, and kernels that leave room on the {claims.gpu}.",
            case="event-waits",
            bound_ns=bound_ns,
            example=example,
        )
        return
    title, why, case = map(claims.filled, _IN_TURN[reason])
    yield Draft(
        severity="info",
        title=f"{streams} run one after the other: {title}",
        detail=seen + why,
        case=case,
        example=example,
    )


def _gain(claims: Claims, rows: I64) -> int:
    """Return the time saved by running side by side: the kernels' separate times, minus the time they took.

    A kernel that shares the GPU takes longer. If a kernel's durations differ by no more than sharing can explain, the
    shortest one counts as its time alone.
    """
    ops = claims.device.timeline.ops
    length = ops.end_ns[rows] - ops.start_ns[rows]
    _, group = np.unique(ops.name_id[rows], return_inverse=True)
    shortest = np.full(int(group.max()) + 1, np.iinfo(np.int64).max)
    longest = np.zeros(len(shortest), np.int64)
    np.minimum.at(shortest, group, length)
    np.maximum.at(longest, group, length)
    alike = (longest <= MAX_STRETCH * shortest)[group]
    row, start, end = cut(ops.start_ns[rows], ops.end_ns[rows], claims.windows)
    alone = np.where(alike[row], np.minimum(shortest[group][row], end - start), end - start)
    reach = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, end))[:-1]
    covered_ns = int(np.maximum(end - np.maximum(start, reach), 0).sum())
    return int(alone.sum()) - covered_ns


def _reasons(claims: Claims, rows: I64) -> tuple[I64, Window | None]:
    """Return the time of ops that began on another stream than the previous op, by reason, and the longest case."""
    ops, calls, edges = claims.device.timeline.ops, claims.trace.runtime_calls, claims.device.edges
    before, after = rows[:-1], rows[1:]
    changes = ops.stream[before] != ops.stream[after]
    before, after = before[changes], after[changes]
    if not len(after):
        return np.zeros(3, np.int64), None
    direct = among(ops.kind[edges.source], (Kind.COMPUTE, Kind.COMM))
    direct &= ops.start_ns[edges.held] - ops.end_ns[edges.source] <= HANDOVER_NS
    held = among(after, edges.held[direct])
    launch = ops.launch[after]
    queued = (launch >= 0) & (pick(calls.end_ns, launch, 0) <= ops.end_ns[before])
    reason = np.where(held, _EVENT, np.where(queued, _QUEUED, _LATE))
    length = ops.end_ns[after] - ops.start_ns[after]
    weights = np.zeros(3, np.int64)
    np.add.at(weights, reason[launch >= 0], length[launch >= 0])
    decisive = np.flatnonzero(reason == int(np.argmax(weights)))
    worst = decisive[int(np.argmax(length[decisive]))] if len(decisive) else 0
    window = Window(start_ns=int(ops.start_ns[before[worst]]), end_ns=int(ops.end_ns[after[worst]]))
    return weights, window


# -- stream-without-work -----------------------------------------------------------------------------

MIN_BUSY_SHARE = 0.001
"""Share of the span below which a stream hardly runs anything."""

MIN_WAITS = 2
"""Minimum number of waits. A stream that waits only once may just have been set up."""


@Rule("stream-without-work", severity="info", effort="line").checking
def _stream_without_work(claims: Claims) -> Iterator[Draft]:
    ops, syncs, edges = claims.device.timeline.ops, claims.trace.syncs, claims.device.edges
    start, end = claims.device.result.window.start_ns, claims.device.result.window.end_ns
    waits = (syncs.kind == Sync.STREAM_WAIT_EVENT) & (syncs.stream >= 0)
    waits &= (syncs.device < 0) | (syncs.device == claims.device.result.device)
    waits &= syncs.stream != claims.device.result.main_stream
    for stream in distinct(syncs.stream[waits]).tolist():
        on_stream = ops.stream == stream
        work = int(covered(claims.windows, ops.start_ns[on_stream], ops.end_ns[on_stream]).sum())
        times = int((waits & (syncs.stream == stream)).sum())
        if times < MIN_WAITS or work >= MIN_BUSY_SHARE * claims.judged_ns:
            continue
        waited_for = int((ops.stream[edges.source] == stream).sum())
        ran = int((on_stream & (ops.end_ns > start) & (ops.start_ns < end)).sum())
        backward = any("autograd::engine::evaluate_function" in op for op in claims.trace.names)
        hint = (
            " The recording has a backward pass: autograd runs each backward op on the stream its forward op "
            "ran on, so backward() under another stream moves nothing there but the first gradient."
        ) * backward
        yield Draft(
            title=f"Stream {stream} takes part in {plural(times + waited_for, 'event wait')} but ran "
            f"{f'only {claims.time(work)} of' if work else 'no'} work{claims.a_step}",
            detail=f"It waited for others {plural(times, 'time')}"
            + (f" and others waited for its ops {plural(waited_for, 'time')}" if waited_for else "")
            + f", and ran {plural(ran, f'{claims.gpu} op')}. Nothing can overlap with a stream that has no "
            f"work.{hint}",
        )
