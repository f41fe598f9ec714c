"""Joint replay: a single network of all ranks, tied where the ranks meet.

A collective is three kinds of items: the arrival of each member, which has no length; a hub after all arrivals; and
after the hub the finish of each member, which takes the transfer. A broadcast's hub comes after the arrivals of the
members that may be the root. So the engine that replays one rank replays the job.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.collectives import CommKind
from overlapscope.analysis.host_order import EARLIEST_NS, Calls
from overlapscope.analysis.results import PlainStep
from overlapscope.base.columns import Columns, mask_of
from overlapscope.base.grouping import distinct, group_starts
from overlapscope.base.intervals import I64, Bool
from overlapscope.base.words import clean, listed, percent, plural
from overlapscope.plugins.jobs.joint.condense import ItemWork
from overlapscope.plugins.jobs.joint.result import JointChange
from overlapscope.prediction.graph import DeviceItems, Network, OrderReason, Orders, Waits
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.replay import replay
from overlapscope.prediction.steps import mean
from overlapscope.ranks.clocks import Offsets
from overlapscope.ranks.collectives import Meetings
from overlapscope.ranks.comparison import Comparison, clock_words, compare
from overlapscope.ranks.messages import kernel_name
from overlapscope.ranks.reduced import ComparedRank, stated_world_size
from overlapscope.ranks.result import Unreadable

NOT_SHOWN = -2
"""In `RankNetwork.ready`: the recording doesn't show when the input of the collective is ready."""
BY_EVENT = -1
"""In `RankNetwork.ready`: the collective waits for an event after which its input is ready."""


class Unpredictable(Exception):
    """A change whose effect on a job is unknown; the text is the reason, in a sentence."""


class RankNetwork(Struct, frozen=True, eq=False):
    """A rank's network at a stance.

    Each collective is two items in a row: the rank's arrival, and the finish. Work is divided into segments: a segment
    ends with the launch of a collective.
    """

    network: Network
    finish: I64
    """Finish of each collective, an item, in the order of `ComparedRank.comm`; its arrival is the item before it."""
    segment_of_item: I64
    segment_of_call: I64
    closed_by: I64
    """Segment that the launch of each collective ends; -1 where the launch was not recorded."""
    work: ItemWork
    ready: I64
    """Call at which the input of each collective is ready; `BY_EVENT` or `NOT_SHOWN`."""
    ahead_call: I64
    """Call after which each collective could be launched if weights were gathered one layer ahead; -1 for none."""
    ahead_item: I64
    """Item that each of these would wait for."""
    filled_ns: I64
    """Time over which the gradients that each collective reduces become ready; -1 where it is unknown."""
    before_launch_ns: I64
    """Host work of the op that launches each collective, up to the launch."""
    after_launch_ns: I64
    """Host work of that op after the launch."""
    marks: I64
    """Items with which the judged steps begin."""


class RankSummary(Struct, frozen=True, eq=False):
    """A rank, ready to be joined."""

    reduced: ComparedRank
    recorded: RankNetwork
    by_stance: dict[Stance, RankNetwork]
    """Networks of the changed rank in a lucky, usual and unlucky run."""
    lengths_ns: I64
    """Recorded lengths of the judged steps."""
    changed: tuple[JointChange, ...] = ()
    """Interventions on this rank alone."""
    plain: PlainStep | None = None
    """Step without the profiler, if the recorder timed it."""
    lighter: tuple[RankSummary, ...] = ()
    """The rank with ever less host work (`prediction.overhead.lighter_ones`); empty if `plain` is None."""
    lost_speed: tuple[float, float, float] | None = (0.0, 0.0, 0.0)
    """Share of its speed that compute loses beside collectives: lower bound, estimate, upper bound; None if unknown."""


MAX_UNJOINED_PCT = 1.0
"""Maximum share of a step for communication that keeps its recorded length, because it can't be joined."""
_NAME_LIMIT = 80
"""Maximum length of a collective's name in a sentence."""
NO_QUEUE_NS = -(2**50)
"""Gap after the item before it for items that share a lane without waiting for each other, such as hubs."""


class JoinedJob(Struct, frozen=True, eq=False):
    """The ranks of a job, and the collectives at which they meet. Ranks are given by their places."""

    ranks: tuple[RankSummary, ...]
    comparison: Comparison
    met: Meetings
    """Meetings that the ranks are joined at."""
    collective: I64
    """Collective of each entry of `met.row`, by its place on its rank."""
    needed: Bool
    """Mask of the entries of `met.row` that the others wait for."""
    last_ns: I64
    """Last arrival of these at each meeting, by the reference clock."""
    transfer_ns: I64
    """Time to the end of each entry from there, or from its own arrival if that is later; negative if the clocks
    disagree."""

    @property
    def numbers(self) -> list[int]:
        """Number of each rank."""
        return [rank.reduced.rank or 0 for rank in self.ranks]


def gather(summaries: Sequence[RankSummary]) -> JoinedJob:
    """Match the collectives of all ranks."""
    ranks = tuple(sorted(summaries, key=lambda rank: (rank.reduced.rank or 0, rank.reduced.source)))
    comparison = compare([rank.reduced for rank in ranks])
    known = comparison.offsets.error_ns >= 0
    met, others = comparison.symmetric.take(~comparison.offsets.odd), comparison.met
    others = others.take(others.of_kinds(is_broadcast))
    first = np.append(met.first, others.first[1:] + met.first[-1])
    met = replace(met, first=first, row=np.concatenate([met.row, others.row]))
    met = met.take(np.logical_and.reduceat(known[met.rank], met.first[:-1]))
    before = _starts([len(rank.reduced.comm) for rank in ranks])
    needed = waited_for(met, comparison.offsets)
    arrival = met.start_ns - comparison.offsets.offset_ns[met.rank]
    last = np.maximum.reduceat(np.where(needed, arrival, np.iinfo(np.int64).min), met.first[:-1])
    transfer = met.end_ns - met.start_ns - np.maximum(last[met.meeting] - arrival, 0)
    return JoinedJob(ranks, comparison, met, met.row - before[met.rank], needed, last, transfer)


def obstacles(summaries: Sequence[RankSummary | Unreadable]) -> Iterator[str]:
    """Yield the reasons why recordings can't be joined, before anything is matched."""
    for unfit in summaries:
        if isinstance(unfit, Unreadable):
            yield f"{clean(unfit.source)}: {unfit.reason}"
    ranks = [summary.reduced for summary in summaries if isinstance(summary, RankSummary)]
    if nameless := [rank.source for rank in ranks if rank.rank is None]:
        yield f"{clean(nameless[0])} doesn't state its rank, so its place in the job is unknown."
        return
    for number, count in Counter(rank.rank for rank in ranks).items():
        if count > 1:
            yield f"{count} traces are of rank {number}; give one of them."
    present = {rank.rank for rank in ranks}
    missing = [number for number in range(stated_world_size(ranks) or 0) if number not in present]
    if missing and len(ranks) == len(summaries):
        lacking = f"{plural(len(missing), 'rank')} ({listed(missing, 5)})"
        yield f"The traces of {lacking} are missing, and the other ranks wait for these."


def doubts(job: JoinedJob) -> Iterator[str]:
    """Yield the reasons why matched ranks can't be joined."""
    if len(job.ranks) > 1 and not len(job.met):
        yield clock_words(job.comparison).reason
        return
    if lacking := int((job.met.members < job.met.group_size).sum()):
        yield f"In {plural(lacking, 'collective')} the kernels of some ranks are missing, which others waited for."
    yield from _unjoined(job)


def _unjoined(job: JoinedJob) -> Iterator[str]:
    """Yield a reason if much communication isn't joined."""
    kernels = job.met.kernels
    others = ~mask_of(job.met.row, len(kernels)) & ~kernels.of_kinds(lambda kind: kind.group_size == 1)
    for place, rank in enumerate(job.ranks):
        # The judged steps in the rank's own replay.
        begin = int(rank.recorded.network.items.start_ns[rank.recorded.marks[0]])
        end = begin + int(rank.lengths_ns.sum())
        within = (kernels.start_ns >= begin) & (kernels.start_ns < end)
        rows = np.flatnonzero(others & (kernels.rank == place) & within)
        pct = 100 * float((kernels.end_ns - kernels.start_ns)[rows].sum()) / max(1, end - begin)
        if pct > MAX_UNJOINED_PCT:
            names = Counter(kernels.kinds[kind].collective for kind in kernels.kind[rows].tolist())
            named = listed([f"{count:,} {clean(name, _NAME_LIMIT)}" for name, count in names.most_common(3)])
            yield (
                f"On rank {rank.reduced.rank}, communication for {percent(pct)} of the time has no known counterparts "
                f"or does not wait for all members ({named}), so it is unknown how long it would take."
            )
            return


class Ties(Columns, frozen=True):
    """Ties between ranks: a row for each member of each meeting, meeting after meeting."""

    meeting: I64
    rank: I64
    finish: I64
    """Finish of its collective, an item of the rank's network; its arrival is the item before it."""
    transfer_ns: I64
    """Time from the last arrival to its end; negative if the clocks disagree."""
    last_ns: I64
    """Recorded last arrival at the meeting, or any times with the same order."""
    needed: Bool
    """True for members that the others wait for."""


def ties(job: JoinedJob, parts: Sequence[RankNetwork], transfer_ns: I64) -> Ties:
    """Return the ties of the recorded meetings, with some transfers."""
    finish = entry_values(job, [part.finish for part in parts])
    return Ties(job.met.meeting, job.met.rank, finish, transfer_ns, job.last_ns[job.met.meeting], job.needed)


def entry_values(job: JoinedJob, of_collectives: Sequence[I64]) -> I64:
    """Return the value of each entry of `met.row`, given those of each rank's collectives."""
    before = _starts([len(each) for each in of_collectives])
    values: I64 = np.concatenate(of_collectives)[before[job.met.rank] + job.collective]
    return values


def join(job: JoinedJob, parts: Sequence[RankNetwork], tied: Ties) -> tuple[Network, I64, I64, I64]:
    """Tie the networks of all ranks together.

    Returns:
        The network; the first item of each rank, and the number of all ranks' items, whom hubs follow; the item of each
        tie's arrival, and that of its meeting.
    """
    networks = [part.network for part in parts]
    item = _starts([len(network.items) for network in networks])
    call = _starts([len(network.calls) for network in networks])
    lane = _starts([int(network.items.lane.max(initial=-1)) + 1 for network in networks])
    thread = _starts([int(network.calls.thread.max(initial=-1)) + 1 for network in networks])
    ahead_ns = job.comparison.offsets.offset_ns
    networks = list(map(_beside_others, networks, item, call, lane, thread, ahead_ns))
    finish = tied.finish + item[tied.rank]
    # Hubs share a lane in the order in which they happen.
    first = group_starts(tied.meeting)
    order = np.argsort(tied.last_ns[first], kind="stable")
    number = np.empty(len(first), np.int64)
    number[order] = item[-1] + np.arange(len(first))
    hub = np.repeat(number, np.diff(np.append(first, len(finish))))
    at = tied.last_ns[first][order]
    hubs = DeviceItems.of(lane=int(lane[-1]), duration_ns=0, queue_lag_ns=NO_QUEUE_NS, start_ns=at, end_ns=at)
    items = DeviceItems.joined([*(network.items for network in networks), hubs]).copied("duration_ns")
    items.duration_ns[finish] = np.maximum(tied.transfer_ns, 0)
    tying = (
        Orders.of(finish[tied.needed] - 1, hub[tied.needed], 0, OrderReason.EVENT),
        replace(Orders.of(hub, finish, 0, OrderReason.EVENT), lag_ns=np.minimum(tied.transfer_ns, 0)),
    )
    orders = Orders.joined([*(network.orders for network in networks), *tying])
    calls = Calls.joined([network.calls for network in networks])
    waits = Waits.joined([network.waits for network in networks])
    return Network(items, calls, orders, waits, networks[0].constants), item, finish - 1, hub


def _beside_others(network: Network, item: int, call: int, lane: int, thread: int, ahead_ns: int) -> Network:
    """Return a rank's network with its first numbers in the job's, and times by the reference clock."""
    items, calls, orders, waits = network.items, network.calls, network.orders, network.waits

    def times(table: DeviceItems | Calls) -> dict[str, I64]:
        release = np.where(table.release_ns > EARLIEST_NS, table.release_ns - ahead_ns, table.release_ns)
        return {"release_ns": release, "start_ns": table.start_ns - ahead_ns, "end_ns": table.end_ns - ahead_ns}

    by_call, handed_by = (np.where(rows >= 0, rows + call, -1) for rows in (items.call, calls.handed_by))
    return Network(
        replace(items, call=by_call, lane=items.lane + lane, **times(items)),
        replace(calls, thread=calls.thread + thread, handed_by=handed_by, **times(calls)),
        replace(orders, first=orders.first + item, then=orders.then + item),
        replace(waits, call=waits.call + call, item=waits.item + item),
        network.constants,
    )


def _starts(sizes: Sequence[int]) -> I64:
    return np.append(0, np.cumsum(sizes)).astype(np.int64)


class JobReplay(Struct, frozen=True, eq=False):
    """Times of all ranks in a joint replay."""

    job: JoinedJob
    finish: tuple[I64, ...]
    """Finishes of each rank's collectives, joined or not; divided collectives have several."""
    start_ns: tuple[I64, ...]
    """Start of each rank's items, by the reference clock."""
    end_ns: tuple[I64, ...]
    lengths_ns: tuple[I64, ...]
    """Lengths of the judged steps of each rank."""
    waited_ns: tuple[int, ...]
    """Mean time that each rank waits for others in a step."""

    @property
    def steps_ns(self) -> tuple[int, ...]:
        """Mean step of each rank."""
        return tuple(map(mean, self.lengths_ns))

    @property
    def step_ns(self) -> int:
        """The job's step: the mean of all ranks' steps."""
        return mean(np.array(self.steps_ns))


def replay_job(job: JoinedJob, parts: Sequence[RankNetwork], tied: Ties) -> JobReplay:
    """Replay the job.

    Returns:
        The times of its ranks.

    Raises:
        Deadlock: Ranks wait for each other in a circle.
    """
    network, first_item, arrival, hub = join(job, parts, tied)
    replayed = replay(network)
    arrived = replayed.end_ns[arrival]
    waited = np.maximum(replayed.end_ns[hub] - arrived, 0)
    starts, ends = (np.split(values, first_item[1:])[:-1] for values in (replayed.start_ns, replayed.end_ns))
    finishes, lengths, waits = [], [], []
    for place, part in enumerate(parts):
        marks, of_rank = starts[place][part.marks], tied.rank == place
        if len(marks) < 2:
            marks = np.append(marks, ends[place].max())
        within = of_rank & (arrived >= marks[0]) & (arrived < marks[-1])
        finishes.append(distinct(np.append(part.finish, tied.finish[of_rank])))
        lengths.append(np.diff(marks))
        waits.append(int(waited[within].sum()) // (len(marks) - 1))
    return JobReplay(job, tuple(finishes), tuple(starts), tuple(ends), tuple(lengths), tuple(waits))


_BROADCAST = re.compile(r"broadcast", re.IGNORECASE)


def is_broadcast(kind: CommKind) -> bool:
    """Return whether a single member sends the same to all others."""
    return _BROADCAST.search(kernel_name(kind)) is not None


def waited_for(met: Meetings, offsets: Offsets) -> Bool:
    """Return a mask of the entries of `Meetings.row` that the others wait for, as far as the recording shows."""
    offset, error = offsets.offset_ns[met.rank], offsets.error_ns[met.rank]
    first_end = np.minimum.reduceat(met.end_ns - offset + error, met.first[:-1])
    late = met.start_ns - offset - error > first_end[met.meeting]
    needed: Bool = ~(met.of_kinds(is_broadcast)[met.meeting] & late)
    return needed
