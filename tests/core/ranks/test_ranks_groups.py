"""Tests of time and bandwidth by process group, compared with a count of every nanosecond."""

from __future__ import annotations

from collections import Counter, defaultdict
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.analysis.collectives import CommKind, bus_factor, message_bytes, reaches_all
from overlapscope.base.intervals import union
from overlapscope.catalog.causes import COMM_CAUSES, CommCause
from overlapscope.ranks.collectives import gather, match
from overlapscope.ranks.comm_result import CommTime, Communication
from overlapscope.ranks.communication import by_group, by_rank, find_comm_causes
from overlapscope.ranks.comparison import Comparison, compare
from overlapscope.ranks.join import report_on
from overlapscope.ranks.reduced import ReducedRank, reduce
from overlapscope.trace.model import Collectives
from tests.support.comm_programs import PLANTED, HostAct, play
from tests.support.helpers import MS
from tests.support.ranks_schedules import CommKernel, ScheduledJob, jobs, made_rank

ALL_TO_ALL = CommKind("all_to_allv", "0", "[0, 1]", 2)


@st.composite
def ranks_with_steps(draw: st.DrawFn) -> list[ReducedRank]:
    """Ranks of a job whose steps begin at their own moments, with parts of the communication hidden."""
    job: ScheduledJob = draw(jobs())
    ranks = []
    for rank in job.reduced(wide=20):
        begin = rank.end_ns - rank.span_ns
        inner = sorted(draw(st.sets(st.integers(begin, rank.end_ns), max_size=3)))
        first = draw(st.integers(0, 1))
        steps = [(f"ProfilerStep#{first + number}", b - a) for number, (a, b) in enumerate(pairwise([begin, *inner]))]
        bounds = sorted(draw(st.lists(st.integers(begin, rank.end_ns), max_size=6)))
        kernels = [
            kernel._replace(bytes=draw(st.sampled_from([64, 64, 32, -1]))) for kernel in job.kernels(rank.rank or 0)
        ]
        reduced = made_rank(rank.rank, kernels, window=(begin, rank.end_ns), steps=steps)
        # Warm-up and the last step are not judged.
        judged = np.ones(len(steps), np.bool_)
        judged[: draw(st.integers(0, 1))] = False
        judged[len(steps) - draw(st.integers(0, 1)) :] = False
        judged_from = begin + draw(st.sampled_from([0, 0, 40]))
        exposed = union(bounds[0::2][: len(bounds) // 2], bounds[1::2])
        figures = replace(reduced.steps, judged=judged)
        ranks.append(replace(reduced, exposed_comm=exposed, judged_from_ns=judged_from, steps=figures))
    return ranks


class BruteForceCommTime:
    """Sets of nanoseconds, each with the place of its rank."""

    def __init__(self) -> None:
        self.busy: set[tuple[int, int]] = set()
        self.judged: set[tuple[int, int]] = set()
        self.waiting: set[tuple[int, int]] = set()
        self.count = 0

    def add(self, other: BruteForceCommTime) -> None:
        self.busy |= other.busy
        self.judged |= other.judged
        self.waiting |= other.waiting

    def time(self, exposed: set[tuple[int, int]]) -> CommTime:
        transfer, unjudged = self.judged - self.waiting, self.busy - self.judged
        return CommTime(
            busy_ns=len(self.busy),
            hidden_ns=len(self.busy - exposed),
            exposed_ns=len(self.busy & exposed),
            waiting_ns=len(self.waiting),
            transfer_ns=len(transfer),
            unjudged_ns=len(unjudged),
            exposed_waiting_ns=len(self.waiting & exposed),
            exposed_transfer_ns=len(transfer & exposed),
            exposed_unjudged_ns=len(unjudged & exposed),
        )


def windows_of(ranks: list[ReducedRank]) -> tuple[int, list[set[int]]]:
    """Return the number of common steps, and the nanoseconds of each rank that count."""
    named = [{rank.steps.names[row]: row for row in np.flatnonzero(rank.steps.judged).tolist()} for rank in ranks]
    common = set.intersection(*map(set, named))
    inside: list[set[int]] = []
    for names, rank in zip(named, ranks, strict=True):
        if not common:
            inside.append(set(range(rank.judged_from_ns, rank.end_ns)))
            continue
        rows = [names[name] for name in common]
        edges = np.append(rank.steps.start_ns, rank.steps.start_ns[-1] + rank.steps.span_ns[-1]).tolist()
        inside.append({ns for row in rows for ns in range(edges[row], edges[row + 1])})
    return len(common), inside


def counted(
    comparison: Comparison, ranks: list[ReducedRank]
) -> tuple[dict[CommKind, BruteForceCommTime], BruteForceCommTime]:
    waits = comparison.waits
    waited = dict(zip(waits.meetings.row.tolist(), waits.arrivals.waited_ns.tolist(), strict=True))
    kernels = comparison.met.kernels
    _, inside = windows_of(ranks)
    each: defaultdict[CommKind, BruteForceCommTime] = defaultdict(BruteForceCommTime)
    every = BruteForceCommTime()
    for row in range(len(kernels.kind)):
        place, start, end = int(kernels.rank[row]), int(kernels.start_ns[row]), int(kernels.end_ns[row])
        for part in (each[kernels.kinds[kernels.kind[row]]], every):
            part.count += start in inside[place]
            runs = {(place, ns) for ns in range(start, end) if ns in inside[place]}
            part.busy |= runs
            if row in waited:
                part.judged |= runs
                part.waiting |= {(place, ns) for ns in range(start, start + waited[row]) if ns in inside[place]}
    return each, every


def with_causes(ranks: list[ReducedRank]) -> list[ReducedRank]:
    """Return the ranks with a cause for each seven nanoseconds of their exposed communication."""
    changed = []
    for rank in ranks:
        of_cause: defaultdict[int, list[int]] = defaultdict(list)
        for start, end in zip(*map(np.ndarray.tolist, rank.exposed_comm), strict=True):
            for ns in range(start, end):
                of_cause[ns // 7 % len(COMM_CAUSES)].append(ns)
        causes = (np.array(of_cause[number], np.int64) for number in range(len(COMM_CAUSES)))
        changed.append(replace(rank, comm_causes=tuple(union(times, times + 1) for times in causes)))
    return changed


@given(ranks_with_steps())
def test_each_exposed_nanosecond_of_joined_ranks_has_one_cause(ranks: list[ReducedRank]) -> None:
    ranks = with_causes(ranks)
    waits = compare(ranks).waits
    kernels, waited = waits.meetings.kernels, waits.arrivals.waited_ns.tolist()
    waiting, judged = set[tuple[int, int]](), set[tuple[int, int]]()
    for row, ns in zip(waits.meetings.row.tolist(), waited, strict=True):
        place, start = int(kernels.rank[row]), int(kernels.start_ns[row])
        waiting |= {(place, at) for at in range(start, start + ns)}
        judged |= {(place, at) for at in range(start, int(kernels.end_ns[row]))}
    for row in {*range(len(kernels.start_ns))} - {*waits.meetings.row.tolist()}:
        judged -= {(int(kernels.rank[row]), at) for at in range(int(kernels.start_ns[row]), int(kernels.end_ns[row]))}
    expected = [Counter({str(cause): 0 for cause in CommCause}) for _ in ranks]
    for place, rank in enumerate(ranks):
        for number, times in enumerate(rank.comm_causes):
            for start, end in zip(*map(np.ndarray.tolist, times), strict=True):
                for at in range(start, end):
                    cause = COMM_CAUSES[number]
                    needed = cause not in {CommCause.LATE_COMPUTE, CommCause.LAUNCH_LATENCY}
                    if (place, at) in waiting and needed:
                        cause = CommCause.STRAGGLER
                    elif cause == CommCause.WAITING_OR_TRANSFER and (place, at) in judged:
                        cause = CommCause.TRANSFER
                    expected[place][cause] += 1
    causes = find_comm_causes(ranks, waits)
    assert by_rank(waits.axis, causes) == [dict(counts) for counts in expected]
    found = by_group(ranks, waits, causes)
    assert sum(found.exposed_by_cause.values()) == found.time.exposed_ns


@pytest.mark.parametrize("world_size", [2, 3, None])
def test_a_late_rank_is_a_straggler_and_the_rest_is_transfer_if_all_ranks_are_recorded(world_size: int | None) -> None:
    program = PLANTED[CommCause.WAITING_OR_TRANSFER]
    late = 3 * MS
    reports = []
    for rank in range(2):
        # The collective of the rank that is in time ends with that of the late one.
        delay = [HostAct("busy", ns=late)] if rank else []
        acts = [act._replace(ns=act.ns + late) if act.what == "comm" and not rank else act for act in program]
        reduced = reduce(play([*delay, *acts], rank=rank, source=f"rank{rank}.json").trace)
        reports += [replace(each, world_size=world_size) for each in reduced]
    report = report_on(reports)
    early, last = report.ranks
    assert early.exposed_comm_by_cause[CommCause.STRAGGLER] > late - MS
    assert last.exposed_comm_by_cause[CommCause.STRAGGLER] == 0
    rest = CommCause.TRANSFER if world_size == 2 else CommCause.WAITING_OR_TRANSFER
    assert last.exposed_comm_by_cause[rest] == last.exposed_comm_ns > MS
    time = report.communication.time
    assert time.busy_ns == time.waiting_ns + time.transfer_ns + time.unjudged_ns
    assert (time.transfer_ns > 0) == (world_size == 2)
    for row in (early, last):
        assert sum(row.exposed_comm_by_cause.values()) == row.exposed_comm_ns


def communication(ranks: list[ReducedRank]) -> Communication:
    waits = compare(ranks).waits
    return by_group(ranks, waits, find_comm_causes(ranks, waits))


@given(ranks_with_steps())
def test_every_time_is_that_of_a_count_by_the_nanosecond(ranks: list[ReducedRank]) -> None:
    comparison = compare(ranks)
    result = by_group(ranks, comparison.waits, find_comm_causes(ranks, comparison.waits))
    each, every = counted(comparison, ranks)
    exposed = {
        (place, ns)
        for place, rank in enumerate(ranks)
        for start, end in zip(rank.exposed_comm.starts.tolist(), rank.exposed_comm.ends.tolist(), strict=True)
        for ns in range(start, end)
    }
    assert result.steps == windows_of(ranks)[0]
    assert result.time == every.time(exposed)
    rows = {(row.collective, row.group): (row.count, row.time) for row in result.rows}
    assert rows == {
        (kind.collective, kind.group): (part.count, part.time(exposed))
        for kind, part in each.items()
        if part.busy or part.count
    }
    by_dimension: defaultdict[int | None, BruteForceCommTime] = defaultdict(BruteForceCommTime)
    for row in result.rows:
        by_dimension[row.dimension].add(
            next(part for kind, part in each.items() if (kind.collective, kind.group) == (row.collective, row.group))
        )
    times = [by_dimension[place].time(exposed) for place in range(len(result.dimensions))]
    assert [dimension.time for dimension in result.dimensions] == times
    for row in result.rows:
        spent = row.time
        assert spent.busy_ns == spent.hidden_ns + spent.exposed_ns
        assert spent.busy_ns == spent.waiting_ns + spent.transfer_ns + spent.unjudged_ns


def test_bandwidth_counts_from_the_last_arrival_to_the_end() -> None:
    kind = CommKind("allreduce", "0", "[0, 1, 2, 3]", 4)
    kernels = [
        [CommKernel(kind, start, 10_000, step=1, elements=8, bytes=30_000)] for start in (0, 3_000, 7_000, 2_000)
    ]
    ranks = [made_rank(rank, each, window=(0, 20_000)) for rank, each in enumerate(kernels)]
    (row,) = communication(ranks).rows
    assert (row.transferred_bytes, row.transferred_ns) == (30_000, 3_000)
    assert row.bus_gb_per_s == 15.0


def test_messages_of_different_sizes_have_no_bandwidth() -> None:
    ranks = [
        made_rank(
            rank,
            [
                CommKernel(ALL_TO_ALL, 0, 100, step=1, elements=4, received=4, bytes=4, reaches_all=1),
                CommKernel(
                    ALL_TO_ALL, 200 + 50 * rank, 400, step=1, elements=6, received=6, bytes=6 + rank, reaches_all=1
                ),
            ],
        )
        for rank in range(2)
    ]
    (row,) = communication(ranks).rows
    assert row.count == 4 and row.time.waiting_ns == 50
    assert row.bus_gb_per_s is None


# -- All-to-alls with parts of different sizes --------------------------------------------------------


def all_to_all(rank: int, sent: int, received: int, reaches: int = 1) -> ReducedRank:
    return made_rank(
        rank, [CommKernel(ALL_TO_ALL, 40 * rank, 100, step=1, elements=sent, received=received, reaches_all=reaches)]
    )


def judged(*ranks: ReducedRank) -> int:
    return len(compare(ranks).waits.meetings)


def test_an_uneven_all_to_all_is_judged_if_each_member_has_data_for_every_other() -> None:
    assert judged(all_to_all(0, 70, 20), all_to_all(1, 10, 60)) == 1


@pytest.mark.parametrize("reaches", [0, -1])
def test_an_all_to_all_that_may_have_empty_parts_is_not_judged(reaches: int) -> None:
    assert judged(all_to_all(0, 70, 20), all_to_all(1, 10, 60, reaches)) == 0


def test_an_all_to_all_in_which_elements_are_lost_is_not_matched() -> None:
    ranks = [all_to_all(0, 70, 20), all_to_all(1, 10, 59)]
    assert len(match(gather(ranks), 2)) == 0


def test_members_with_little_to_send_may_end_long_before_the_others() -> None:
    def rank(number: int) -> ReducedRank:
        kernels = []
        for step in range(4):
            begin = step * 10_000_000
            even = CommKernel(ALL_TO_ALL, begin + 20_000 * number, begin + 30_000, step=step, elements=2, received=2)
            sent, took = ((70, 2_000_000), (10, 40_000))[number]
            uneven = CommKernel(
                ALL_TO_ALL, begin + 1_000_000, begin + 1_000_000 + took, step=step, elements=sent, received=40
            )
            kernels += [even._replace(bytes=16, reaches_all=1), uneven._replace(bytes=8 * sent, reaches_all=1)]
        return made_rank(number, kernels)

    comparison = compare([rank(0), rank(1)])
    assert (comparison.offsets.status, comparison.offsets.consistent, len(comparison.waits.meetings)) == (
        "shared",
        True,
        8,
    )
    waits = comparison.waits
    errors = waits.latest.error_ns[waits.arrivals.meeting].reshape(-1, 2)[:, 0]
    wrong = waits.arrivals.waited_ns.reshape(-1, 2)[:, 0] - np.array([20_000, 0] * 4)
    assert (np.abs(wrong) <= errors).all()


def recorded(names: list[str], *rows: tuple[int, str, int, str, int, str]) -> Collectives:
    """Return collectives from (group size, split sizes sent, elements, split sizes received, elements, type)."""

    def texts(column: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        listed = [str(row[column]) for row in rows]
        return np.array([names.index(text) if text in names else -1 for text in listed], np.int32)

    none = np.full(len(rows), -1, np.int32)
    wide = none.astype(np.int64)
    return Collectives(
        names=tuple(names), start_ns=wide, end_ns=wide, name_id=none, place=none, device=none, stream=none,
        correlation=wide, group=none, ranks=none, description=none, sequence=wide,
        group_size=np.array([row[0] for row in rows], np.int32),
        parts_in=texts(1), elements_in=np.array([row[2] for row in rows], np.int64),
        parts_out=texts(3), elements_out=np.array([row[4] for row in rows], np.int64), dtype=texts(5),
    )  # fmt: skip


def test_an_all_to_all_reaches_all_if_no_part_is_empty() -> None:
    names = ["[]", "[1, 2]", "[3, 0]", "[1, ..., 2]", "BFloat16", "Long", "Unheard"]
    table = recorded(
        names,
        (2, "[1, 2]", 12, "[1, 2]", 12, "BFloat16"),
        (2, "[1, 2]", 12, "[3, 0]", 12, "Long"),
        (2, "[]", 2, "[]", 4, "Long"),
        (2, "[]", 1, "[]", 2, "Long"),
        (2, "[1, ..., 2]", 12, "[1, 2]", 12, "Long"),
        (3, "[1, 2]", 12, "[]", 12, "Unheard"),
        (2, "", 12, "", 12, ""),
    )
    assert reaches_all(table, names).tolist() == [1, 0, 1, 0, -1, -1, -1]
    assert message_bytes(table, names).tolist() == [24, 96, 32, 16, 96, -1, -1]


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("allreduce", Fraction(3, 2)),
        ("allreduce_coalesced", Fraction(3, 2)),
        ("_allgather_base", Fraction(3, 4)),
        ("_reduce_scatter_base", Fraction(3, 4)),
        ("all_to_allv", Fraction(3, 4)),
        ("broadcast", Fraction(1)),
        ("reduce", Fraction(1)),
        ("send", Fraction(1)),
    ],
)
def test_the_factor_is_that_of_nccl_tests(collective: str, factor: Fraction) -> None:
    assert bus_factor(collective, 4) == factor


def test_a_barrier_has_no_bandwidth() -> None:
    assert bus_factor("barrier", 4) is None
