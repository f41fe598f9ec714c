"""Offsets of the ranks' clocks from matching collectives: within the error, as close as the meetings allow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from overlapscope.analysis.collectives import CommKind
from overlapscope.ranks.clocks import HALVINGS, HOP_NS, LEAD_MEETINGS, TIMESTAMP_ERROR_NS, Offsets, find_offsets
from overlapscope.ranks.collectives import Meetings, gather, match
from overlapscope.ranks.reduced import ReducedRank
from tests.support.ranks_schedules import CommKernel, Met, ScheduledJob, jobs, made_rank

US = 1_000
MS = 1_000_000
far_apart = st.integers(-20 * MS, 20 * MS)
ALL_REDUCE = CommKind("allreduce", "0", "[0, 1]", 2)


def offsets_of(job: ScheduledJob) -> tuple[Meetings, Offsets]:
    ranks = job.reduced()
    meetings = match(gather(ranks), job.ranks).symmetric()
    return meetings, find_offsets(meetings, job.ranks)


def connected(job: ScheduledJob, rank: int) -> set[int]:
    """Ranks that a rank is connected with through collectives."""
    connected = {rank}
    while True:
        more = {time for met in job.met if connected & set(met.times) for time in met.times}
        if more <= connected:
            return connected
        connected |= more


@given(jobs(offsets=far_apart, unit=US))
def test_the_true_offset_lies_within_the_error(job: ScheduledJob) -> None:
    _, offsets = offsets_of(job)
    assert offsets.consistent
    for rank in range(job.ranks):
        if offsets.error_ns[rank] >= 0:
            reference = int(offsets.reference[rank])
            true = job.offsets[rank] - job.offsets[reference]
            assert abs(int(offsets.offset_ns[rank]) - true) <= int(offsets.error_ns[rank])


def meeting(number: int, *members: int, late: int = 0) -> Met:
    """Return an all-reduce of 4 us; `late` is by how much it ended later on its first member."""
    kind = CommKind("allreduce", str(members), str([*members]), len(members), recorded=True)
    times = {rank: (number, 4000 + number + (late if rank == members[0] else 0)) for rank in members}
    return Met(kind, number, 1000 * members[-1], -1, times)


TIED = ScheduledJob(
    4,
    (0, 0, 0, 9_001),
    (
        *(meeting(number, 0, 1) for number in range(5)),
        meeting(5, 0, 1, 2),
        meeting(6, 0, 1, 2, late=1),
        meeting(7, 2, 3),
    ),
)
"""By way of another rank each clock may be the first one's, but not both at once."""


@given(jobs(offsets=far_apart, unit=US))
@example(TIED)
def test_between_members_of_a_meeting_leads_are_no_further_off_than_said(job: ScheduledJob) -> None:
    meetings, offsets = offsets_of(job)
    wrong = offsets.lead_ns - np.array(job.offsets)[meetings.rank]
    for number, within in enumerate(offsets.within_ns.tolist()):
        mine = wrong[meetings.first[number] : meetings.first[number + 1]]
        assert int(mine.max() - mine.min()) <= within


@given(jobs(offsets=far_apart, unit=US))
def test_every_rank_with_a_collective_is_compared_with_the_lowest_it_is_connected_with(job: ScheduledJob) -> None:
    _, offsets = offsets_of(job)
    for rank in range(job.ranks):
        met = any(rank in item.times for item in job.met)
        assert int(offsets.reference[rank]) == (min(connected(job, rank)) if met else -1)
        assert (int(offsets.error_ns[rank]) >= 0) == met


@given(jobs(offsets=far_apart, unit=US))
def test_offsets_are_within_the_tightest_bounds_that_follow(job: ScheduledJob) -> None:
    """Compared with shortest paths through all constraints."""
    meetings, offsets = offsets_of(job)
    far = 1 << 60
    distance = [[0 if i == j else far for j in range(job.ranks)] for i in range(job.ranks)]
    kernels = meetings.kernels
    for number in range(len(meetings)):
        rows = meetings.row[meetings.first[number] : meetings.first[number + 1]].tolist()
        slack = min(int(kernels.end_ns[row] - kernels.start_ns[row]) for row in rows) + TIMESTAMP_ERROR_NS
        kind = kernels.kinds[int(kernels.kind[rows[0]])]
        if kind.collective != "allreduce":
            slack += HOP_NS * min(kind.group_size - 1, 8)
        for a in rows:
            for b in rows:
                # offset_b - offset_a <= end_b - end_a + slack
                i, j = int(kernels.rank[a]), int(kernels.rank[b])
                if i != j:
                    most = int(kernels.end_ns[b]) - int(kernels.end_ns[a]) + slack
                    distance[i][j] = min(distance[i][j], most)
    for k in range(job.ranks):
        for i in range(job.ranks):
            for j in range(job.ranks):
                distance[i][j] = min(distance[i][j], distance[i][k] + distance[k][j])
    for rank in range(job.ranks):
        reference = int(offsets.reference[rank])
        if reference < 0:
            continue
        low, high = -distance[rank][reference], distance[reference][rank]
        estimate = int(offsets.offset_ns[rank])
        assert low <= estimate <= high
        assert int(offsets.error_ns[rank]) <= max(high - estimate, estimate - low)


@given(jobs(unit=100))
def test_nothing_contradicts_clocks_that_are_one(job: ScheduledJob) -> None:
    _, offsets = offsets_of(job)
    if offsets.status != "unknown":
        assert offsets.status == "shared"
        assert (np.abs(offsets.offset_ns) <= np.maximum(offsets.error_ns, 0)).all()


def two_ranks(ahead: int, *, lengths: list[int], drift: int = 0) -> Offsets:
    """Rank 1 comes first to each collective by half a millisecond; each is as long as told once both are there."""
    first, second = [], []
    for number, length in enumerate(lengths):
        at = number * 10 * MS
        first.append(CommKernel(ALL_REDUCE, at, at + length, step=number))
        late = at + ahead + number * drift
        second.append(CommKernel(ALL_REDUCE, late - 500 * US, late + length, step=number))
    ranks = [made_rank(0, first), made_rank(1, second)]
    return find_offsets(match(gather(ranks), 2).symmetric(), 2)


def test_one_short_collective_makes_the_error_small() -> None:
    long = two_ranks(7 * MS, lengths=[3 * MS, 3 * MS])
    short = two_ranks(7 * MS, lengths=[3 * MS, 20 * US])
    assert long.status == short.status == "estimated"
    assert long.offset_ns.tolist() == short.offset_ns.tolist() == [0, 7 * MS]
    assert long.error_ns.tolist() == [0, 3 * MS // 2 + TIMESTAMP_ERROR_NS]
    assert short.error_ns.tolist() == [0, 20 * US + TIMESTAMP_ERROR_NS]


@pytest.mark.parametrize("ahead", [US, 60 * US, 95 * US, 130 * US, -MS, 3_600_000 * MS])
def test_a_difference_of_any_size_is_subtracted(ahead: int) -> None:
    offsets = two_ranks(ahead, lengths=[MS] * 25)
    error = (MS >> HALVINGS) + TIMESTAMP_ERROR_NS
    assert offsets.offset_ns.tolist() == [0, ahead]
    assert offsets.error_ns.tolist() == [0, error]
    assert set(offsets.within_ns.tolist()) == {error}
    assert np.diff(offsets.lead_ns.reshape(-1, 2), axis=1).ravel().tolist() == [ahead] * 25


def test_clocks_are_shared_if_their_offset_is_within_its_error() -> None:
    error = (MS >> HALVINGS) + TIMESTAMP_ERROR_NS
    assert two_ranks(error, lengths=[MS] * 5).status == "shared"
    assert two_ranks(error + 1, lengths=[MS] * 5).status == "estimated"


def test_clocks_that_drift_are_followed() -> None:
    offsets = two_ranks(7 * MS, lengths=[20 * US] * 25, drift=10 * US)
    assert not offsets.consistent and not offsets.torn
    assert int(offsets.error_ns[1]) >= 12 * 10 * US
    true = 7 * MS + 10 * US * np.arange(25)
    wrong = np.abs(np.diff(offsets.lead_ns.reshape(-1, 2), axis=1).ravel() - true)
    assert (wrong <= offsets.within_ns).all()
    assert wrong[LEAD_MEETINGS // 2 : -(LEAD_MEETINGS // 2)].max() == 0 and wrong.max() == LEAD_MEETINGS // 2 * 10 * US


@pytest.mark.parametrize("jump", [-3_600_000 * MS, -200 * US, 60 * US, 40 * MS])
def test_steps_are_torn_in_which_a_clock_jumps(jump: int) -> None:
    ends = [(number, number * 10 * MS + 20 * US) for number in range(20)]
    ranks = [
        made_rank(0, [CommKernel(ALL_REDUCE, end - 20 * US, end, step=number) for number, end in ends]),
        made_rank(
            1,
            [
                CommKernel(ALL_REDUCE, end - 20 * US + by, end + by, step=number)
                for number, end in ends
                for by in [jump if number >= 12 else 0]
            ],
        ),
    ]
    meetings = match(gather(ranks), 2).symmetric()
    offsets = find_offsets(meetings, 2)
    assert offsets.torn == (11, 12)
    leads = np.diff(offsets.lead_ns.reshape(-1, 2), axis=1).ravel()
    steps = meetings.kernels.step[meetings.row[meetings.first[:-1]]]
    assert leads.tolist() == [jump if step >= 12 else 0 for step in steps.tolist()]
    assert offsets.within_ns.max() == (20 * US >> HALVINGS) + TIMESTAMP_ERROR_NS


def test_a_few_kernels_that_end_like_no_other_are_left_out() -> None:
    def rank(number: int, ahead: int, wrong: int) -> ReducedRank:
        ends = [at * 10 * MS + 20 * US + (wrong if at == 7 else 0) for at in range(12)]
        return made_rank(number, [CommKernel(ALL_REDUCE, end - 20 * US + ahead, end + ahead, step=0) for end in ends])

    ranks = [rank(0, 0, 0), rank(1, 3 * MS, 400 * US)]
    offsets = find_offsets(match(gather(ranks), 2).symmetric(), 2)
    assert offsets.consistent
    assert np.flatnonzero(offsets.odd).tolist() == [7]
    assert (int(offsets.offset_ns[1]), int(offsets.error_ns[1])) == (3 * MS, (20 * US >> HALVINGS) + TIMESTAMP_ERROR_NS)


def test_what_goes_round_the_ranks_may_end_later_on_each() -> None:
    def offsets_of(collective: str) -> Offsets:
        kind = CommKind(collective, "0", "[0, 1, 2, 3]", 4)
        ranks = [made_rank(number, [CommKernel(kind, 0, 20 * US + number * HOP_NS, step=0)]) for number in range(4)]
        return find_offsets(match(gather(ranks), 4).symmetric(), 4)

    for collective, hops in (("_allgather_base", 3), ("allreduce", 0)):
        offsets = offsets_of(collective)
        assert offsets.offset_ns.tolist() == [number * HOP_NS for number in range(4)]
        assert offsets.error_ns.tolist() == [0, *[20 * US + TIMESTAMP_ERROR_NS + hops * HOP_NS] * 3]


def test_ranks_that_share_no_group_are_compared_by_way_of_another() -> None:
    left, right = CommKind("allreduce", "1", "[0, 1]", 2), CommKind("allreduce", "2", "[1, 2]", 2)
    ahead = [0, 3 * MS, -9 * MS]
    ranks = [
        made_rank(0, [CommKernel(left, 0, 100 * US, step=0)]),
        made_rank(
            1,
            [
                CommKernel(left, ahead[1], ahead[1] + 100 * US, step=0),
                CommKernel(right, MS + ahead[1], 2 * MS + ahead[1], step=0),
            ],
        ),
        made_rank(2, [CommKernel(right, MS + ahead[2], 2 * MS + ahead[2], step=0)]),
    ]
    offsets = find_offsets(match(gather(ranks), 3).symmetric(), 3)
    assert offsets.offset_ns.tolist() == ahead
    each = [100 * US + TIMESTAMP_ERROR_NS, MS + TIMESTAMP_ERROR_NS]
    assert offsets.error_ns.tolist() == [0, each[0], sum(each)]


def test_nothing_is_known_where_nothing_matches() -> None:
    ranks = [made_rank(0, [CommKernel(ALL_REDUCE, 0, 10, step=0)]), made_rank(1)]
    offsets = find_offsets(match(gather(ranks), 2).symmetric(), 2)
    assert offsets.status == "unknown"
    assert offsets.error_ns.tolist() == [-1, -1]
    assert not np.any(offsets.offset_ns)
