"""Results on waiting: the ranks that made others wait, and in which meetings."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median_low

import numpy as np

from overlapscope.analysis.figures import Window
from overlapscope.base.columns import mask_of
from overlapscope.base.grouping import distinct
from overlapscope.base.intervals import I64
from overlapscope.ranks.reduced import CommKind, ComparedRank
from overlapscope.ranks.result import LateIn, Meeting, Straggler, Waiting
from overlapscope.ranks.waits import RankWaits, sum_by

STRAGGLERS = 20
MEETINGS = 20
WAITING = 8
COLLECTIVES = 5
WORST = 3


def find_stragglers(ranks: Sequence[ComparedRank], waits: RankWaits) -> tuple[Straggler, ...]:
    """Return the ranks that others waited for, the surest cost first, without passed-on time.

    All ranks must have a number.
    """
    pairs, count, made_wait = waits.pairs, len(ranks), waits.by_rank.made_wait_ns
    sure, own = (sum_by(pairs.late, each, count) for each in (pairs.sure_ns, pairs.exposed_ns - pairs.passed_on_ns))
    order = np.lexsort((np.arange(count), -made_wait, -own, -sure))
    late = [place for place in order.tolist() if made_wait[place]][:STRAGGLERS]
    if not late:
        return ()
    steps, median_ns = steps_met(waits), _median_ns(ranks, waits)
    others = _others(waits, late)
    return tuple(
        _straggler(ranks, waits, place, others=others[place], steps=steps, median_ns=median_ns) for place in late
    )


def unseen_pct(ranks: Sequence[ComparedRank], waits: RankWaits, stragglers: Sequence[Straggler]) -> float | None:
    """Return by how much a rank that isn't clearly a straggler may delay the others, as `Straggler.lost_pct`."""
    named = {(late.rank, late.device) for late in stragglers if late.clear}
    places = [place for place, rank in enumerate(ranks) if (rank.rank, rank.device) not in named]
    met = [place for place in places if waits.by_rank.judged[place]]
    median_ns, others = _median_ns(ranks, waits) if met else 0, _others(waits, met)
    if not median_ns:
        return None
    return max(100 * int(waits.by_rank.most_ns[place]) / others[place] / median_ns for place in met)


def _median_ns(ranks: Sequence[ComparedRank], waits: RankWaits) -> int:
    """Return the median rank's time that delays are compared with: its steps, or else the time after its lead-in.

    The steps in which a clock jumped have no known lengths.
    """
    steps, average = steps_met(waits), [rank.step_ns for rank in ranks if rank.step_ns is not None]
    if steps and average and not waits.torn:
        return steps * median_low(average)
    return int(median_low(np.maximum(waits.steps.end_ns - waits.steps.begin_ns, 0).tolist()))


def worst_meetings(ranks: Sequence[ComparedRank], waits: RankWaits) -> tuple[Meeting, ...]:
    """Return the meetings with the longest waits."""
    return tuple(_meeting(ranks, waits, number) for number in _costliest(waits, None)[:MEETINGS])


def _straggler(
    ranks: Sequence[ComparedRank], waits: RankWaits, place: int, *, others: int, steps: int, median_ns: int
) -> Straggler:
    rank, pairs = ranks[place], waits.pairs.take(waits.pairs.late == place)
    exposed, passed = int(pairs.exposed_ns.sum()), int(pairs.passed_on_ns.sum())
    lost = (exposed - passed) // others
    late_in = _costliest(waits, place)
    return Straggler(
        rank=_number(rank),
        source=rank.source,
        device=rank.device,
        made_wait_ns=int(pairs.waited_ns.sum()),
        made_wait_exposed_ns=exposed,
        passed_on_ns=passed,
        last_in=int(waits.by_rank.last_in[place]),
        meetings=int(waits.by_rank.judged[place]),
        others=others,
        lost_ns=lost,
        lost_pct=100 * lost / median_ns if median_ns else None,
        lost_per_step_ns=lost // steps if steps else None,
        sure_pct=100 * int(pairs.sure_ns.sum()) / others / median_ns if median_ns else None,
        waiting=_longest(ranks, pairs.waiting, pairs.waited_ns, pairs.exposed_ns),
        waiting_ranks=len(pairs),
        collectives=_collectives(waits, late_in),
        worst=tuple(_meeting(ranks, waits, number) for number in late_in[:WORST]),
    )


def _number(rank: ComparedRank) -> int:
    assert rank.rank is not None
    return rank.rank


def steps_met(waits: RankWaits) -> int:
    """Return the number of steps that waits are of: those that all ranks judge, or else those in which ranks met."""
    if waits.steps.names:
        return len(waits.steps.names)
    meetings = waits.meetings
    steps = distinct(meetings.kernels.step[meetings.row])
    return int((steps >= 0).sum())


def _others(waits: RankWaits, places: Sequence[int]) -> dict[int, int]:
    """Return the number of ranks that each place met."""
    meeting, rank = waits.arrivals.meeting, waits.arrivals.rank
    result = {}
    for place in places:
        met = mask_of(meeting[rank == place], len(waits.meetings))
        result[place] = len(distinct(rank[met[meeting]])) - 1
    return result


def _costliest(waits: RankWaits, place: int | None) -> list[int]:
    """Return the numbers of the meetings with waits that count, the costliest first.

    With a place, only meetings in which that rank arrived last.
    """
    arrivals, latest, count = waits.arrivals, waits.latest, len(waits.meetings)
    waited = sum_by(arrivals.meeting, arrivals.waited_ns, count)
    exposed = sum_by(arrivals.meeting, arrivals.exposed_ns, count)
    who = arrivals.rank[latest.row]
    counted = (waited > 0) & waits.counted
    which = np.flatnonzero(counted & ((who == place) & (latest.together > 0) if place is not None else True))
    order = np.lexsort((which, -waited[which], -exposed[which]))
    numbers: list[int] = which[order].tolist()
    return numbers


def _longest(ranks: Sequence[ComparedRank], places: I64, waited: I64, exposed: I64) -> tuple[Waiting, ...]:
    """Return the ranks at these places that waited longest."""
    order = np.lexsort((places, -waited, -exposed))[:WAITING]
    return tuple(
        Waiting(rank=_number(ranks[int(places[row])]), waited_ns=int(waited[row]), exposed_ns=int(exposed[row]))
        for row in order.tolist()
    )


def _collectives(waits: RankWaits, numbers: list[int]) -> tuple[LateIn, ...]:
    arrivals, meetings = waits.arrivals, waits.meetings
    waited = sum_by(arrivals.meeting, arrivals.waited_ns, len(meetings))[numbers]
    kind = meetings.kind[numbers]
    late_in = [
        LateIn(
            collective=recorded.collective,
            group=recorded.group,
            group_ranks=recorded.ranks,
            count=int((kind == number).sum()),
            made_wait_ns=int(waited[kind == number].sum()),
        )
        for number in distinct(kind).tolist()
        for recorded in [meetings.kernels.kinds[number]]
    ]
    return tuple(sorted(late_in, key=lambda late: -late.made_wait_ns)[:COLLECTIVES])


def _meeting(ranks: Sequence[ComparedRank], waits: RankWaits, number: int) -> Meeting:
    arrivals, latest, meetings, kernels = waits.arrivals, waits.latest, waits.meetings, waits.meetings.kernels
    entries = np.arange(meetings.first[number], meetings.first[number + 1])
    late = int(meetings.row[latest.row[number]])
    kind: CommKind = kernels.kinds[int(kernels.kind[late])]
    entries = entries[arrivals.waited_ns[entries] > 0]
    waited, exposed = arrivals.waited_ns[entries], arrivals.exposed_ns[entries]
    step, elements = int(kernels.step[late]), int(kernels.elements[late])
    return Meeting(
        collective=kind.collective,
        group=kind.group,
        group_ranks=kind.ranks,
        group_size=kind.group_size if kind.group_size >= 0 else None,
        index=int(kernels.index[late]),
        step=f"ProfilerStep#{step}" if step >= 0 else None,
        elements=elements if elements >= 0 else None,
        late_rank=_number(ranks[int(kernels.rank[late])]),
        together=int(latest.together[number]),
        late_ns=int(latest.spread_ns[number]),
        error_ns=int(latest.error_ns[number]),
        waited_ns=int(waited.sum()),
        waited_exposed_ns=int(exposed.sum()),
        waiting=_longest(ranks, arrivals.rank[entries], waited, exposed),
        waiting_ranks=len(entries),
        window=Window(start_ns=int(kernels.start_ns[late]), end_ns=int(kernels.end_ns[late])),
    )
