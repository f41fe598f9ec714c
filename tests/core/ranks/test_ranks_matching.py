"""Tests of matching kernels of different ranks to collectives: never a wrong match, and nothing lost needlessly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.analysis.collectives import CommKind
from overlapscope.ranks.collectives import Meetings, gather, match, symmetric
from overlapscope.ranks.comparison import compare, notes
from overlapscope.ranks.messages import point_to_point
from overlapscope.ranks.reduced import ReducedRank
from tests.support.ranks_schedules import CommKernel, ScheduledJob, jobs, made_rank

WORLD = CommKind("allreduce", "0", "[0, 1]", 2)
BARE = CommKind("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", recorded=False)


def matched(ranks: Sequence[ReducedRank]) -> list[dict[int, int]]:
    """Each meeting as rank -> start of its kernel."""
    meetings = match(gather(ranks), len(ranks))
    return [
        {int(meetings.kernels.rank[row]): int(meetings.kernels.start_ns[row]) for row in members(meetings, number)}
        for number in range(len(meetings))
    ]


def members(meetings: Meetings, number: int) -> list[int]:
    rows: list[int] = meetings.row[meetings.first[number] : meetings.first[number + 1]].tolist()
    return rows


def truth(job: ScheduledJob) -> list[dict[int, int]]:
    return [{rank: begin + job.offsets[rank] for rank, (begin, _) in met.times.items()} for met in job.met]


def in_order(meetings: list[dict[int, int]]) -> list[list[tuple[int, int]]]:
    return sorted(sorted(met.items()) for met in meetings)


@given(jobs(offsets=st.integers(-(10**9), 10**9)))
def test_everything_matches_where_all_ranks_recorded_everything(job: ScheduledJob) -> None:
    assert in_order(matched(job.reduced())) == in_order(truth(job))


@given(st.data())
def test_recordings_that_begin_and_end_at_different_moments_match_wrongly_nowhere(data: st.DataObject) -> None:
    job = data.draw(jobs(counted=data.draw(st.booleans())))
    cut = []
    for rank in range(job.ranks):
        kernels = sorted(job.kernels(rank), key=lambda kernel: kernel.start)
        first = min((kernel.step for kernel in kernels), default=0)
        last = max((kernel.step for kernel in kernels), default=0)
        begins = data.draw(st.integers(0, sum(kernel.step == first for kernel in kernels)))
        ends = data.draw(st.integers(0, sum(kernel.step == last for kernel in kernels))) if first < last else 0
        cut.append(made_rank(rank, kernels[begins : len(kernels) - ends]))
    true = [dict(met) for met in truth(job)]
    for meeting in matched(cut):
        assert any(meeting.items() <= met.items() for met in true)


def test_a_rank_that_recorded_one_collective_more_at_the_start_is_matched_from_the_end() -> None:
    first = made_rank(
        0, [CommKernel(WORLD, at, at + 5, step=3) for at in (20, 30)] + [CommKernel(WORLD, 40, 45, step=4)]
    )
    two = made_rank(
        1, [CommKernel(WORLD, at, at + 5, step=3) for at in (11, 21, 31)] + [CommKernel(WORLD, 41, 45, step=4)]
    )
    early = made_rank(
        1, [CommKernel(WORLD, 1, 5, step=2)] + [CommKernel(WORLD, at, at + 5, step=3) for at in (11, 21, 31, 41)]
    )
    assert in_order(matched([first, two])) == in_order([{0: 20, 1: 21}, {0: 30, 1: 31}, {0: 40, 1: 41}])
    assert in_order(matched([first, early])) == in_order([{0: 20, 1: 31}, {0: 30, 1: 41}])


def test_where_a_count_differs_within_the_recording_that_step_is_left_out() -> None:
    def rank(number: int, in_the_middle: int) -> ReducedRank:
        counts = {2: 2, 3: in_the_middle, 4: 2}
        kernels = [
            CommKernel(WORLD, 100 * step + 10 * place, 100 * step + 10 * place + 5, step=step)
            for step, count in counts.items()
            for place in range(count)
        ]
        return made_rank(number, kernels)

    meetings = match(gather([rank(0, 3), rank(1, 2)]), 2)
    assert len(meetings) == 4
    assert len(meetings.kernels) - len(meetings.row) == 5


def test_a_step_whose_sizes_differ_is_left_out() -> None:
    def rank(number: int, sizes: list[int]) -> ReducedRank:
        kernels = [
            CommKernel(WORLD, 10 * at, 10 * at + 5, step=at // 2, elements=size) for at, size in enumerate(sizes)
        ]
        return made_rank(number, kernels)

    assert len(matched([rank(0, [1, 2, 3, 4]), rank(1, [1, 2, 3, 4])])) == 4
    assert len(matched([rank(0, [1, 2, 3, 4]), rank(1, [1, 7, 3, 4])])) == 2
    # Unknown values contradict nothing.
    assert len(matched([rank(0, [1, 2, 3, 4]), rank(1, [1, -1, 3, 4])])) == 4


def test_a_groups_own_count_decides_over_steps() -> None:
    first = made_rank(0, [CommKernel(WORLD, 10 * at, 10 * at + 5, step=3, sequence=100 + at) for at in range(4)])
    two = made_rank(1, [CommKernel(WORLD, 10 * at, 10 * at + 5, step=2, sequence=100 + at) for at in range(2, 6)])
    assert in_order(matched([first, two])) == in_order([{0: 20, 1: 20}, {0: 30, 1: 30}])


def test_without_steps_kernels_match_by_order_where_every_rank_has_as_many() -> None:
    def rank(number: int, count: int) -> ReducedRank:
        return made_rank(number, [CommKernel(WORLD, 10 * at + number, 10 * at + 5) for at in range(count)])

    assert len(matched([rank(0, 3), rank(1, 3)])) == 3
    assert matched([rank(0, 3), rank(1, 4)]) == []


def test_what_was_launched_before_the_recording_is_left_out() -> None:
    first = made_rank(0, [CommKernel(WORLD, 0, 5), CommKernel(WORLD, 10, 15, step=3)])
    two = made_rank(1, [CommKernel(WORLD, 1, 5), CommKernel(WORLD, 11, 15, step=3)])
    assert matched([first, two]) == [{0: 10, 1: 11}]


def test_groups_are_kept_apart_by_name_and_by_ranks() -> None:
    kinds = [
        CommKind("allreduce", "1", "[0, 1]", 2),
        CommKind("allreduce", "2", "[0, 1]", 2),
        CommKind("allreduce", "1", "[2, 3]", 2),
    ]
    first = made_rank(0, [CommKernel(kinds[0], 0, 5, step=0), CommKernel(kinds[1], 10, 15, step=0)])
    two = made_rank(1, [CommKernel(kinds[1], 1, 5, step=0), CommKernel(kinds[0], 11, 15, step=0)])
    other = made_rank(2, [CommKernel(kinds[2], 2, 5, step=0)])
    assert in_order(matched([first, two, other])) == in_order([{0: 0, 1: 11}, {0: 10, 1: 1}])


def test_more_members_than_the_group_has_are_not_believed() -> None:
    ranks = [made_rank(number, [CommKernel(WORLD, number, 9, step=0)]) for number in range(3)]
    assert matched(ranks) == []


def test_kernels_that_say_nothing_match_by_name_where_all_ranks_have_as_many() -> None:
    def rank(number: int, counts: list[int]) -> ReducedRank:
        kernels = [
            CommKernel(BARE, 100 * step + 10 * place + number, 100 * step + 10 * place + 5, step=step)
            for step, count in enumerate(counts)
            for place in range(count)
        ]
        return made_rank(number, kernels)

    alike = [rank(number, [2, 2, 2]) for number in range(3)]
    meetings = match(gather(alike), 3)
    assert Counter(len(members(meetings, number)) for number in range(len(meetings))) == {3: 6}
    assert meetings.by == "kernel-names"
    assert len(matched([*alike[:2], rank(2, [2, 0, 2])])) == 4
    assert matched([*alike[:2], made_rank(2)]) == []


def test_kernels_that_say_nothing_match_after_the_end_of_a_recording_that_ends_early() -> None:
    def rank(number: int, steps: int) -> ReducedRank:
        kernels = [CommKernel(BARE, 100 * step + number, 100 * step + 5, step=step) for step in range(steps)]
        return made_rank(number, kernels)

    ranks = [rank(0, 3), rank(1, 3), rank(2, 2)]
    assert [len(members) for members in matched(ranks)] == [3, 3, 2]
    assert any("In 1 collective the kernels of some ranks are missing" in note for note in notes(ranks, compare(ranks)))


def test_point_to_point_is_counted_apart() -> None:
    send = CommKind("send", "0", "[0, 1]", 2)
    alone = CommKind("allreduce", "3", "[0]", 1)
    ranks = [
        made_rank(
            number,
            [CommKernel(send, 0, 5, step=0), CommKernel(alone, 10, 15, step=0), CommKernel(WORLD, 20, 25, step=0)],
        )
        for number in range(2)
    ]
    meetings = match(gather(ranks), 2)
    assert (len(meetings), meetings.not_collective) == (1, 4)


@pytest.mark.parametrize(
    ("name", "each_waits"),
    [
        ("allreduce", True),
        ("allreduce_coalesced", True),
        ("_allgather_base", True),
        ("all_gather_into_tensor_coalesced", True),
        ("_reduce_scatter_base", True),
        ("reduce_scatter_tensor_coalesced", True),
        ("all_to_all", True),
        ("barrier", True),
        ("all_to_allv", False),
        ("broadcast", False),
        ("_broadcast_oop", False),
        ("reduce", False),
        ("_reduce_oop", False),
        ("gather", False),
        ("scatter", False),
        ("send", False),
    ],
)
def test_collectives_in_which_each_waits_for_every_other_are_reported_by_name(name: str, each_waits: bool) -> None:
    assert symmetric(CommKind(name)) == each_waits


@pytest.mark.parametrize(
    ("kernel", "each_waits", "between_two"),
    [
        (BARE.collective, True, False),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", True, False),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", True, False),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", False, True),
        ("ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)", False, False),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", False, False),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", False, False),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(RankData*)", True, False),
    ],
)
def test_kernels_that_say_nothing_are_reported_by_their_names(kernel: str, each_waits: bool, between_two: bool) -> None:
    kind = CommKind(kernel, recorded=False)
    assert (symmetric(kind), point_to_point(kind)) == (each_waits, between_two)


def test_nothing_comes_of_nothing() -> None:
    assert matched([]) == []
    assert matched([made_rank(0), made_rank(1)]) == []


def test_a_rank_whose_file_lost_events_is_left_out_where_it_has_fewer_kernels() -> None:
    def rank(number: int, counts: list[int], kind: CommKind) -> ReducedRank:
        kernels = [
            CommKernel(kind, 100 * step + 10 * place + number, 100 * step + 10 * place + 5, step=step)
            for step, count in enumerate(counts)
            for place in range(count)
        ]
        return made_rank(number, kernels)

    for kind in (BARE, CommKind("allreduce", "0", "[0, 1, 2]", 3)):
        ranks = [rank(0, [2, 2, 2], kind), rank(1, [2, 2, 2], kind), rank(2, [2, 1, 2], kind)]
        assert [len(members) for members in matched(ranks)] == [3, 3, 3, 3]
        lossy = [*ranks[:2], replace(ranks[2], lossy=True)]
        assert [len(members) for members in matched(lossy)] == [3, 3, 2, 2, 3, 3]
        silent = [*ranks[:2], replace(made_rank(2), lossy=True)]
        assert [len(members) for members in matched(silent)] == [2] * 6
