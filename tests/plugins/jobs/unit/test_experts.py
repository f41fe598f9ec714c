"""Tests of the load of experts, compared with a count of every element, exchange and nanosecond."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis import collectives
from overlapscope.analysis.collectives import CommKind
from overlapscope.plugins.jobs.experts import find_experts
from overlapscope.plugins.jobs.part import ExpertExchange
from overlapscope.plugins.jobs.ranks import load_of_experts
from overlapscope.ranks.comm_result import CommTime
from overlapscope.ranks.comparison import Comparison, compare
from overlapscope.ranks.join import report_on
from overlapscope.ranks.reduced import ReducedRank
from overlapscope.ranks.verdict import judge
from tests.core.ranks.test_ranks_groups import recorded
from tests.support.helpers import MS
from tests.support.ranks_schedules import CommKernel, ScheduledJob, jobs, made_rank

WIDTH = 10
"""Number of elements in a row."""


class Sizes(Struct, frozen=True):
    """Sizes of an exchange: rows by sender and receiver, and by rank whether the lists were shortened."""

    rows: dict[int, dict[int, int]]
    element_bytes: int
    shortened: dict[int, bool]

    def sent(self, rank: int) -> int:
        return sum(self.rows[rank].values())

    def received(self, rank: int) -> int:
        return sum(rows[rank] for rows in self.rows.values())


class ExpertJob(Struct, frozen=True):
    """A job, the sizes of those of its collectives that are exchanges, and its ranks as recorded."""

    job: ScheduledJob
    sizes: dict[int, Sizes]
    """By place in `job.met`."""
    ranks: list[ReducedRank]


@st.composite
def expert_jobs(draw: st.DrawFn) -> ExpertJob:
    job: ScheduledJob = draw(jobs(most_ranks=4))
    met, sizes = list(job.met), {}
    for number, each in enumerate(met):
        if draw(st.booleans()):
            members = sorted(each.times)
            rows = {a: {b: draw(st.integers(0, 3)) for b in members} for a in members}
            sizes[number] = Sizes(
                rows, draw(st.sampled_from([2, 2, 8, -1])), {a: draw(st.integers(0, 9)) == 0 for a in members}
            )
            met[number] = replace(each, kind=replace(each.kind, collective="all_to_allv"), elements=-1)
    job = replace(job, met=tuple(met))
    return ExpertJob(job, sizes, [_rank(draw, job, sizes, rank) for rank in range(job.ranks)])


def _rank(draw: st.DrawFn, job: ScheduledJob, sizes: dict[int, Sizes], rank: int) -> ReducedRank:
    kernels = []
    own = [(number, met) for number, met in enumerate(job.met) if rank in met.times]
    for (number, _), kernel in zip(own, job.kernels(rank), strict=True):
        size = sizes.get(number)
        if size is None:
            kernels.append(kernel)
            continue
        sent, received = size.sent(rank), size.received(rank)
        rows = (-1, -1) if size.shortened[rank] else (sent, received)
        parts = [*size.rows[rank].values(), *(row[rank] for row in size.rows.values())]
        reaches = -1 if size.shortened[rank] else int(min(parts) > 0)
        kernel = kernel._replace(elements=sent * WIDTH, received=received * WIDTH, element_bytes=size.element_bytes)
        kernels.append(kernel._replace(splits=1, reaches_all=reaches, sent_rows=rows[0], received_rows=rows[1]))
    begin = min((kernel.start for kernel in kernels), default=0) - 5
    end = max((kernel.end for kernel in kernels), default=0) + 5
    edge = draw(st.integers(begin, end))
    steps = [("ProfilerStep#0", edge - begin), ("ProfilerStep#1", end - edge)]
    made = made_rank(rank, kernels, window=(begin, end), steps=steps)
    judged = np.array([draw(st.booleans()), True]) if rank == 0 else np.ones(2, np.bool_)
    return replace(made, steps=replace(made.steps, judged=judged))


def windows_of(ranks: list[ReducedRank]) -> list[range]:
    """Return the judged window of each rank."""
    whole = bool(ranks[0].steps.judged[0])
    return [
        range(int(rank.steps.start_ns[0 if whole else 1]), int(rank.steps.start_ns[1] + rank.steps.span_ns[1]))
        for rank in ranks
    ]


def counted(made: ExpertJob, comparison: Comparison) -> list[dict[str, Any]]:
    """Count everything, exchange after exchange."""
    inside, met = windows_of(made.ranks), made.job.met
    of_flow: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for number, size in made.sizes.items():
        of_flow[met[number].kind.group, size.element_bytes].append(number)
    result = []
    for (group, element_bytes), numbers in of_flow.items():
        ranks = {
            rank: time
            for rank in range(made.job.ranks)
            if (time := _time(made, comparison, numbers, rank, inside[rank])) is not None
        }
        there = [
            number
            for number in numbers
            for size, times in [(made.sizes[number], met[number].times)]
            if all(times[rank][0] in inside[rank] for rank in times)
            and max(map(size.received, times)) >= max(map(size.sent, times))
        ]
        most = [max(map(made.sizes[number].received, met[number].times)) for number in there]
        totals = [sum(map(made.sizes[number].received, met[number].times)) for number in there]
        members = len(met[numbers[0]].times)
        result.append(
            {
                "group": group,
                "element_bytes": element_bytes if element_bytes > 0 else None,
                "compared": len(there),
                "skew": pytest.approx(sum(most) * members / sum(totals)) if sum(totals) else None,
                "last": _last(made, comparison, there),
                "ranks": [
                    _counts(made, numbers, there, rank, time, inside[rank], sum(totals) / members)
                    for rank, time in ranks.items()
                ],
            }
        )
    return [each for each in result if each["ranks"]]


def _counts(
    made: ExpertJob, numbers: list[int], there: list[int], rank: int, time: CommTime, window: range, mean: float
) -> dict[str, Any]:
    sizes = [made.sizes[number] for number in numbers if made.job.met[number].times[rank][0] in window]
    to_it = [made.sizes[number] for number in there]
    known, known_there = (not any(size.shortened[rank] for size in each) for each in (sizes, to_it))
    loaded = sum(size.received(rank) for size in to_it)
    return {
        "rank": rank,
        "count": len(sizes),
        "sent_elements": WIDTH * sum(size.sent(rank) for size in sizes),
        "received_elements": WIDTH * sum(size.received(rank) for size in sizes),
        "sent_rows": sum(size.sent(rank) for size in sizes) if known else None,
        "received_rows": sum(size.received(rank) for size in sizes) if known else None,
        "loaded_elements": WIDTH * loaded if to_it else None,
        "loaded_rows": loaded if to_it and known_there else None,
        "load": pytest.approx(loaded / mean) if mean else None,
        "time": time,
    }


def _time(made: ExpertJob, comparison: Comparison, numbers: list[int], rank: int, window: range) -> CommTime | None:
    kernels, waits = comparison.met.kernels, comparison.waits
    waited = dict(zip(waits.meetings.row.tolist(), waits.arrivals.waited_ns.tolist(), strict=True))
    row_of = {(int(kernels.rank[row]), int(kernels.start_ns[row])): row for row in range(len(kernels))}
    busy, judged, waiting, begins = set[int](), set[int](), set[int](), 0
    for number in numbers:
        if rank not in made.job.met[number].times:
            continue
        start, end = made.job.met[number].times[rank]
        begins += start in window
        runs = {ns for ns in range(start, end) if ns in window}
        busy |= runs
        row = row_of[rank, start]
        if row in waited:
            judged |= runs
            waiting |= {ns for ns in range(start, start + waited[row]) if ns in window}
    if not busy and not begins:
        return None
    parts = (len(waiting), len(judged - waiting), len(busy - judged))
    waiting_ns, transfer_ns, unjudged_ns = parts
    return CommTime(
        busy_ns=len(busy),
        hidden_ns=0,
        exposed_ns=len(busy),
        waiting_ns=waiting_ns,
        transfer_ns=transfer_ns,
        unjudged_ns=unjudged_ns,
        exposed_waiting_ns=waiting_ns,
        exposed_transfer_ns=transfer_ns,
        exposed_unjudged_ns=unjudged_ns,
    )


def _last(made: ExpertJob, comparison: Comparison, there: list[int]) -> tuple[int, int, int]:
    """Follow each rank that alone receives most to the next collective of its group."""
    waits, kernels = comparison.waits, comparison.met.kernels
    judged: dict[tuple[int, int], int] = {}
    for meeting, row in zip(waits.meetings.meeting.tolist(), waits.meetings.row.tolist(), strict=True):
        judged[int(kernels.rank[row]), int(kernels.start_ns[row])] = meeting
    followed = last = waited = 0
    for number in there:
        met, size = made.job.met[number], made.sizes[number]
        received = {rank: size.received(rank) for rank in met.times}
        largest = [rank for rank in received if received[rank] == max(received.values())]
        later = [each for each in made.job.met[number + 1 :] if each.kind.group == met.kind.group]
        if len(largest) > 1 or not later:
            continue
        meeting = judged.get((largest[0], later[0].times[largest[0]][0]))
        if meeting is None or waits.latest.together[meeting] != 1:
            continue
        followed += 1
        if int(waits.arrivals.rank[waits.latest.row[meeting]]) == largest[0]:
            last += 1
            waited += int(waits.arrivals.exposed_ns[waits.arrivals.meeting == meeting].sum())
    return followed, last, waited


def _shown(exchange: ExpertExchange) -> dict[str, Any]:
    return {
        "group": exchange.group,
        "element_bytes": exchange.element_bytes,
        "compared": exchange.compared,
        "skew": exchange.skew,
        "last": (exchange.followed, exchange.largest_last, exchange.waited_exposed_ns),
        "ranks": [{name: getattr(rank, name) for name in rank.__struct_fields__} for rank in exchange.ranks],
    }


@given(expert_jobs())
def test_loads_and_times_of_experts_are_those_counted(made: ExpertJob) -> None:
    comparison = compare(made.ranks)
    found = [_shown(exchange) for exchange in find_experts(made.ranks, comparison)]

    def order(exchange: dict[str, Any]) -> tuple[str, int]:
        return exchange["group"], exchange["element_bytes"] or 0

    assert sorted(found, key=order) == sorted(counted(made, comparison), key=order)


KIND = CommKind("all_to_allv", "ep", "[0, 1, 2]", 3, description="EP")


def planted(*, shortened: bool = False, others_come_last: bool = False) -> list[ReducedRank]:
    """Ranks of three; the experts of rank 1 get six of nine rows, so it computes for longest before the way back."""
    received = {0: 2, 1: 6, 2: 1}
    ranks = []
    for rank, its in received.items():
        work = 3 if others_come_last else its
        kernels = []
        for step in range(4):
            begin = step * 20 * MS
            back = begin + (2 + work) * MS
            for start, end, sent, got in ((begin, begin + MS, 3, its), (back, begin + 10 * MS, its, 3)):
                rows = (-1, -1) if shortened else (sent, got)
                kernel = CommKernel(KIND, start, end, step, sent * WIDTH, received=got * WIDTH, reaches_all=1)
                kernels.append(kernel._replace(splits=1, element_bytes=2, sent_rows=rows[0], received_rows=rows[1]))
        steps = [(f"ProfilerStep#{step}", 20 * MS) for step in range(4)]
        ranks.append(made_rank(rank, kernels, window=(0, 80 * MS), steps=steps, world_size=3))
    return ranks


def test_a_rank_that_is_late_because_its_experts_get_most_is_named_with_that_reason() -> None:
    report = report_on(planted())
    (exchange,) = report.parts["jobs"].experts
    assert (exchange.compared, exchange.followed, exchange.largest_last) == (4, 4, 4)
    assert exchange.waited_exposed_ns == 4 * (4 + 5) * MS
    assert [rank.load for rank in exchange.ranks] == pytest.approx([2 / 3, 2, 1 / 3])
    verdict = judge(report)
    assert verdict.lead.startswith("Rank 1 delays each other rank by up to 4.50 ms")
    assert (
        "Its experts receive 2.00 times as many rows as those of the mean rank; after 4 of 4 such exchanges the rank "
        "that received most comes last to the next collective." in verdict.rest
    )


def test_uneven_experts_are_no_reason_if_their_rank_does_not_come_last() -> None:
    report = report_on(planted(others_come_last=True))
    (exchange,) = report.parts["jobs"].experts
    assert (exchange.skew, exchange.followed, exchange.largest_last) == (2.0, 0, 0)
    assert "experts" not in judge(report).text


def test_the_table_of_loads_begins_with_the_highest() -> None:
    report = report_on(planted())
    table = load_of_experts(report, report.parts["jobs"].experts, rows=2)
    assert [column.title for column in table.columns][:4] == ["rank", "group", "load", "rows"]
    first, second = ([cell.text for cell in row.cells] for row in table.rows)
    assert first[:4] == ["1", "ep EP [0 to 2]", "2.00", "6"] and second[:3] == ["0", "ep EP [0 to 2]", "0.67"]
    assert "the most is 2.00 times the mean" in table.note and "1 more row" in table.note


def test_loads_are_known_and_rows_are_not_if_lists_of_sizes_were_shortened() -> None:
    report = report_on(planted(shortened=True))
    (exchange,) = report.parts["jobs"].experts
    assert exchange.skew == 2.0
    assert {rank.loaded_rows for rank in exchange.ranks} == {rank.sent_rows for rank in exchange.ranks} == {None}
    table = load_of_experts(report, report.parts["jobs"].experts, rows=5)
    assert "Rows are unknown, because PyTorch shortened the lists" in table.note
    assert "rows" not in [column.title for column in table.columns]
    assert "times as many elements as" in judge(report).text


def test_the_load_is_unknown_if_a_rank_of_the_group_was_not_recorded() -> None:
    report = report_on(planted()[:2])
    (exchange,) = report.parts["jobs"].experts
    assert (exchange.compared, exchange.skew) == (0, None)
    assert [(rank.received_rows, rank.load) for rank in exchange.ranks] == [(4 * 5, None), (4 * 9, None)]
    note = load_of_experts(report, (exchange,), rows=5).note
    assert note == "Load is unknown: no exchange could be compared between all ranks of its group."


def test_ranks_that_come_last_together_are_not_told_apart() -> None:
    ranks = planted()
    late = replace(ranks[2].comm, start_ns=ranks[1].comm.start_ns)
    (exchange,) = report_on([*ranks[:2], replace(ranks[2], comm=late)]).parts["jobs"].experts
    assert (exchange.compared, exchange.followed) == (4, 0)


@pytest.mark.parametrize(
    ("parts_in", "parts_out", "expected"),
    [
        ("[4, 0]", "[1, 2]", (4, 3)),
        ("[4, 4, ..., 4]", "[1, 2]", (-1, 3)),
        ("[4, 0]", "[]", (4, -1)),
        ("[]", "[]", None),
        ("", "", None),
    ],
)
def test_exchanges_are_collectives_with_split_sizes(
    parts_in: str, parts_out: str, expected: tuple[int, int] | None
) -> None:
    names = ["Half", "[4, 0]", "[1, 2]", "[4, 4, ..., 4]", "[]"]
    of = recorded(names, (2, parts_in, 40, parts_out, 30, "Half"))
    assert collectives.has_splits(of, names).tolist() == [expected is not None]
    assert collectives.element_bytes(of, names).tolist() == [2]
    if expected is not None:
        assert [int(collectives.split_rows(parts, names)[0]) for parts in (of.parts_in, of.parts_out)] == [*expected]
