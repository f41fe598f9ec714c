"""Tests of which rank waits for which, compared with a count of every nanosecond."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.analysis.collectives import CommKind
from overlapscope.base.intervals import union
from overlapscope.ranks.clocks import Offsets, find_offsets
from overlapscope.ranks.collectives import Meetings, gather, match
from overlapscope.ranks.pairs import message_waits, pair
from overlapscope.ranks.reduced import ReducedRank
from overlapscope.ranks.summary import steps_met
from overlapscope.ranks.waits import MAX_LAST_TOGETHER, RankWaits, find_waits
from tests.support.ranks_schedules import CommKernel, ScheduledJob, jobs, made_rank

ALL_REDUCE = CommKind("allreduce", "0", "[0, 1, 2]", 3)


def clocks(offsets: Sequence[int], errors: Sequence[int]) -> Offsets:
    offset, error = np.array(offsets, np.int64), np.array(errors, np.int64)
    none = np.zeros(0, np.int64)
    return Offsets(offset, error, np.where(error >= 0, 0, -1), none, none, none > 0, none > 0, (), True)


def waits_of(
    ranks: Sequence[ReducedRank], offsets: Offsets, within: int = 0, opening: Callable[[int], bool] = lambda _: False
) -> tuple[Meetings, RankWaits]:
    met = match(gather(ranks), len(ranks)).symmetric()
    offsets = replace(
        offsets,
        lead_ns=offsets.offset_ns[met.rank],
        odd=np.zeros(len(met), np.bool_),
        opening=np.array([opening(number) for number in range(len(met))], np.bool_),
        within_ns=np.full(len(met), within),
    )
    return met, find_waits(ranks, met, offsets, message_waits(ranks, pair(ranks), offsets))


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[ReducedRank], Offsets]:
    """Ranks of a job with parts of their communication hidden, lead-ins, and clocks that are wrong by a little or
    believed to be.
    """
    job: ScheduledJob = draw(jobs(offsets=st.integers(-300, 300)))
    errors = [0, *(draw(st.sampled_from([0, 0, 0, -1])) for _ in range(job.ranks - 1))]
    ranks = []
    for rank in job.reduced(wide=10):
        bounds = sorted(draw(st.lists(st.integers(rank.end_ns - rank.span_ns, rank.end_ns), max_size=8)))
        begin = rank.end_ns - rank.span_ns
        ranks.append(
            replace(
                rank,
                exposed_comm=union(bounds[0::2][: len(bounds) // 2], bounds[1::2]),
                judged_from_ns=begin + draw(st.sampled_from([0, 0, 0, 40])),
            )
        )
    off = [draw(st.sampled_from([0, 0, -30, 30])) for _ in range(job.ranks)]
    return ranks, clocks([true + wrong for true, wrong in zip(job.offsets, off, strict=True)], errors)


Entry = tuple[int, int, int, tuple[str, str]]
"""Rank, start, end and group of a kernel."""


class Account:
    """Compute the same slowly: every nanosecond of each rank, by its own clock."""

    def __init__(
        self,
        ranks: Sequence[ReducedRank],
        met: Meetings,
        offsets: Offsets,
        within: int,
        opening: Callable[[int], bool],
    ) -> None:
        self.within = within
        kernels = met.kernels
        self.exposed = [
            {ns for a, b in zip(*map(np.ndarray.tolist, rank.exposed_comm), strict=True) for ns in range(a, b)}
            for rank in ranks
        ]
        self.waited: defaultdict[int, set[int]] = defaultdict(set)
        self.pairs: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        self.own_delay: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        self.sure: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        self.may_have_waited: defaultdict[int, set[int]] = defaultdict(set)
        self.most: defaultdict[int, int] = defaultdict(int)
        self.last_in: defaultdict[int, set[int]] = defaultdict(set)
        self.judged: defaultdict[int, int] = defaultdict(int)
        self.unjudged = {
            place: {ns for ns in self.exposed[place] if rank.judged_from_ns <= ns <= rank.end_ns}
            for place, rank in enumerate(ranks)
        }
        judged: list[list[Entry]] = []
        first: list[bool] = []
        self.met: list[Entry] = []
        for number in range(len(met)):
            rows = met.row[met.first[number] : met.first[number + 1]].tolist()
            group = (kernels.kinds[kernels.kind[rows[0]]].group, kernels.kinds[kernels.kind[rows[0]]].ranks)
            members = [
                (int(kernels.rank[row]), int(kernels.start_ns[row]), int(kernels.end_ns[row]), group) for row in rows
            ]
            self.met += members
            if all(
                start >= ranks[rank].judged_from_ns and offsets.error_ns[rank] >= 0 for rank, start, _, _ in members
            ):
                judged.append(members)
                first.append(opening(number))
        arrived = [{rank: start - int(offsets.offset_ns[rank]) for rank, start, _, _ in finding} for finding in judged]
        for place, exposed in enumerate(self.exposed):
            self.may_have_waited[place] = exposed - {
                ns for members in judged for rank, start, end, _ in members if rank == place for ns in range(start, end)
            }
        for members, arrival in zip(judged, arrived, strict=True):
            last = max(arrival.values())
            for rank, start, end, _ in members:
                self.judged[rank] += 1
                self.unjudged[rank] -= set(range(start, end))
                self.waited[rank] |= set(range(start, start + min(last - arrival[rank], end - start)))
                self.may_have_waited[rank] |= self._at_most(start, end, last - arrival[rank])
        for number, (members, arrival) in enumerate(zip(judged, arrived, strict=True)):
            self._charge(number, members, arrival, first=first[number])
            for rank, _, _, _ in members:
                if first[number] or max(arrival.values()) - arrival[rank] <= within:
                    self.most[rank] += sum(
                        len(self._at_most(start, end, max(arrival.values()) - arrival[other]) & self.exposed[other])
                        for other, start, end, _ in members
                        if other != rank
                    )

    def _at_most(self, start: int, end: int, waited: int) -> set[int]:
        return set(range(start, start + min(waited + self.within, end - start)))

    def _charge(
        self,
        number: int,
        members: list[Entry],
        arrival: dict[int, int],
        *,
        first: bool,
    ) -> None:
        order = sorted(arrival, key=lambda rank: (arrival[rank], rank))
        latest = order[-1]
        late = [rank for rank in order if arrival[latest] - arrival[rank] <= self.within]
        if len(late) == len(order) or len(late) > MAX_LAST_TOGETHER:
            return
        for rank, start, end, group in members:
            wait = min(arrival[latest] - arrival[rank], end - start)
            if rank in late or not wait:
                continue
            for place, charged in enumerate(late):
                begin, stop = start + wait * place // len(late), start + wait * (place + 1) // len(late)
                at = next(at for rank, at, _, _ in members if rank == charged)
                held = self._held(self.waited, charged, group, at)
                most = self._held(self.may_have_waited, charged, group, at) + self.within
                self.pairs[charged, rank] |= set(range(begin, stop))
                self.own_delay[charged, rank] |= set(range(begin, stop - min(held, stop - begin)))
                self.sure[charged, rank] |= set() if first else set(range(begin, stop - min(most, stop - begin)))
                self.last_in[charged].add(number)

    def _held(self, waited: dict[int, set[int]], rank: int, group: tuple[str, str], at: int) -> int:
        before = [
            (start, end) for member, start, end, mine in self.met if member == rank and mine == group and start < at
        ]
        since = max(before)[1] if before else -(10**12)
        return len({ns for ns in waited[rank] & self.exposed[rank] if since <= ns < at})


@given(situations(), st.sampled_from([0, 3, 10, 1000]), st.integers(1, 4))
def test_every_figure_is_that_of_an_account_by_the_nanosecond(
    situation: tuple[list[ReducedRank], Offsets], within: int, every: int
) -> None:
    def opening(number: int) -> bool:
        return number % every == 1

    ranks, offsets = situation
    met, waits = waits_of(ranks, offsets, within, opening)
    account = Account(ranks, met, offsets, within, opening)
    everyone = range(len(ranks))
    assert waits.by_rank.judged.tolist() == [account.judged[rank] for rank in everyone]
    assert waits.by_rank.waited_ns.tolist() == [len(account.waited[rank]) for rank in everyone]
    assert waits.by_rank.exposed_ns.tolist() == [len(account.waited[rank] & account.exposed[rank]) for rank in everyone]
    assert waits.by_rank.unjudged_ns.tolist() == [len(account.unjudged[rank]) for rank in everyone]
    assert waits.by_rank.last_in.tolist() == [len(account.last_in[rank]) for rank in everyone]
    assert waits.by_rank.max_made_wait_ns.tolist() == [account.most[rank] for rank in everyone]
    pairs = waits.pairs
    figures = {
        (late, waiting): each
        for late, waiting, *each in zip(
            pairs.late.tolist(),
            pairs.waiting.tolist(),
            pairs.waited_ns.tolist(),
            pairs.exposed_ns.tolist(),
            pairs.passed_on_ns.tolist(),
            pairs.sure_ns.tolist(),
            strict=True,
        )
    }
    assert figures == {
        (late, waiting): [
            len(mine),
            len(mine & account.exposed[waiting]),
            len(mine & account.exposed[waiting]) - len(account.own_delay[late, waiting] & account.exposed[waiting]),
            len(account.sure[late, waiting] & account.exposed[waiting]),
        ]
        for (late, waiting), mine in account.pairs.items()
    }


@given(jobs())
def test_with_one_clock_waits_are_exactly_what_the_last_arrival_made_of_them(job: ScheduledJob) -> None:
    ranks = job.reduced()
    _, waits = waits_of(ranks, clocks([0] * job.ranks, [0] * job.ranks))
    arrivals = waits.arrivals
    kernels, row = waits.meetings.kernels, waits.meetings.row
    charged_ranks = sorted(
        zip(kernels.rank[row].tolist(), kernels.start_ns[row].tolist(), arrivals.waited_ns.tolist(), strict=True)
    )
    assert charged_ranks == sorted(
        (rank, begin, max(start for start, _ in met.times.values()) - begin)
        for met in job.met
        for rank, (begin, _) in met.times.items()
    )


def three(arrivals: Sequence[int], within: int) -> RankWaits:
    end = max(arrivals) + 10
    ranks = [made_rank(number, [CommKernel(ALL_REDUCE, at, end, step=0)]) for number, at in enumerate(arrivals)]
    return waits_of(ranks, clocks([0] * len(ranks), [0] * len(ranks)), within)[1]


def made_wait(waits: RankWaits, ranks: int) -> list[int]:
    return [int(waits.pairs.waited_ns[waits.pairs.late == rank].sum()) for rank in range(ranks)]


def test_the_last_alone_is_charged_where_the_clocks_tell_it_from_the_next() -> None:
    assert made_wait(three([0, 90, 100], 0), 3) == [0, 0, 110]
    assert made_wait(three([0, 90, 100], 9), 3) == [0, 0, 110]


def test_those_that_the_clocks_do_not_tell_apart_share_what_the_others_waited() -> None:
    waits = three([0, 90, 101], 11)
    assert made_wait(waits, 3) == [0, 50, 51]
    assert waits.by_rank.last_in.tolist() == [0, 1, 1]
    assert waits.latest.together.tolist() == [2]


def test_only_what_exceeds_the_error_is_sure() -> None:
    waits = three([0, 90, 100], 9)
    assert waits.pairs.exposed_ns.tolist() == [100, 10]
    assert waits.pairs.sure_ns.tolist() == [91, 1]
    assert waits.by_rank.max_made_wait_ns.tolist() == [0, 0, 109 + 19]


def test_nothing_is_sure_of_the_first_meeting_of_a_group() -> None:
    """A clock may have jumped between the start and the end of a kernel. Any member may be why the others waited."""
    ranks = [
        made_rank(number, [CommKernel(ALL_REDUCE, at + begin, at + 110, step=0) for at in (0, 1000)])
        for number, begin in enumerate([0, 90, 100])
    ]
    met = match(gather(ranks), 3).symmetric()
    offsets = find_offsets(met, 3)
    assert offsets.opening.tolist() == [True, False]
    known = replace(offsets, within_ns=np.zeros(2, np.int64))
    pairs = (waits := find_waits(ranks, met, known, message_waits(ranks, pair(ranks), known))).pairs
    assert pairs.late.tolist() == [2, 2] and pairs.exposed_ns.tolist() == [200, 20]
    assert pairs.sure_ns.tolist() == [100, 10]
    assert waits.by_rank.max_made_wait_ns.tolist() == [10, 100, 110 + 110]


def test_a_wait_before_the_rank_last_met_its_group_is_not_passed_on_even_if_that_kernel_has_no_counterpart() -> None:
    """Rank 1 recorded a step more, in which it waited 1 us. In the next one it comes 800 ns late by itself."""
    for recorded, sure in ((True, 800), (False, 0)):
        kind = CommKind("allreduce", "0", "[0, 1]", 2, recorded=recorded)
        ranks = [
            made_rank(0, [CommKernel(kind, 1200, 2010, step=1)]),
            made_rank(1, [CommKernel(kind, 0, 1000, step=0), CommKernel(kind, 2000, 2010, step=1)]),
        ]
        _, waits = waits_of(ranks, clocks([0, 0], [0, 0]))
        assert waits.pairs.late.tolist() == [1]
        assert waits.pairs.sure_ns.tolist() == [sure]


def test_nobody_is_charged_where_the_clocks_tell_nobody_apart() -> None:
    waits = three([0, 90, 100], 100)
    assert made_wait(waits, 3) == [0, 0, 0]
    assert waits.by_rank.waited_ns.tolist() == [100, 10, 0]
    assert not waits.by_rank.last_in.any()
    assert waits.latest.together.tolist() == [0]


def test_what_a_rank_had_itself_waited_for_is_reported_as_passed_on() -> None:
    """Rank 2 keeps rank 1 waiting 100 ns in their group; so rank 1 comes 100 ns late to rank 0."""
    pair, cross = CommKind("allreduce", "pair", "[1, 2]", 2), CommKind("allreduce", "cross", "[0, 1]", 2)
    ranks = [
        made_rank(0, [CommKernel(cross, 10, 140, step=0)]),
        made_rank(1, [CommKernel(pair, 5, 110, step=0), CommKernel(cross, 120, 140, step=0)]),
        made_rank(2, [CommKernel(pair, 105, 110, step=0)]),
    ]
    _, waits = waits_of(ranks, clocks([0, 0, 0], [0, 0, 0]))
    pairs = waits.pairs
    assert list(zip(pairs.late.tolist(), pairs.waiting.tolist(), strict=True)) == [(1, 0), (2, 1)]
    assert pairs.waited_ns.tolist() == [110, 100]
    assert pairs.passed_on_ns.tolist() == [100, 0]


def test_a_rank_comes_last_in_no_more_meetings_than_are_counted() -> None:
    """Its own step begins between its arrival and the end of the other's wait."""
    kind = CommKind("allreduce", "0", "[0, 1]", 2)
    ranks = [
        made_rank(0, [CommKernel(kind, 0, 100)], window=(0, 300), steps=[("ProfilerStep#1", 300)]),
        made_rank(
            1, [CommKernel(kind, 90, 100)], window=(0, 300), steps=[("ProfilerStep#0", 95), ("ProfilerStep#1", 205)]
        ),
    ]
    by_rank = waits_of(ranks, clocks([0, 0], [0, 0]))[1].by_rank
    assert by_rank.last_in.tolist() == [0, 1]
    assert by_rank.judged.tolist() == [1, 1]


def test_waits_of_ranks_that_recorded_different_steps_are_of_a_step_in_which_they_met() -> None:
    kind = CommKind("allreduce", "0", "[0, 1, 2, 3]", 4)
    ranks = [
        made_rank(rank, [CommKernel(kind, at + 10 * (rank % 2), at + 50, step=first + at // 100) for at in (0, 100)])
        for rank, first in enumerate((0, 0, 2, 2))
    ]
    assert steps_met(waits_of(ranks, clocks([0] * 4, [0] * 4))[1]) == 2
