"""Other sizes of the buckets of data-parallel training.

Buckets are all-reduces of a process group that follow each other in a step, where nothing on any rank waits for one
before the next is launched, or the only all-reduce of a step, if autograd's thread launches it. A merged bucket starts
when its last part is ready. A part of a divided bucket is ready earlier, in proportion to its bytes. A transfer takes a
latency and the bytes per bandwidth; transfers that ran at once are taken to have shared it, and to run one after
another instead.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.host_order import EARLIEST_NS
from overlapscope.base.columns import mask_of, pick
from overlapscope.base.grouping import distinct
from overlapscope.base.intervals import I64, Bool
from overlapscope.plugins.jobs.joint.changes import latencies
from overlapscope.plugins.jobs.joint.join import JoinedJob, RankNetwork, Ties, Unpredictable, entry_values, ties
from overlapscope.prediction.graph import OrderReason, Orders
from overlapscope.prediction.hardware import Stance
from overlapscope.ranks.waits import sum_by

_BUCKET = re.compile(r"(?:\w+:|.*_)?all_?reduce.*", re.IGNORECASE)


MAX_PIECES = 10_000
"""Maximum number of pieces of a bucket."""


class _BucketRun(Struct, frozen=True, eq=False):
    """Buckets of a process group that follow each other."""

    meetings: I64
    bytes: I64
    step: int
    """Number of the step; -1 if unknown."""


class Bucketed(Struct, frozen=True, eq=False):
    """Ranks with other buckets."""

    parts: list[RankNetwork]
    tied: Ties
    before: int
    """Number of buckets."""
    after: int
    steps: int
    """Number of steps that have them; 0 if unknown."""


def rebucketed(
    job: JoinedJob, parts: Sequence[RankNetwork], transfer_ns: I64, bucket_bytes: float, stance: Stance
) -> Bucketed:
    """Merge and divide buckets until each is as near to a given size as whole buckets allow.

    Returns:
        The ranks with these buckets, and their ties.

    Raises:
        Unpredictable: It is unknown when parts of buckets are ready, or the size is too small for them.
    """
    runs = list(_runs(job, parts))
    before, steps = sum(len(run.meetings) for run in runs), len({run.step for run in runs if run.step >= 0})
    if not runs:
        raise Unpredictable(
            "No two all-reduces of known size follow each other, and no backward pass has a single one, so it is "
            "unknown how buckets are filled."
        )
    count = len(job.met)
    merged_into, pieces, size = _planned(count, runs, bucket_bytes)
    if (merged_into == np.arange(count)).all() and (pieces == 1).all():
        return Bucketed(list(parts), ties(job, parts, transfer_ns), before, before, steps)
    earlier = _time_to_fill(job, parts, runs)
    # The pieces of a merged bucket divide its last part, which is ready evenly.
    of_last = job.met.kernels.bytes[job.met.row]
    earlier = np.rint(earlier * (size[job.met.meeting] / np.maximum(of_last, 1))).astype(np.int64)
    alone_ns = _without_sharing(job, transfer_ns, size > 0)
    latency_ns, ranks, meeting = latencies(job, alone_ns, stance), len(job.ranks), job.met.meeting
    bandwidth_ns = sum_by(merged_into[meeting] * ranks + job.met.rank, alone_ns - latency_ns, count * ranks)
    transfer = latency_ns + bandwidth_ns[meeting * ranks + job.met.rank] // pieces[meeting]
    kept = merged_into == np.arange(count)
    after = sum(int(pieces[run.meetings[kept[run.meetings]]].sum()) for run in runs)
    used_earlier = np.zeros_like(earlier) if stance == Stance.WORST else earlier
    extra_launches = np.where(merged_into == np.arange(count), pieces, 0) - 1
    changed = [
        _changed(job, _with_launches(job, part, place, extra_launches), place, merged_into, pieces, used_earlier)
        for place, part in enumerate(parts)
    ]
    tied = ties(job, changed, transfer)
    most = int(pieces.max())
    entry, piece = _repeated(np.where(kept, pieces, 0)[job.met.meeting])
    pieces_of_bucket = pieces[job.met.meeting][entry]
    tied = tied.take(entry)
    # The last piece has the place of the whole bucket, the others are right before it.
    tied = replace(tied, finish=tied.finish - 2 * (pieces_of_bucket - 1 - piece), meeting=tied.meeting * most + piece)
    order = np.argsort(tied.meeting, kind="stable")
    tied = tied.take(order)
    of_bucket = (size > 0)[tied.meeting // most]
    changed = [
        _one_after_another(part, tied.take(of_bucket & (tied.rank == place)), job.met.kind, most)
        for place, part in enumerate(changed)
    ]
    return Bucketed(changed, tied, before, after, steps)


def _planned(count: int, runs: Sequence[_BucketRun], bucket_bytes: float) -> tuple[I64, I64, I64]:
    """Return for each meeting its merged bucket's last meeting, the bucket's pieces, and its size; -1 for no bucket."""
    merged_into, pieces, size = np.arange(count), np.ones(count, np.int64), np.full(count, -1)
    for run in runs:
        size[run.meetings] = run.bytes
        begin = total = 0
        following = [*run.bytes[1:].tolist(), None]
        for end, (bucket, after) in enumerate(zip(run.bytes.tolist(), following, strict=True), 1):
            total += bucket
            # The next one is merged if the sum is then nearer to the requested size.
            if after is not None and total + after / 2 <= bucket_bytes:
                continue
            if total > MAX_PIECES * bucket_bytes:
                most = f"A bucket would be divided into more than {MAX_PIECES:,} pieces; choose larger buckets."
                raise Unpredictable(most)
            last = run.meetings[end - 1]
            merged_into[run.meetings[begin:end]], size[last] = last, total
            pieces[last] = max(1, round(total / bucket_bytes))
            begin, total = end, 0
    return merged_into, pieces, size


def _one_after_another(part: RankNetwork, buckets: Ties, kind_of: I64, most: int) -> RankNetwork:
    """Let transfers of a kind run one after another, in the order of their meetings."""
    kind = kind_of[buckets.meeting // most]
    order = np.lexsort((buckets.meeting, buckets.last_ns, kind))
    finish, follows = buckets.finish[order], kind[order][1:] == kind[order][:-1]
    turns = Orders.of(finish[:-1][follows], finish[1:][follows], 0, OrderReason.EVENT)
    return replace(part, network=replace(part.network, orders=Orders.joined([part.network.orders, turns])))


def _runs(job: JoinedJob, parts: Sequence[RankNetwork]) -> Iterator[_BucketRun]:
    """Yield the buckets that follow each other, without those of unknown size.

    A single all-reduce that is waited for, as in tensor parallelism, is not a bucket.
    """
    met, kinds = job.met, job.met.kernels.kinds
    least, most = met.extremes(met.kernels.bytes)
    bucket = met.of_kinds(lambda kind: _BUCKET.fullmatch(kind.collective) is not None) & (least > 0) & (least == most)
    closes = entry_values(job, [part.closed_by for part in parts])
    needed = entry_values(job, [_needed_in(part) for part in parts])
    _, step = met.extremes(met.kernels.step)
    of_step = Counter(zip(met.kind[bucket].tolist(), step[bucket].tolist(), strict=True))
    filled = np.minimum.reduceat(entry_values(job, [part.filled_ns for part in parts]), met.first[:-1]) >= 0

    def found(run: Sequence[int]) -> Iterator[_BucketRun]:
        if len(run) > 1 or (run and filled[run[0]] and of_step[met.kind[run[0]], step[run[0]]] == 1):
            yield _BucketRun(np.array(run), least[run], int(step[run[0]]))

    for number in range(len(kinds)):
        rows = np.flatnonzero(bucket & (met.kind == number))
        rows = rows[np.argsort(job.last_ns[rows], kind="stable")]
        run: list[int] = []
        for meeting in rows.tolist():
            if run and (step[run[-1]] != step[meeting] or not _follow(job, run, meeting, needed, closes)):
                yield from found(run)
                run = []
            run.append(meeting)
        yield from found(run)


def _follow(job: JoinedJob, run: Sequence[int], later: int, needed: I64, closes: I64) -> bool:
    """Return whether a bucket is launched on all ranks before anything needs the buckets before it."""
    *before, then = (np.arange(*job.met.first[meeting : meeting + 2]) for meeting in (*run, later))
    if any(len(first) != len(then) or (job.met.rank[first] != job.met.rank[then]).any() for first in before):
        return False
    return all((needed[first] > closes[then]).all() for first in before) and bool((closes[then] >= 0).all())


def _needed_in(part: RankNetwork) -> I64:
    """Return the first segment in which anything but the next collective needs each collective."""
    network, finish = part.network, part.finish
    first = np.full(len(network.items), 2**62)
    np.minimum.at(first, network.orders.first, part.segment_of_item[network.orders.then])
    np.minimum.at(first, network.waits.item, part.segment_of_call[network.waits.call])
    # The next item on the lane, unless that is a collective too.
    following = np.minimum(finish + 1, len(network.items) - 1)
    same = (network.items.lane[following] == network.items.lane[finish]) & (following > finish)
    same &= ~mask_of(part.finish - 1, len(network.items))[following]
    result: I64 = np.minimum(first[finish], np.where(same, part.segment_of_item[following], 2**62))
    return result


def _ready_ns(part: RankNetwork) -> I64:
    """Return when each collective could start, as recorded, if its lane were free."""
    network, arrival = part.network, part.finish - 1
    items, calls = network.items, network.calls
    ready = np.full(len(items), EARLIEST_NS)
    np.maximum.at(ready, network.orders.then, items.end_ns[network.orders.first] + network.orders.lag_ns)
    called_ns = np.where(items.after_call, pick(calls.end_ns, items.call), pick(calls.start_ns, items.call))
    launched = np.where(items.call >= 0, called_ns + items.launch_lag_ns, EARLIEST_NS)
    result: I64 = np.maximum(ready, launched)[arrival]
    return result


def _time_to_fill(job: JoinedJob, parts: Sequence[RankNetwork], runs: Sequence[_BucketRun]) -> I64:
    """Return by how much earlier the bytes of each bucket begin to be ready than all of them, for each member."""
    at = entry_values(job, [_ready_ns(part) for part in parts])
    result = np.zeros(len(job.met.row), np.int64)
    filled_ns, filled_bytes = np.zeros((2, len(parts)), np.int64)
    first: list[tuple[I64, int]] = []
    for run in runs:
        entries = [np.arange(*job.met.first[meeting : meeting + 2]) for meeting in run.meetings.tolist()]
        first.append((entries[0], int(run.bytes[0])))
        for before, members, size in zip(entries, entries[1:], run.bytes[1:].tolist(), strict=False):
            result[members] = np.maximum(at[members] - at[before], 0)
            filled_ns[job.met.rank[members]] += result[members]
            filled_bytes[job.met.rank[members]] += size
    # The first bucket of a step is taken to be filled as fast as the others, if there are others.
    filled = entry_values(job, [part.filled_ns for part in parts])
    for members, size in first:
        rank = job.met.rank[members]
        as_others = size * filled_ns[rank] // np.maximum(filled_bytes[rank], 1)
        result[members] = np.where(filled_bytes[rank] > 0, as_others, np.maximum(filled[members], 0))
    return result


def _without_sharing(job: JoinedJob, transfer_ns: I64, chosen: Bool) -> I64:
    """Return how long the transfers of chosen meetings would take if no other of them ran at once on the rank.

    The recorded transfers show how they shared the network. Those given may be longer or shorter.
    """
    result = transfer_ns.copy()
    for place in range(len(job.ranks)):
        rows = np.flatnonzero((job.met.rank == place) & chosen[job.met.meeting] & (job.transfer_ns > 0))
        start = job.last_ns[job.met.meeting[rows]]
        recorded = job.transfer_ns[rows]
        end = start + recorded
        at = distinct(np.concatenate([start, end]))
        running = np.searchsorted(np.sort(start), at, side="right") - np.searchsorted(np.sort(end), at, side="right")
        progress = np.append(0.0, np.cumsum(np.diff(at) / np.maximum(running[:-1], 1)))
        alone = progress[np.searchsorted(at, end)] - progress[np.searchsorted(at, start)]
        result[rows] = np.rint(alone * transfer_ns[rows] / recorded)
    return result


def _with_launches(job: JoinedJob, part: RankNetwork, place: int, extra: I64) -> RankNetwork:
    """Return a rank whose host launches more or fewer collectives, given the number for each meeting."""
    entries = np.flatnonzero((job.met.rank == place) & (extra[job.met.meeting] != 0))
    collective = job.collective[entries]
    known = part.before_launch_ns[collective] + part.after_launch_ns[collective] > 0
    entries = entries[known & (part.closed_by[collective] >= 0)]
    collective, extra = job.collective[entries], extra[job.met.meeting[entries]]
    network, items, calls = part.network, part.network.items, part.network.calls
    # A segment ends with the launch, whenever an earlier change lets the collective begin.
    caller = np.searchsorted(part.segment_of_call, part.closed_by[collective], side="right") - 1
    before, after = part.before_launch_ns[collective], part.after_launch_ns[collective]
    # A launch that is left out takes its op along; others come after the recorded one.
    at_call, past_call = np.zeros((2, len(calls)), np.int64)
    np.add.at(at_call, caller, np.where(extra < 0, -before, 0))
    length = calls.length_ns[caller]
    np.add.at(past_call, caller, np.where(extra < 0, -after, extra * (before + length + after)))
    gone = mask_of(caller[extra < 0], len(calls))
    previous = calls.previous
    follows = (previous >= 0) & (calls.handed_by < 0)
    work = at_call + np.where(follows, pick(past_call, previous, 0), 0)
    folded = part.work.launched_host_ns > 0
    lag = np.where(folded, np.maximum(pick(past_call, items.call, 0), -part.work.launched_host_ns), 0)
    least = np.minimum(calls.before_ns, 0)
    network = replace(
        network,
        calls=replace(
            calls,
            before_ns=np.maximum(calls.before_ns + work, least),
            length_ns=np.where(gone, 0, calls.length_ns),
        ),
        items=replace(items, launch_lag_ns=items.launch_lag_ns + lag),
    )
    return replace(part, network=network)


def _changed(job: JoinedJob, part: RankNetwork, place: int, merged_into: I64, pieces: I64, earlier: I64) -> RankNetwork:
    """Return a rank with merged and divided buckets."""
    entries = np.flatnonzero(job.met.rank == place)
    meeting, finish = job.met.meeting[entries], part.finish[job.collective[entries]]
    network, items, orders = part.network, part.network.items, part.network.orders
    count, early = np.ones(len(items), np.int64), np.zeros(len(items), np.int64)
    count[finish - 1] = count[finish] = np.where(merged_into[meeting] == meeting, pieces[meeting], 1)
    early[finish - 1] = earlier[entries]
    # Both items of a divided bucket are repeated together.
    source, piece = _repeated(count)
    together = np.where(mask_of(finish, len(items)) & (count > 1), -1, 0)[source] + source
    in_order = np.lexsort((source, piece, together))
    source, piece = source[in_order], piece[in_order]
    first_of, last_of = np.empty((2, len(items)), np.int64)
    last_of[source] = np.arange(len(source))
    first_of[source[::-1]] = np.arange(len(source))[::-1]
    # Anything that needs a merged bucket needs the one that it is part of.
    whole = np.arange(len(items))
    finish_of = np.zeros(len(job.met), np.int64)
    finish_of[meeting] = finish
    whole[finish] = finish_of[merged_into[meeting]]

    def sooner(row: I64, piece: I64) -> I64:
        return early[row] * (count[row] - 1 - piece) // count[row]

    order, of_piece = _repeated(count[orders.then])
    then = orders.then[order]
    items = items.take(source)
    length = items.duration_ns.copy()
    length[last_of[finish[merged_into[meeting] != meeting]]] = 0
    network = replace(
        network,
        items=replace(items, launch_lag_ns=items.launch_lag_ns - sooner(source, piece), duration_ns=length),
        orders=replace(
            orders.take(order),
            first=last_of[whole[orders.first[order]]],
            then=first_of[then] + 2 * of_piece,
            lag_ns=orders.lag_ns[order] - sooner(then, of_piece),
        ),
        waits=replace(network.waits, item=last_of[whole[network.waits.item]]),
    )
    return replace(
        part,
        network=network,
        finish=last_of[part.finish],
        ahead_item=pick(last_of, part.ahead_item),
        marks=first_of[part.marks],
        segment_of_item=part.segment_of_item[source],
        work=part.work.take(source),
    )


def _repeated(count: I64) -> tuple[I64, I64]:
    """Return each row `count` times, and the number of each repetition."""
    row = np.repeat(np.arange(len(count)), count)
    return row, np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
